//! Remote handlers: any NATS subscription or micro service, in any language.
//!
//! A job is a request on its type's subject. The lease is kept by the node for as long as the time limit allows, so a
//! slow handler is never run twice for being slow; only where a heartbeat was promised does silence end the attempt.

use std::time::{Duration, Instant};

use longshore_backbone::Headers;
use longshore_backbone::wire::header::{carry_on, names};
use longshore_backbone::wire::record;
use longshore_backbone::work::{Call, HandlerReply, Reply, Signal, SignalKind};
use longshore_domain::policy::TypePolicy;
use longshore_domain::settlement::Outcome;
use longshore_domain::{DurationText, ErrorKind, Failure, Timestamp};

use crate::handler::Context;
use crate::perform::{InWork, Slot, announce};
use crate::progress;
use crate::shared::{Shared, now};

/// The server says at once that nobody is subscribed. Silence for this long means that somebody is.
const SOMEBODY_THERE: Duration = Duration::from_millis(50);
/// What a handler without room is given to find some, where it does not say.
const BUSY: Duration = Duration::from_secs(1);

/// Has the job in the slot done by whoever handles its type.
pub(crate) async fn perform(shared: &Shared, slot: &Slot, context: Context) -> Outcome {
    let headers = headers(slot, &context);
    let mut call = shared.caller.call(&context.job, headers, context.payload.clone()).await;
    let guard = CancelOnDrop { shared, context: &context, done: false };
    let outcome = listen(shared, slot, &context, &mut call).await;
    guard.done();
    outcome
}

/// Tells the handler when nobody waits for it any more: the attempt was cancelled, or is over.
struct CancelOnDrop<'a> {
    shared: &'a Shared,
    context: &'a Context,
    done: bool,
}

impl CancelOnDrop<'_> {
    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if !self.done {
            let (caller, job) = (self.shared.caller.clone(), self.context.job.clone());
            tokio::spawn(async move { caller.cancel(&job).await });
        }
    }
}

async fn listen(shared: &Shared, slot: &Slot, context: &Context, call: &mut Call) -> Outcome {
    let promised = shared.heartbeat(&context.job);
    let mut heard = Instant::now();
    let mut announced = false;
    let mut told_to_stop = false;
    loop {
        let silence = if announced { promised.map(|every| heard + every) } else { Some(heard + SOMEBODY_THERE) };
        let silence = silence.map(tokio::time::Instant::from_std);
        tokio::select! {
            biased;
            // Signals first: those that were sent before the reply lie in the channel when it comes.
            Some(signal) = call.signals.recv() => {
                heard = Instant::now();
                if !announced {
                    announced = true;
                    announce(shared, slot).await;
                }
                take_signal(shared, slot, context, signal).await;
            }
            reply = &mut call.reply => return match reply {
                Ok(Reply::NobodyThere) => Outcome::NoHandler,
                Ok(Reply::NotSent) => failed(ErrorKind::Retryable, "the request was lost with the connection to NATS"),
                Ok(Reply::Unreadable(reason)) => {
                    failed(ErrorKind::Retryable, format!("the handler's reply cannot be read: {reason}"))
                }
                Ok(Reply::Answer(reply)) => {
                    if !announced {
                        announce(shared, slot).await;
                    }
                    outcome_of(*reply, shared.policy(&context.job))
                }
                Err(_) => failed(ErrorKind::Retryable, "the connection to the handler was lost"),
            },
            () = context.cancellation.cancelled(), if !told_to_stop => {
                told_to_stop = true;
                shared.caller.cancel(&context.job).await;
            }
            () = wait_until(silence) => {
                if announced {
                    let silent = promised.map(DurationText).unwrap_or_default();
                    return failed(ErrorKind::LeaseExpired, format!("no signal from the handler for {silent}"));
                }
                announced = true;
                announce(shared, slot).await;
            }
        }
    }
}

async fn wait_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn take_signal(shared: &Shared, slot: &Slot, context: &Context, signal: Signal) {
    let job = &context.job;
    match &signal.kind {
        SignalKind::Started | SignalKind::Heartbeat => {}
        SignalKind::Progress(body) => progress::tell(shared, slot, body).await,
        SignalKind::Log(body) => {
            let line = String::from_utf8_lossy(&body[..body.len().min(4_096)]).into_owned();
            tracing::info!(run_id = %job.run_id, tenant = %job.tenant, attempt = context.attempt, "handler: {line}");
        }
    }
    shared.caller.answer(signal, context.cancellation.is_cancelled()).await;
}

