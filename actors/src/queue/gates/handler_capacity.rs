//! The gate of remote handlers: they have at most as many jobs at once as their capacity allows.

use crate::attempt::assignment::{Assignment, Start};
use crate::queue::gates::answer::{Answer, Permits};
use crate::shared::routing::Routing;

/// Whether the job goes to remote handlers: an invalid job calls no handler, and a handler in this node has as much
/// capacity as there are workers.
pub(crate) fn applies_to(routing: &Routing, assignment: &Assignment) -> bool {
    !matches!(assignment.start, Start::Invalid(_)) && routing.handler(&assignment.job).is_none()
}

/// Whether the job's handlers have capacity left, which is not taken yet.
pub(crate) fn has_room(routing: &Routing, assignment: &Assignment) -> bool {
    routing.capacity.free(&routing.capacity_of(&assignment.job)) > 0
}

/// Whether the job's handlers can take another job.
pub(crate) fn ask(routing: &Routing, assignment: &Assignment) -> Answer {
    routing.discovery.saw_remote();
    match routing.capacity.take(routing.capacity_of(&assignment.job)) {
        Some(permit) => Answer::Go(Permits { _capacity: Some(permit), ..Permits::default() }),
        None => Answer::WhenFreed(None),
    }
}
