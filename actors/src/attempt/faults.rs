//! An attempt's work with the faults on purpose of its type: in place of the handler, beside it, before and after it.
//!
//! What an attempt meets is said where its end is said: an error that a fault caused begins with `injected: ` and its
//! kind. A delay causes none by itself, so it is a line of the attempt's log. Each is counted.

use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

use longshore_domain::fault::{Fault, FaultKind, Moment};
use longshore_domain::outcome::Outcome;
use longshore_domain::{DurationText, ErrorKind, JobType, SmolStr};
use tokio::sync::oneshot;

use crate::attempt::announce::announce;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::progress;
use crate::attempt::running::{CurrentAttempt, of_current};
use crate::attempt::stop::{End, panicked};
use crate::attempt::watch::{guarded, see_through};
use crate::handlers::handler::Context;
use crate::limits::concurrency::SlotPermit;
use crate::ports::RunPorts as _;
use crate::runtime::{Unpoisoned as _, now};

type Struck = (FaultKind, Fault);

/// Whether an attempt may meet a fault.
pub(super) fn are_set(ports: &NodePorts) -> bool {
    ports.run_time_settings.faults.any() && ports.policies().faults_allowed
}

/// The fault that an attempt of this type meets at this moment, counted.
fn strike(ports: &NodePorts, job_type: &JobType, moment: Moment<'_>) -> Option<Struck> {
    let struck = ports.run_time_settings.faults.strike(job_type, moment, now(), rand::random)?;
    ports.metrics.faults_injected.with_label_values(&[struck.0.as_str()]).inc();
    Some(struck)
}

/// Does the work of the current attempt, while faults are set; `call` calls its handler.
pub(super) async fn perform<W: Future<Output = Outcome> + Send>(
    ports: &NodePorts,
    current: &CurrentAttempt,
    context: Context,
    slots: Option<Arc<SlotPermit>>,
    call: impl FnOnce(Context, Option<Arc<SlotPermit>>) -> W + Send,
) -> End {
    let (token, job_type) = (context.cancellation.clone(), context.job.job_type.clone());
    let before = strike(ports, &job_type, Moment::Before);
    let instead = strike(ports, &job_type, Moment::Instead);
    let slows = instead.as_ref().or(before.as_ref()).map(|(kind, _)| *kind);
    let held = slots.clone();
    let work = async move {
        if let Some((_, fault)) = before {
            delay(ports, current, &fault).await;
        }
        let work = call(context, held);
        match instead {
            Some((kind, _)) => in_place_of(ports, &job_type, kind, work).await,
            None => after(ports, &job_type, until_a_step_fails(fails_at_step(current), work).await),
        }
    };
    let mut end = see_through(ports, current, guarded(slots, work), token).await;
    if let (Some(kind), End::Outcome(Outcome::Failed { failure, .. })) = (slows, &mut end)
        && failure.kind == ErrorKind::Timeout
    {
        // The time limit is over because of the fault.
        failure.message = format!("{}: {}", mark(kind), failure.message);
    }
    end
}

/// The words by which an error is known to be made.
fn mark(kind: FaultKind) -> String {
    format!("injected: {}", kind.as_str())
}

async fn delay(ports: &NodePorts, current: &CurrentAttempt, fault: &Fault) {
    let delay = Duration::from_millis(fault.delay_ms.unwrap_or_default());
    announce(ports, current).await;
    let line = format!("{} of {} ms", mark(FaultKind::Latency), delay.as_millis());
    progress::log(ports, current, line.as_bytes()).await;
    tokio::time::sleep(delay).await;
}

/// What a fault makes of the attempt instead of what its handler would.
async fn in_place_of(
    ports: &NodePorts,
    job_type: &JobType,
    kind: FaultKind,
    work: impl Future<Output = Outcome>,
) -> Outcome {
    let mark = mark(kind);
    match kind {
        FaultKind::Permanent => Outcome::failed(ErrorKind::Permanent, mark),
        FaultKind::Panic => catch_unwind(|| panic!("{mark}")).unwrap_or_else(|panic| panicked(&*panic)),
        FaultKind::Hang => std::future::pending().await,
        FaultKind::LostHeartbeat => {
            let promised = ports.policies().of(job_type).heartbeat.unwrap_or(ports.lease());
            let mut silent = std::pin::pin!(tokio::time::sleep(promised));
            tokio::select! {
                () = &mut silent => {}
                _ = work => silent.await,
            }
            let promised = DurationText(promised);
            Outcome::failed(ErrorKind::LeaseExpired, format!("{mark}: no signal from the handler for {promised}"))
        }
        _ => Outcome::failed(ErrorKind::Retryable, mark),
    }
}

/// What a fault makes of a success.
fn after(ports: &NodePorts, job_type: &JobType, outcome: Outcome) -> Outcome {
    let is_done = matches!(outcome, Outcome::Completed(_));
    match is_done.then(|| strike(ports, job_type, Moment::After)).flatten() {
        Some((kind, _)) => {
            let message = format!("{}: the handler succeeded, its reply is dropped", mark(kind));
            Outcome::failed(ErrorKind::Retryable, message)
        }
        None => outcome,
    }
}

/// Says at which step the current attempt fails.
fn fails_at_step(current: &CurrentAttempt) -> oneshot::Receiver<SmolStr> {
    let (fail, fails) = oneshot::channel();
    of_current(current, |running| running.fail_at_step = Some(fail));
    fails
}

/// The work, or the failure at one of its steps, whatever the handler makes of that.
async fn until_a_step_fails(mut fails: oneshot::Receiver<SmolStr>, work: impl Future<Output = Outcome>) -> Outcome {
    let at_step = |step| Outcome::failed(ErrorKind::Retryable, format!("{}: {step}", mark(FaultKind::FailAtStep)));
    tokio::select! {
        biased;
        Ok(step) = &mut fails => at_step(step),
        outcome = work => fails.try_recv().map_or(outcome, at_step),
    }
}

/// Whether the current attempt fails as its handler begins this step; it is over then.
pub(super) fn strike_at_step(ports: &NodePorts, current: &CurrentAttempt, step: &SmolStr) -> bool {
    if !are_set(ports) {
        return false;
    }
    let mut current = current.lock().unpoisoned();
    let Some(running) = current.as_mut() else { return false };
    // None: the attempt began before any fault was set.
    let Some(fail) = running.fail_at_step.take() else { return false };
    if strike(ports, &running.assignment.job.job_type, Moment::Step(step)).is_none() {
        running.fail_at_step = Some(fail);
        return false;
    }
    fail.send(step.clone()).is_ok()
}
