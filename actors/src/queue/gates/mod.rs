//! Gates: what a job has to pass before it may start. A gate is a file; it answers for one job and never waits.

pub(crate) mod handler_capacity;

use crate::attempt::assignment::Assignment;
use crate::shared::Shared;
use crate::shared::capacity::{CapacityPermit, Kind};

/// What the gates say of a job.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It may start, with this permit, which goes back when it is dropped.
    Go(CapacityPermit),
    /// Not before a permit comes back that another job of its kind holds.
    WhenFreed,
}

/// The jobs among which this one keeps its order where a gate holds them up; `None`: no gate can hold it up.
pub(crate) fn kind_of(shared: &Shared, assignment: &Assignment) -> Option<Kind> {
    handler_capacity::kind_of(shared, assignment)
}

/// Asks the gates for a job that is first of its kind.
pub(crate) fn ask(shared: &Shared, assignment: &Assignment) -> Answer {
    handler_capacity::ask(shared, assignment)
}