fn headers(slot: &Slot, context: &Context) -> Headers {
    let slot = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut headers = match slot.as_ref() {
        Some(InWork { assignment, course, .. }) => carry_on(assignment.headers(), &course.run, context.attempt, None),
        None => Headers::new(),
    };
    let job = &context.job;
    let left = context.deadline.saturating_duration_since(Instant::now());
    let deadline: Timestamp = now().plus(left);
    headers.insert(names::TENANT, job.tenant.as_str());
    headers.insert(names::QUEUE, job.queue.as_str());
    headers.insert(names::PRIORITY, job.priority.to_string());
    headers.insert(names::TYPE, job.job_type.as_str());
    headers.insert(names::MAX_ATTEMPTS, context.max_attempts.to_string());
    headers.insert(names::DEADLINE, deadline.to_string());
    headers
}

fn failed(kind: ErrorKind, message: impl Into<String>) -> Outcome {
    Outcome::Failed { failure: Failure::new(kind, message), retry_after: None }
}

/// Reads a handler's reply by the contract (section 6).
fn outcome_of(reply: HandlerReply, policy: &TypePolicy) -> Outcome {
    if let Some(wait) = reply.snooze {
        return Outcome::Snoozed(wait);
    }
    let Some((code, text)) = reply.error else {
        return Outcome::Completed(record::keep(&reply.payload, reply.content_type.as_deref()));
    };
    if code == 429 && reply.retry_after.is_none() && reply.retryable.is_none() {
        return Outcome::Busy(BUSY);
    }
    let retryable = reply.retryable.unwrap_or_else(|| is_retryable(code, policy));
    let kind = if retryable { ErrorKind::Retryable } else { ErrorKind::Permanent };
    let said = String::from_utf8_lossy(&reply.payload);
    let message = match (text.is_empty(), said.trim().is_empty()) {
        (false, true) => format!("{code}: {text}"),
        (true, _) => format!("{code}: {said}"),
        (false, false) => format!("{code}: {text}: {said}"),
    };
    Outcome::Failed { failure: Failure::new(kind, message), retry_after: reply.retry_after }
}

/// 4xx is the job's own fault and no attempt helps, but for those that speak of time or load.
fn is_retryable(code: u16, policy: &TypePolicy) -> bool {
    if policy.permanent_codes.contains(&code) {
        return false;
    }
    policy.retryable_codes.contains(&code) || !(400..500).contains(&code) || matches!(code, 408 | 425 | 429)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn said(change: impl FnOnce(&mut HandlerReply)) -> String {
        let mut reply = HandlerReply::default();
        let policy = TypePolicy { retryable_codes: vec![409], permanent_codes: vec![501], ..TypePolicy::default() };
        change(&mut reply);
        match outcome_of(reply, &policy) {
            Outcome::Completed(_) => "completed".to_owned(),
            Outcome::Failed { failure, retry_after } => {
                format!("{:?} {} {retry_after:?}", failure.kind, failure.message)
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_decision_table_of_replies() {
        let error = |code: u16| move |reply: &mut HandlerReply| reply.error = Some((code, "no".to_owned()));
        assert_eq!(said(|_| ()), "completed");
        assert_eq!(said(error(422)), "Permanent 422: no None");
        for code in [408, 425, 500, 503, 200] {
            assert_eq!(said(error(code)), format!("Retryable {code}: no None"));
        }
        assert_eq!(said(error(409)), "Retryable 409: no None");
        assert_eq!(said(error(501)), "Permanent 501: no None");
        assert_eq!(said(error(429)), "Busy(1s)");
        let later = |reply: &mut HandlerReply| {
            reply.error = Some((429, "slow down".to_owned()));
            reply.retry_after = Some(Duration::from_secs(30));
        };
        assert_eq!(said(later), "Retryable 429: slow down Some(30s)");
        let again = |reply: &mut HandlerReply| {
            reply.error = Some((422, String::new()));
            reply.retryable = Some(true);
            reply.payload = Bytes::from_static(b"body");
        };
        assert_eq!(said(again), "Retryable 422: body None");
        assert_eq!(said(|reply| reply.snooze = Some(Duration::from_secs(300))), "Snoozed(300s)");
    }
}
