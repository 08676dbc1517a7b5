//! An attempt's work: calls the handler, under its time limit, its lease and the node's drain.
//!
//! A handler that is done at its first step costs nothing but that step. Otherwise the attempt is entered among the
//! leases, and after [`LASTS`] a write makes the record say that it runs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use longshore_backbone::rarely::Rarely;
use longshore_backbone::records::Written;
use longshore_backbone::wire::{header, record};
use longshore_domain::protocol::Verdict;
use longshore_domain::publication::Published;
use longshore_domain::settlement::Outcome;
use longshore_domain::{ErrorKind, Failure, Run, RunId, RunState};
use tokio_util::sync::CancellationToken;

use crate::attempt::announce::announce;
use crate::attempt::assignment::Assignment;
use crate::attempt::clock::{clock, stop_at};
use crate::attempt::running::{CurrentAttempt, RunningAttempt};
use crate::attempt::stop::{self, End, Event, Handler, Owner, STOPS_WITHIN};
use crate::attempt::{faults, remote};
use crate::commit::follow_up::has_other_id;
use crate::concurrency::{SlotPermit, while_it_lasts};
use crate::handler::{BoxFuture, Context, HandlerError, Reporter, Steps, Success};
use crate::lease_keeper::Stop;
use crate::node_ports::NodePorts;
use crate::ports::{Ports, Rules as _, Server as _};
use crate::shared::log_run::{About, log_run};
use crate::supervision::panic_text;
use crate::trace::TRACE_PARENT;

/// A run that lasts longer has a record that says so; a shorter one is not worth the write.
const LASTS: Duration = Duration::from_millis(250);
/// Says that records are not stored: with a fault of the server all jobs of a node come here.
static NOT_STORED: Rarely = Rarely::once_in(Duration::from_secs(1));
/// Does the work of the current attempt; `reporter` takes what a handler inside the node says of it.
pub(crate) async fn perform(ports: &NodePorts, current: &CurrentAttempt, reporter: &Arc<dyn Reporter>) -> End {
    // Kept here until the handler is done, whatever becomes of the attempt meanwhile.
    let slots = slots_of(current);
    let context = match prepare(ports, current, reporter) {
        Ok(context) => context,
        Err(end) => return end,
    };
    if faults::are_set(ports) {
        return Box::pin(faults::perform(ports, current, context, slots)).await;
    }
    let token = context.cancellation.clone();
    let Some(handler) = ports.routing.handler(&context.job) else {
        let work = remote::perform(ports, current, context, slots.clone());
        return Box::pin(see_through(ports, current, guarded(slots, work), token)).await;
    };
    // The call itself may panic as well as the future it returns.
    let mut work = match catch_unwind(AssertUnwindSafe(|| handler.call(context))) {
        Ok(work) => AssertUnwindSafe(work).catch_unwind(),
        Err(panic) => return End::Outcome(panicked(&*panic)),
    };
    // Most handlers in the node's own process are done at the first step; they need neither a timer nor a lease.
    match futures_util::poll!(&mut work) {
        Poll::Ready(ended) => End::Outcome(outcome_of(ended)),
        Poll::Pending => Box::pin(see_through(ports, current, guarded(slots, work.map(outcome_of)), token)).await,
    }
}

fn slots_of(current: &CurrentAttempt) -> Option<Arc<SlotPermit>> {
    let current = current.lock().unwrap_or_else(PoisonError::into_inner);
    current.as_ref().and_then(|running| running.assignment.permits.slots.clone())
}

/// The work as long as the attempt has its slots; `None`: it has lost them.
pub(super) fn guarded<'a>(
    slots: Option<Arc<SlotPermit>>,
    work: impl Future<Output = Outcome> + Send + 'a,
) -> BoxFuture<'a, Option<Outcome>> {
    match slots {
        None => Box::pin(work.map(Some)),
        Some(slots) => Box::pin(async move { while_it_lasts(&slots, work).await }),
    }
}

