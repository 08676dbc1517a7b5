//! Gates: the checks that a job must pass before it may start. Each gate has its own file; it answers for one job and
//! never waits.

pub(crate) mod handler_capacity;

use std::sync::Arc;

use crate::attempt::assignment::Assignment;
use crate::shared::capacity::{CapacityPermit, Kind};
use crate::shared::routing::Routing;

/// The gates' answer for a job.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It may start, with this permit, which goes back when it is dropped.
    Go(CapacityPermit),
    /// It may start only after another job of its kind gives its permit back.
    WhenFreed,
}

/// The gates of a node.
#[derive(Clone)]
pub(crate) struct Gates {
    pub(crate) routing: Arc<Routing>,
}

impl Gates {
    /// The kind within which jobs keep their order while a gate holds them up; `None`: no gate can hold this job up.
    pub(crate) fn kind_of(&self, assignment: &Assignment) -> Option<Kind> {
        handler_capacity::kind_of(&self.routing, assignment)
    }

    /// Asks the gates about the first job of its kind.
    pub(crate) fn ask(&self, assignment: &Assignment) -> Answer {
        handler_capacity::ask(&self.routing, assignment)
    }

    /// How many jobs of a kind could start at once, if its handlers are remote.
    pub(crate) fn free_places(&self, kind: &Kind) -> usize {
        self.routing.free_places(kind, 0)
    }

    /// Jobs for remote handlers are there, though none of them can start.
    pub(crate) fn saw_remote(&self) {
        self.routing.discovery.saw_remote();
    }
}
