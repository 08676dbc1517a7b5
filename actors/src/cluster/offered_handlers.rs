//! Offered handlers: runs this node's own handlers for nodes that lack them.
//!
//! The other node holds the job: it keeps the lease, judges the end and writes the record, as for any remote handler.
//! Here the handler is called, as many times at once as the type's `slots` say, and signals that it is alive. Where it
//! is to stop, at its caller's word, because its caller has been silent for a lease, or because this node drains and
//! its grace time is over, it is cancelled and then dropped, as an attempt of this node would be.
//!
//! Bounds: 1,024 calls, of which those without a slot wait [`WAITS`] and are then sent back as busy.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use longshore_backbone::Backbone;
use longshore_backbone::handlers::SignalKind;
use longshore_backbone::offers::{Arrived, IncomingCall, Offer, OwnReply, ReplyTo};
use longshore_backbone::steps::StepCall;
use longshore_domain::{Job, JobType, Timestamp};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::attempt::stop::STOPS_WITHIN;
use crate::handlers::handler::{BoxFuture, Context, Handler, HandlerError, Reporter, StepEnd, Steps, Success};
use crate::handlers::offered_calls::{OfferedCalls, OpenCall};
use crate::handlers::routing::Routing;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, panic_text};
use crate::trace::{TRACE_PARENT, context};

/// How long a call waits for a slot: its caller has a worker for it, and another node may have a slot sooner.
const WAITS: Duration = Duration::from_secs(5);
/// How many heartbeats are sent in the time within which one is promised.
const BEATS: u32 = 3;
/// The longest pause between two: a node that misses this one's old connection takes a silent call for lost.
const BEATS_EVERY: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct OfferedHandlersPart {
    pub(crate) backbone: Backbone,
    pub(crate) routing: Arc<Routing>,
    pub(crate) draining: CancellationToken,
    pub(crate) calls: Arc<OfferedCalls>,
    pub(crate) started_at: Timestamp,
}

/// A handler that is offered.
#[derive(Clone)]
struct Own {
    handler: Arc<dyn Handler>,
    slots: Arc<Semaphore>,
}

/// Takes calls until the process ends, none while the node drains. Without a handler of its own there is nothing to do.
pub(crate) async fn run(part: OfferedHandlersPart) -> LoopEnd {
    let own = part.routing.own_handlers();
    if own.is_empty() {
        return std::future::pending().await;
    }
    let (mut offers, mut own_by_type) = (Vec::new(), HashMap::new());
    for (job_type, handler, slots) in own {
        offers.push(Offer { tenant: None, job_type: job_type.clone(), slots });
        let slots = Arc::new(Semaphore::new(usize::try_from(slots).unwrap_or(Semaphore::MAX_PERMITS)));
        own_by_type.insert(job_type, Own { handler, slots });
    }
    let lease = part.backbone.storage().lease;
    let offered = part.backbone.offer(&offers, lease, crate::runtime::VERSION, part.started_at).await;
    let mut offered = offered.map_err(|error| error.with_causes())?;
    let mut is_withdrawn = false;
    loop {
        tokio::select! {
            () = part.draining.cancelled(), if !is_withdrawn => {
                is_withdrawn = true;
                offered.withdraw().await;
            }
            arrived = offered.next() => match arrived {
                None => return Ok(()),
                Some(Arrived::Cancel(tenant, run_id)) => part.calls.cancel(&tenant, &run_id),
                Some(Arrived::Call(call)) => take(&part, &own_by_type, *call, is_withdrawn).await,
            },
        }
    }
}

/// Begins a call in a task of its own.
async fn take(part: &OfferedHandlersPart, own: &HashMap<JobType, Own>, call: IncomingCall, is_draining: bool) {
    if is_draining {
        return call.reply_to.send(OwnReply::Busy("the node drains")).await;
    }
    let Some(own) = own.get(&call.job.job_type).cloned() else { return };
    let Some(open) = part.calls.open(&call.job.tenant, &call.job.run_id) else {
        return call.reply_to.send(OwnReply::Busy("the node has too many calls")).await;
    };
    let (lease, handed_back) = (part.backbone.storage().lease, part.calls.handed_back.clone());
    part.calls.tasks.spawn(serve(own, call, open, lease, handed_back));
}

