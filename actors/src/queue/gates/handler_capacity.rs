//! The gate of remote handlers: they have at most as many jobs at once as their capacity allows.

use crate::attempt::assignment::{Assignment, Start};
use crate::queue::gates::Answer;
use crate::shared::capacity::Kind;
use crate::shared::routing::Routing;

/// The jobs of one tenant and type share their handlers. An invalid job calls no handler, and a handler in this node
/// has as much capacity as there are workers.
pub(crate) fn kind_of(routing: &Routing, assignment: &Assignment) -> Option<Kind> {
    let is_invalid = matches!(assignment.start, Start::Invalid(_));
    let is_here = is_invalid || routing.handler(&assignment.job).is_some();
    (!is_here).then(|| Kind::of(&assignment.job))
}

/// Whether the job's handlers can take another job.
pub(crate) fn ask(routing: &Routing, assignment: &Assignment) -> Answer {
    routing.discovery.saw_remote();
    routing.capacity.take(routing.capacity_of(&assignment.job)).map_or(Answer::WhenFreed, Answer::Go)
}