/// Waits for an attempt that is not done at its first step.
pub(super) async fn see_through(
    ports: &NodePorts,
    current: &CurrentAttempt,
    mut work: BoxFuture<'_, Option<Outcome>>,
    token: CancellationToken,
) -> End {
    let Some((_, mut stop_at)) = clock(current) else { return End::NotOurs };
    let Some(lease) = enter(ports, current) else { return End::NotOurs };
    let mut lasts = std::pin::pin!(tokio::time::sleep(LASTS));
    let mut claimed = is_on_record(current);
    let mut claim: Option<BoxFuture<'_, Owner>> = None;
    let (end, handler) = loop {
        let event = tokio::select! {
            biased;
            outcome = &mut work => outcome.map_or(Event::SlotsLost, Event::Done),
            () = &mut lasts, if !claimed => {
                claimed = true;
                claim = Some(Box::pin(claim_running(ports, current)));
                continue;
            }
            // Beside the work, which goes on: without a quorum, the write may take a minute.
            owner = in_flight(&mut claim) => {
                claim = None;
                Event::Owned(owner)
            }
            () = lease.token.cancelled() => Event::Stopped { released: lease.is_released() },
            () = tokio::time::sleep_until(tokio::time::Instant::from_std(stop_at)) => {
                let Some((since, now_at)) = clock(current) else { return End::NotOurs };
                if now_at > stop_at {
                    stop_at = now_at;
                    continue;
                }
                Event::OutOfTime { limit: stop_at.saturating_duration_since(since) }
            }
        };
        if let Some(ended) = stop::by(event) {
            break ended;
        }
    };
    if handler != Handler::Ended {
        token.cancel();
    }
    if handler == Handler::Stops {
        let _ = tokio::time::timeout(STOPS_WITHIN, &mut work).await;
    }
    if matches!(end, End::NotOurs) {
        return end;
    }
    // The attempt's end is written on the revision that this write leaves, so it waits for the write.
    let owner = if claim.is_some() { in_flight(&mut claim).await } else { Owner::Us };
    if lease.is_lost() {
        stop_as_lost(current);
    }
    stop::at_last(end, owner, lease.is_lost())
}

/// Its lease was not renewed in time, so that its handler was stopped, and its result counts for nothing.
fn stop_as_lost(current: &CurrentAttempt) {
    if let Some(running) = current.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        let about = About::run(&running.attempt_state.run).traced(running.assignment.payload.trace_id());
        log_run!(warn, about, "lease lost: its handler was stopped");
    }
}

/// The result of the claim that is being written; never resolves if there is none.
async fn in_flight(claim: &mut Option<BoxFuture<'_, Owner>>) -> Owner {
    match claim {
        Some(claim) => claim.await,
        None => std::future::pending().await,
    }
}

pub(super) fn failed(kind: ErrorKind, message: impl Into<String>) -> Outcome {
    Outcome::Failed { failure: Failure::new(kind, message), retry_after: None }
}

fn prepare(ports: &NodePorts, current: &CurrentAttempt, reporter: &Arc<dyn Reporter>) -> Result<Context, End> {
    let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
    let running = current.as_mut().ok_or(End::NotOurs)?;
    let now = Instant::now();
    // The last checks before the handler is called: the node may have been frozen since the attempt began.
    let assignment = &running.assignment;
    if assignment.lease_is_over(now, ports.backbone.storage().lease) || !assignment.permits.has_slots(now) {
        return Err(End::NotOurs);
    }
    if !ports.may_start(&running.assignment.job) {
        return Err(End::Outcome(Outcome::Released));
    }
    let deadline = stop_at(ports, running, now);
    running.at_work = Some((now, deadline));
    let RunningAttempt { assignment, attempt_state, .. } = running;
    Ok(Context {
        job: Arc::clone(&assignment.job),
        payload: assignment.payload.body.clone(),
        headers: Arc::new(own_headers(assignment, &attempt_state.run)),
        round: attempt_state.run.round,
        attempt: attempt_state.run.attempt,
        max_attempts: attempt_state.run.max_attempts,
        deadline,
        cancellation: CancellationToken::new(),
        reporter: Arc::clone(reporter),
        steps: Steps::default(),
        trace_id: assignment.payload.trace_id(),
    })
}

/// The client's own headers, for a handler in this process; the trace context is the attempt's own.
fn own_headers(assignment: &Assignment, run: &Run) -> Vec<(String, String)> {
    let mut headers = header::own(assignment.headers());
    if let (Some(trace), Some(attempt)) = (&assignment.payload.trace, run.attempts.last()) {
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case(TRACE_PARENT));
        headers.push((TRACE_PARENT.to_owned(), trace.text(trace.attempt(run, attempt))));
    }
    headers
}

