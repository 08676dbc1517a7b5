//! Unresponsive handlers: one that blocks its thread ends neither at its time limit nor when it is asked to stop.
//!
//! The lease of such an attempt is kept until its time limit is over, as for any other. Then the attempt is settled as
//! a time-out and the log names the handler; the job goes on elsewhere. The worker is replaced, up to [`SPARE_THREADS`]
//! on a node, because each such handler costs a thread of the runtime; above that the node says that it is not ready. A
//! handler that comes back after all finds that its job is gone, and gives the thread back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use longshore_domain::outcome::Outcome;
use longshore_domain::{ErrorKind, Queue};

use crate::attempt::conclude;
use crate::attempt::node_ports::NodePorts;
use crate::attempt::running::{CurrentAttempt, RunningAttempt};
use crate::attempt::stop::STOPS_WITHIN;
use crate::attempt::watch::enter;
use crate::runtime::Unpoisoned as _;
use crate::runtime::health::Health;
use crate::runtime::log_run::{About, log_run};

/// How many handlers may block a thread each before the node is not ready. A runtime needs more threads than this.
pub const SPARE_THREADS: usize = 2;

pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(1);
/// If a handler has not yielded once for this long, the check enters its attempt among the leases.
const SILENT: Duration = Duration::from_secs(1);
/// The extra time that a handler gets beyond its limit and its time to stop.
const GRACE: Duration = Duration::from_secs(2);

const RESPONDS: u8 = 0;
const UNRESPONSIVE: u8 = 1;
const REPLACED: u8 = 2;

/// A worker's current attempt, and whether its handler still responds; shared by the worker and its supervisor.
#[derive(Clone, Default)]
pub(crate) struct Place {
    pub(crate) current: CurrentAttempt,
    responsiveness: Arc<AtomicU8>,
}

impl Place {
    /// The handler has returned, in time or not. Says whether another worker has replaced this one.
    pub(crate) fn came_back(&self, health: &Health) -> bool {
        if self.responsiveness.load(Ordering::Acquire) == RESPONDS {
            return false;
        }
        health.unresponsive.fetch_sub(1, Ordering::Relaxed);
        self.responsiveness.swap(RESPONDS, Ordering::AcqRel) == REPLACED
    }
}

/// Checks one worker; true if it is to be replaced. It waits for nothing: its caller is a supervisor.
pub(crate) fn check(ports: &Arc<NodePorts>, health: &Health, queue: &Queue, number: usize, place: &Place) -> bool {
    let (current, now) = (&place.current, Instant::now());
    let (is_silent, is_unresponsive) = {
        let current = current.lock().unpoisoned();
        let Some(RunningAttempt { assignment, at_work: Some((since, stop_at)), .. }) = current.as_ref() else {
            return false;
        };
        let is_silent = assignment.entry.is_none() && now.duration_since(*since) > SILENT;
        (is_silent, now.saturating_duration_since(*stop_at) > STOPS_WITHIN + GRACE)
    };
    if !is_unresponsive {
        if is_silent {
            // It has not yielded once, so its worker has not entered it yet; its lease must be kept all the same.
            let _ = enter(ports, current);
        }
        return false;
    }
    let replaced = health.unresponsive() < SPARE_THREADS;
    let running = {
        let mut current = current.lock().unpoisoned();
        let Some(running) = current.take() else { return false };
        // Before the worker can see that its job is gone.
        health.unresponsive.fetch_add(1, Ordering::Relaxed);
        place.responsiveness.store(if replaced { REPLACED } else { UNRESPONSIVE }, Ordering::Release);
        running
    };
    let RunningAttempt { assignment, attempt_state, .. } = running;
    let job_type = assignment.job.job_type.clone();
    ports.metrics.of(&assignment.job).unresponsive.inc();
    let about = About::run(&attempt_state.run).traced(assignment.payload.trace_id());
    log_run!(error, about, %queue, worker = number, %job_type, replaced,
        "the handler neither ended in time nor reacted to its cancellation: does it block its thread?");
    let message = "the handler neither ended within its time limit nor reacted to its cancellation";
    let outcome = Outcome::failed(ErrorKind::Timeout, message);
    let is_lost = assignment.entry.as_ref().is_some_and(|entry| entry.stop.is_lost());
    if is_lost {
        assignment.ack_token.abandon();
    } else {
        let ports = Arc::clone(ports);
        tokio::spawn(async move {
            conclude::judge(&*ports, assignment, attempt_state, outcome).await;
        });
    }
    replaced
}