/// Serves one call, to its reply.
async fn serve(own: Own, call: IncomingCall, open: OpenCall, lease: Duration, handed_back: CancellationToken) {
    let reply_to = call.reply_to.clone();
    let _beats = AbortOnDropHandle::new(tokio::spawn(stay_in_touch(reply_to.clone(), lease, open.stop.clone())));
    let slot = tokio::select! {
        slot = tokio::time::timeout(WAITS, own.slots.acquire()) => slot,
        () = open.stop.cancelled() => return,
        () = handed_back.cancelled() => return reply_to.send(OwnReply::Busy("the node drains")).await,
    };
    let Ok(Ok(_slot)) = slot else { return reply_to.send(OwnReply::Busy("all slots are taken")).await };
    reply_to.signal(SignalKind::Started, Bytes::new()).await;
    let context = context_of(call, open.stop.clone());
    // The call itself may panic as well as the future it returns.
    let work = AssertUnwindSafe(async { own.handler.call(context).await }).catch_unwind();
    let mut work = std::pin::pin!(work);
    let ended = tokio::select! {
        biased;
        () = open.stop.cancelled() => None,
        () = handed_back.cancelled() => {
            open.stop.cancel();
            return reply_to.send(OwnReply::Busy("the node drains")).await;
        }
        ended = &mut work => Some(ended),
    };
    match ended {
        Some(ended) if !open.stop.is_cancelled() => reply_to.send(reply_of(ended)).await,
        ended => {
            // What the handler returns now no longer counts. Its caller has ended the attempt by then; if the word to
            // stop was not about this attempt, the caller is not kept waiting.
            let has_ended = ended.is_some();
            drop(ended);
            let rest = async {
                if !has_ended {
                    let _ = tokio::time::timeout(STOPS_WITHIN, work).await;
                }
            };
            tokio::join!(tokio::time::sleep(STOPS_WITHIN), rest);
            let message = "the handler was asked to stop".to_owned();
            reply_to.send(OwnReply::Failed { permanent: false, message, retry_after: None }).await;
        }
    }
}

/// Sends a handler's reports to the node that holds the job, as signals, as handlers in any language send them.
struct CallerReporter(ReplyTo);

impl std::fmt::Debug for CallerReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallerReporter")
    }
}

impl Reporter for CallerReporter {
    fn progress<'a>(&'a self, _: &'a Arc<Job>, json: Bytes) -> BoxFuture<'a, ()> {
        Box::pin(self.0.signal(SignalKind::Progress, json))
    }

    fn log<'a>(&'a self, _: &'a Arc<Job>, line: String) -> BoxFuture<'a, ()> {
        Box::pin(self.0.signal(SignalKind::Log, line.into()))
    }

    fn step<'a>(&'a self, _: &'a Arc<Job>, call: StepCall) -> BoxFuture<'a, StepEnd> {
        Box::pin(async move { self.0.step(&call).await })
    }

    fn heartbeat(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.signal(SignalKind::Heartbeat, Bytes::new()))
    }
}

/// What the handler gets of a call.
fn context_of(call: IncomingCall, cancellation: CancellationToken) -> Context {
    let IncomingCall { job, round, attempt, max_attempts, deadline, headers, payload, reply_to, .. } = call;
    let named = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(TRACE_PARENT));
    let trace_id = named.and_then(|(_, named)| context::id_named(named));
    Context {
        job: Arc::new(job),
        payload,
        headers: Arc::new(headers),
        round,
        attempt,
        max_attempts,
        deadline: Instant::now() + deadline.since(now()),
        cancellation,
        reporter: Arc::new(CallerReporter(reply_to)),
        steps: Steps::default(),
        trace_id,
    }
}

/// Signals that the handler is alive, also while it waits for a slot. It is to stop if its caller says so, or says
/// nothing for a lease: then another node may have the job. A task of its own, so that a handler that blocks its thread
/// is not taken for a dead one.
async fn stay_in_touch(reply_to: ReplyTo, lease: Duration, stop: CancellationToken) {
    let mut answered = Instant::now();
    loop {
        tokio::time::sleep(BEATS_EVERY.min(lease / BEATS)).await;
        match reply_to.beat().await {
            Some(false) => answered = Instant::now(),
            Some(true) => return stop.cancel(),
            None if answered.elapsed() > lease => return stop.cancel(),
            None => {}
        }
    }
}

fn reply_of(ended: Result<Result<Success, HandlerError>, Box<dyn Any + Send>>) -> OwnReply {
    match ended {
        Ok(Ok(Success::Done { result, content_type })) => OwnReply::Done { result, content_type },
        Ok(Ok(Success::Snooze(wait))) => OwnReply::Snoozed(wait),
        Ok(Err(HandlerError { permanent, message, retry_after })) => {
            OwnReply::Failed { permanent, message, retry_after }
        }
        Err(panic) => {
            let message = format!("the handler panicked: {}", panic_text(&*panic));
            OwnReply::Failed { permanent: false, message, retry_after: None }
        }
    }
}