/// Enters the attempt among the leases.
pub(crate) fn enter(ports: &NodePorts, current: &CurrentAttempt) -> Option<Stop> {
    let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
    let RunningAttempt { assignment, .. } = current.as_mut()?;
    let message = assignment.arrival.holding.message.clone();
    let entry = assignment.entry.take();
    assignment.entry =
        entry.or_else(|| ports.book.enter(&assignment.ack_token, message, &assignment.job, assignment.leased_from));
    assignment.entry.as_ref().map(|entry| entry.stop.clone())
}

fn is_on_record(current: &CurrentAttempt) -> bool {
    current
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .is_some_and(|running| running.attempt_state.is_stored)
}

/// The run lasts: stores that it runs. Says whether it is still ours.
pub(crate) async fn claim_running<P: Ports>(ports: &P, current: &CurrentAttempt) -> Owner {
    let (mut run, mut expected, arrival, payload) = {
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(RunningAttempt { attempt_state, assignment, .. }) = current.as_mut() else { return Owner::Another };
        ports.sign(&mut attempt_state.run);
        (attempt_state.run.clone(), attempt_state.expected, assignment.arrival.clone(), assignment.payload.clone())
    };
    let revision = loop {
        match ports.server().write_record(&run, expected).await {
            Ok(Written::Won(revision)) => break Some(revision),
            // The record that it was based on is gone.
            Ok(Written::Lost(None)) if expected != 0 => expected = 0,
            Ok(Written::Lost(Some(found))) => match ports.server().on_arrival(Some(&found.run), &arrival) {
                Verdict::BeginAnew if expected != found.revision => {
                    if has_other_id(ports.server(), &found.run, &arrival).await {
                        return Owner::Another;
                    }
                    expected = found.revision;
                }
                Verdict::Occupied => {
                    (run.run_id, expected) = (RunId::derived_at(&run.run_id, arrival.holding.message.at), 0);
                }
                _ => {
                    let state = found.run.state;
                    let about = About::run(&run).traced(payload.trace_id());
                    log_run!(info, about, state = state.as_str(), "stopped: the run went on elsewhere");
                    return if state == RunState::Cancelled { Owner::Cancelled } else { Owner::Another };
                }
            },
            Ok(Written::Lost(None)) => return Owner::Another,
            Err(error) => {
                // Without a record the work goes on as it began. Its end is decided on the same revision, or on this
                // very write if it was stored after all.
                if let Some(times) = NOT_STORED.happened("", Instant::now()) {
                    let about = About::run(&run).traced(payload.trace_id());
                    log_run!(warn, about, times, "cannot store that the attempt runs: {error}");
                }
                break None;
            }
        }
    };
    if let Some(RunningAttempt { attempt_state, assignment, .. }) =
        current.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
    {
        match revision {
            Some(revision) => {
                if attempt_state.run.run_id != run.run_id {
                    attempt_state.run.run_id = run.run_id.clone();
                    (attempt_state.published, attempt_state.lines) = (Published::nothing(), None);
                    assignment.arrival.has_derived_id = false;
                }
                attempt_state.expected = revision;
                attempt_state.is_stored = true;
            }
            None => {
                attempt_state.unclear = Some(run.token.clone());
                return Owner::Us;
            }
        }
    }
    announce(ports, current).await;
    Owner::Us
}

pub(super) fn panicked(panic: &(dyn Any + Send)) -> Outcome {
    failed(ErrorKind::Panic, format!("the handler panicked: {}", panic_text(panic)))
}

pub(super) fn outcome_of(ended: Result<Result<Success, HandlerError>, Box<dyn Any + Send>>) -> Outcome {
    let result = match ended {
        Ok(result) => result,
        Err(panic) => return panicked(&*panic),
    };
    match result {
        Ok(Success::Done { result, content_type }) => {
            Outcome::Completed(record::keep(&result, content_type.as_deref()))
        }
        Ok(Success::Snooze(wait)) => Outcome::Snoozed(wait),
        Err(error) => {
            let kind = if error.permanent { ErrorKind::Permanent } else { ErrorKind::Retryable };
            Outcome::Failed { failure: Failure::new(kind, error.message), retry_after: error.retry_after }
        }
    }
}
