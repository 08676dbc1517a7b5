//! The clock of an attempt: since when its handler works, and when it must be done.

use std::time::Instant;

use crate::attempt::node_ports::NodePorts;
use crate::attempt::running::{CurrentAttempt, RunningAttempt, of_current};
use crate::runtime::now;

/// Since when the handler has worked, and when it must be done.
pub(crate) fn clock(current: &CurrentAttempt) -> Option<(Instant, Instant)> {
    of_current(current, |running| running.at_work)?
}

/// When the current attempt must be done.
pub(crate) fn stops_at(current: &CurrentAttempt) -> Option<Instant> {
    clock(current).map(|(_, stop_at)| stop_at)
}

/// The handler has only begun now: its time counts from here.
pub(crate) fn restart_clock(ports: &NodePorts, current: &CurrentAttempt) {
    of_current(current, |running| {
        let begun = Instant::now();
        running.at_work = Some((begun, stop_at(ports, running, begun)));
    });
}

/// When an attempt must be done whose handler begins at `from`: after its time limit, or at the deadline of the run.
pub(crate) fn stop_at(ports: &NodePorts, running: &RunningAttempt, from: Instant) -> Instant {
    let job = &running.assignment.job;
    let limit = ports.routing.time_limit(job);
    let deadline = running.attempt_state.run.deadline(job.options.as_deref());
    let deadline = deadline.map(|deadline| from + deadline.since(now()));
    deadline.map_or(from + limit, |deadline| deadline.min(from + limit))
}
