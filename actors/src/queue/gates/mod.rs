//! Gates: the checks that a job must pass before it may start. Each gate has its own file; it answers for one job and
//! never waits.

pub(crate) mod handler_capacity;

use std::sync::Arc;
use std::time::Instant;

use longshore_domain::run::DeferReason;

use crate::attempt::assignment::Assignment;
use crate::queue::blocked::Room;
use crate::shared::capacity::CapacityPermit;
use crate::shared::gate_news::GateNews;
use crate::shared::kind::Kind;
use crate::shared::routing::Routing;

/// The gates' answer for a job.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It may start, with these permits.
    Go(Permits),
    /// It may not start before this moment.
    #[expect(dead_code, reason = "rate limits and breakers answer it, and come next")]
    NotBefore(Instant, DeferReason),
    /// It may start only after another job gives its permit back. Without a reason, its wait is not told as a deferral.
    WhenFreed(Option<DeferReason>),
}

/// What the gates gave a job that may start. Each permit goes back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// To be with a remote handler.
    pub(crate) _capacity: Option<CapacityPermit>,
}

/// Why a job cannot start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldUp {
    /// It cannot start before this moment; `None`: not before a permit comes back.
    pub(crate) until: Option<Instant>,
    /// What it waits for, if that is told as a deferral.
    pub(crate) reason: Option<DeferReason>,
}

/// The gates of a node.
#[derive(Clone)]
pub(crate) struct Gates {
    pub(crate) routing: Arc<Routing>,
    /// Told when a gate may let more jobs start.
    pub(crate) news: Arc<GateNews>,
}

impl Gates {
    /// The kind within which jobs keep their order while a gate holds them up; `None`: no gate can hold this job up.
    pub(crate) fn kind_of(&self, assignment: &Assignment) -> Option<Kind> {
        let may_bite = handler_capacity::applies_to(&self.routing, assignment);
        may_bite.then(|| Kind::of(&assignment.job))
    }

    /// Asks the gates about the first job of its kind.
    ///
    /// # Errors
    /// It cannot start now: says why, and until when if that is known.
    pub(crate) fn ask(&self, assignment: &Assignment) -> Result<Permits, HeldUp> {
        match handler_capacity::ask(&self.routing, assignment) {
            Answer::Go(permits) => Ok(permits),
            Answer::NotBefore(at, reason) => Err(HeldUp { until: Some(at), reason: Some(reason) }),
            Answer::WhenFreed(reason) => Err(HeldUp { until: None, reason }),
        }
    }

    /// How many parked jobs of a kind could start: `max` where no gate bounds them.
    pub(crate) fn room_for(&self, kind: &Kind, max: usize) -> Room {
        Room::For(self.routing.free_places(kind, max))
    }

    /// Jobs for remote handlers are there, though none of them can start.
    pub(crate) fn saw_remote(&self) {
        self.routing.discovery.saw_remote();
    }
}
