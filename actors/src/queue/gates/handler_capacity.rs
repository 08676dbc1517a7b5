//! The gate of handlers outside this node: no more jobs are with them at once than they have capacity for.

use crate::attempt::assignment::{Assignment, Start};
use crate::queue::gates::Answer;
use crate::shared::Shared;
use crate::shared::capacity::Kind;

/// Jobs of one tenant's type share its handlers. No handler is called for an invalid job, and a handler in this node has
/// as much capacity as there are workers.
pub(crate) fn kind_of(shared: &Shared, assignment: &Assignment) -> Option<Kind> {
    let is_invalid = matches!(assignment.start, Start::Invalid(_));
    let is_here = is_invalid || shared.handler(&assignment.job).is_some();
    (!is_here).then(|| Kind::of(&assignment.job))
}

/// Whether the job's handlers take another one.
pub(crate) fn ask(shared: &Shared, assignment: &Assignment) -> Answer {
    shared.discovery.saw_remote();
    shared.handler_capacity.take(shared.capacity_of(&assignment.job)).map_or(Answer::WhenFreed, Answer::Go)
}
