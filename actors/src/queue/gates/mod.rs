//! Gates: the checks that a job must pass before it may start. Each has its own file and stands in [`ALL`] once; it
//! answers for one job and never waits.

mod breaker;
mod concurrency;
mod handler_capacity;
mod pause;
mod rate_limit;

use std::sync::Arc;
use std::time::Instant;

use longshore_domain::Queue;
use longshore_domain::run::DeferReason;
use smallvec::SmallVec;

use crate::attempt::assignment::Assignment;
use crate::attempt::keys::order;
use crate::attempt::permits::Permits;
use crate::handlers::capacity::CapacityPermit;
use crate::handlers::routing::Routing;
use crate::limits::breaker::Breakers;
use crate::limits::concurrency::{AwaitedLimit, Slots};
use crate::limits::rate::Limits;
use crate::limits::settings::RunTimeSettings;
use crate::queue::gates::handler_capacity::OfRemoteHandlers;
use crate::runtime::gate_news::GateNews;
use crate::runtime::kind::{Kind, Room};
use crate::runtime::park_permits::ParkGate;

/// Whether a gate lets a job in; if not, why it cannot start now.
type LetIn = Result<(), HeldUp>;

/// A check before a start. What a gate does not say, it does not restrict.
trait Gate: Sync {
    /// Whether it could hold up such a job. Only jobs that call a handler come to a gate.
    fn applies_to(&self, gates: &Gates, assignment: &Assignment) -> bool;

    /// Lets the job in and adds what it gets to its permits.
    fn admit(&self, gates: &Gates, assignment: &Assignment, now: Instant, permits: &mut Permits) -> LetIn;

    /// How many parked jobs of a kind it would let in; `None`: none for some time.
    fn room(&self, _gates: &Gates, _queue: &Queue, _kind: &Kind, _now: Instant) -> Option<usize> {
        Some(usize::MAX)
    }

    /// Why it lets in no job of a kind now.
    fn closed(&self, _gates: &Gates, _queue: &Queue, _kind: &Kind) -> Option<DeferReason> {
        None
    }

    /// Why jobs of a kind may have to wait at it, open as it is.
    fn bounds(&self, _gates: &Gates, _kind: &Kind) -> Option<DeferReason> {
        None
    }
}

/// All gates, in the order in which they let a job in: tokens and slots cost nothing to give back, a probe of a breaker
/// costs a write, and the return of capacity wakes all that wait for it.
const ALL: [&dyn Gate; 5] =
    [&pause::OfTypes, &rate_limit::OfTokens, &concurrency::OfSlots, &breaker::OfBreakers, &OfRemoteHandlers];

/// Why a job cannot start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HeldUp {
    /// It cannot start before this moment; `None`: not before a permit comes back.
    pub(crate) until: Option<Instant>,
    /// What it waits for, if that is published as a deferral.
    pub(crate) reason: Option<DeferReason>,
    /// About how many of its kind start within a second once some may, if that is known.
    pub(crate) soon: usize,
    /// The slot that it waits for.
    pub(crate) waits: Option<AwaitedLimit>,
    /// It is judged in its line instead of being kept ([`Gates::is_judged_at_once`]).
    pub(crate) is_judged: bool,
}

impl HeldUp {
    fn not_before(at: Instant, reason: DeferReason) -> HeldUp {
        HeldUp { until: Some(at), reason: Some(reason), ..HeldUp::default() }
    }

    /// Whether the cluster is being asked for the slot that it waits for.
    pub(crate) fn asks_for_slot(&self) -> bool {
        self.waits.is_some() && self.reason.is_none()
    }
}

/// What the gates of a node ask.
#[derive(Clone)]
pub(crate) struct Gates {
    pub(crate) routing: Arc<Routing>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) run_time_settings: Arc<RunTimeSettings>,
    pub(crate) slots: Arc<Slots>,
    /// Whether a job that cannot start may be parked.
    pub(crate) park: ParkGate,
    /// Notified when a gate may let more jobs start.
    pub(crate) news: Arc<GateNews>,
}

