//! An attempt's work: calls the handler, wherever it is. A handler that is done at its first step costs nothing but
//! that step; any other is watched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use futures_util::FutureExt as _;
use longshore_backbone::wire::header;
use longshore_domain::Run;
use longshore_domain::outcome::Outcome;
use tokio_util::sync::CancellationToken;

use crate::attempt::assignment::Assignment;
use crate::attempt::clock::stop_at;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::running::{CurrentAttempt, RunningAttempt, of_current};
use crate::attempt::stop::{End, outcome_of, panicked};
use crate::attempt::watch::{guarded, see_through};
use crate::attempt::{faults, remote};
use crate::handlers::handler::{Context, Reporter, Steps};
use crate::limits::concurrency::SlotPermit;
use crate::runtime::Unpoisoned as _;
use crate::trace::TRACE_PARENT;

/// Does the work of the current attempt; `reporter` takes what a handler inside the node says of it.
pub(crate) async fn perform(ports: &NodePorts, current: &CurrentAttempt, reporter: &Arc<dyn Reporter>) -> End {
    // Kept here until the handler is done, whatever becomes of the attempt meanwhile.
    let slots = of_current(current, |running| running.assignment.permits.slots.clone()).flatten();
    let context = match prepare(ports, current, reporter) {
        Ok(context) => context,
        Err(end) => return end,
    };
    if faults::are_set(ports) {
        let call = |context, slots| handle(ports, current, context, slots);
        return Box::pin(faults::perform(ports, current, context, slots, call)).await;
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

/// Calls the handler, wherever it is.
async fn handle(
    ports: &NodePorts,
    current: &CurrentAttempt,
    context: Context,
    slots: Option<Arc<SlotPermit>>,
) -> Outcome {
    let Some(handler) = ports.routing.handler(&context.job) else {
        return remote::perform(ports, current, context, slots).await;
    };
    let work = AssertUnwindSafe(async { handler.call(context).await });
    outcome_of(work.catch_unwind().await)
}

fn prepare(ports: &NodePorts, current: &CurrentAttempt, reporter: &Arc<dyn Reporter>) -> Result<Context, End> {
    let mut current = current.lock().unpoisoned();
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
