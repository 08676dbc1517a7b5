//! The gate of remote handlers: they have at most as many jobs at once as their capacity allows.

use std::time::Instant;

use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;
use crate::queue::gates::answer::Answer;
use crate::routing::Routing;
use crate::shared::capacity::CapacityPermit;

/// Whether the job goes to remote handlers: an invalid job calls no handler, and a handler in this node has as much
/// capacity as there are workers.
pub(crate) fn applies_to(routing: &Routing, assignment: &Assignment) -> bool {
    assignment.calls_handler() && routing.handler(&assignment.job).is_none()
}

/// Why the job's handlers could not take it, if they could not; no capacity is taken.
pub(crate) fn lacks(routing: &Routing, assignment: &Assignment) -> Option<Answer> {
    let capacity = routing.capacity_of(&assignment.job);
    (routing.capacity.free(&capacity) == 0).then(|| until(capacity.opens))
}

fn until(opens: Option<Instant>) -> Answer {
    opens.map_or(Answer::WhenFreed(None), Answer::NoHandlerBefore)
}

/// The trial whether the job has handlers, if that is not known and no other job has it: one job at a time tries.
pub(crate) fn trial(routing: &Routing, assignment: &Assignment) -> Option<CapacityPermit> {
    let capacity = applies_to(routing, assignment).then(|| routing.trial_of(&assignment.job)).flatten()?;
    routing.capacity.take(capacity)
}

/// Whether the job's handlers can take another job.
pub(crate) fn ask(routing: &Routing, assignment: &Assignment) -> Answer {
    routing.discovery.saw_remote();
    let capacity = routing.capacity_of(&assignment.job);
    let opens = capacity.opens;
    match routing.capacity.take(capacity) {
        Some(permit) => Answer::Go(Permits { capacity: Some(permit), ..Permits::default() }),
        None => until(opens),
    }
}