impl Gates {
    fn of<'a>(&'a self, assignment: &'a Assignment) -> impl Iterator<Item = &'static dyn Gate> + 'a {
        let all: &'static [&dyn Gate] = if assignment.calls_handler() { &ALL } else { &[] };
        all.iter().copied().filter(|gate| gate.applies_to(self, assignment))
    }

    /// The kind within which jobs keep their order while a gate holds them up; `None`: no gate can hold this job up.
    pub(crate) fn kind_of(&self, assignment: &Assignment) -> Option<Kind> {
        self.of(assignment).next().map(|_| Kind::of(&assignment.job))
    }

    /// Whether a job that cannot start now is sent to its line all the same, on its way to be parked: there it may turn
    /// out that it has to end, or another run for its sake.
    pub(crate) fn is_judged_at_once(&self, assignment: &Assignment) -> bool {
        let arrival = &assignment.arrival;
        let is_new = !assignment.is_returned && arrival.attempt == 1 && arrival.deferrals == 0;
        is_new && concurrency::has_line(&self.routing.policies, &assignment.job)
    }

    /// Asks the gates about the first job of its kind. It may have the trial of its handlers already. If it cannot
    /// start now, they say why, and until when if that is known.
    pub(crate) fn ask(&self, assignment: &Assignment, now: Instant) -> Result<Permits, HeldUp> {
        self.admit(assignment, now).map_err(|held_up| {
            // While the cluster is asked for its slot, its key may be free.
            let is_judged = !held_up.asks_for_slot() && self.is_judged_at_once(assignment);
            HeldUp { is_judged, ..held_up }
        })
    }

    fn admit(&self, assignment: &Assignment, now: Instant) -> Result<Permits, HeldUp> {
        let asked: SmallVec<[&dyn Gate; ALL.len()]> = self.of(assignment).collect();
        if asked.len() > 1 && self.is_remote(assignment) {
            handler_capacity::look(self, assignment)?;
        }
        let mut permits = Permits::default();
        asked.iter().try_for_each(|gate| gate.admit(self, assignment, now, &mut permits))?;
        Ok(permits)
    }

    /// Whether a job waits for remote handlers that have as many jobs as they take: this gate gives no reason.
    pub(crate) fn handlers_are_full(&self, assignment: &Assignment) -> bool {
        self.is_remote(assignment) && handler_capacity::look(self, assignment).is_err()
    }

    fn is_remote(&self, assignment: &Assignment) -> bool {
        assignment.calls_handler() && OfRemoteHandlers.applies_to(self, assignment)
    }

    /// The trial whether the job has handlers, if that is not known and no other job has it: one job at a time tries.
    pub(crate) fn trial(&self, assignment: &Assignment) -> Option<CapacityPermit> {
        let capacity = self.is_remote(assignment).then(|| self.routing.trial_of(&assignment.job)).flatten()?;
        self.routing.capacity.take(capacity)
    }

    /// Whether asking about a job that had to wait may have another answer by now.
    pub(crate) fn may_be_asked(&self, permits: &Permits) -> bool {
        permits.waits.is_none_or(|waits| self.slots.have_changed(waits))
    }

    /// How many parked jobs of a kind in a queue could start: `max` where no gate bounds them.
    pub(crate) fn room_for(&self, queue: &Queue, kind: &Kind, max: usize, now: Instant) -> Room {
        let mut most = usize::MAX;
        for gate in ALL {
            let Some(room) = gate.room(self, queue, kind, now) else { return Room::NotYet };
            most = most.min(room);
        }
        if most > 0 && self.slots.space.is_short() && order::has_order(&self.routing.policies, kind) {
            // Only keys that have their order already can go on.
            return Room::Trial;
        }
        match self.routing.free_places(kind, max) {
            Room::For(free) => Room::For(free.min(most)),
            Room::NotYet => Room::NotYet,
            Room::Trial | Room::HandlersFull if most == 0 => Room::For(0),
            of_handlers => of_handlers,
        }
    }

    /// Why jobs of a kind wait in a queue, if they wait behind others of which this node knows nothing.
    pub(crate) fn usual_reason(&self, queue: &Queue, kind: &Kind) -> Option<DeferReason> {
        let closed = ALL.into_iter().find_map(|gate| gate.closed(self, queue, kind));
        closed.or_else(|| ALL.into_iter().find_map(|gate| gate.bounds(self, kind)))
    }
}
