//! Gates: the checks that a job must pass before it may start. Each gate has its own file; it answers for one job and
//! never waits.

pub(crate) mod handler_capacity;

use crate::attempt::assignment::Assignment;
use crate::shared::Shared;
use crate::shared::capacity::{CapacityPermit, Kind};

/// The gates' answer for a job.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It may start, with this permit, which goes back when it is dropped.
    Go(CapacityPermit),
    /// It may start only after another job of its kind gives its permit back.
    WhenFreed,
}

/// The kind within which jobs keep their order while a gate holds them up; `None`: no gate can hold this job up.
pub(crate) fn kind_of(shared: &Shared, assignment: &Assignment) -> Option<Kind> {
    handler_capacity::kind_of(shared, assignment)
}

/// Asks the gates about the first job of its kind.
pub(crate) fn ask(shared: &Shared, assignment: &Assignment) -> Answer {
    handler_capacity::ask(shared, assignment)
}
