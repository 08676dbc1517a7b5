//! Gates: the checks that a job must pass before it may start. Each gate has its own file; it answers for one job and
//! never waits.

pub(crate) mod answer;
pub(crate) mod breaker;
pub(crate) mod concurrency;
pub(crate) mod handler_capacity;
pub(crate) mod pause;
pub(crate) mod rate_limit;

use std::sync::Arc;
use std::time::Instant;

use longshore_domain::Queue;
use longshore_domain::run::DeferReason;

use crate::attempt::assignment::Assignment;
use crate::attempt::order;
use crate::attempt::permits::Permits;
use crate::concurrency::Slots;
use crate::limits::{Expected, Limits};
use crate::queue::gates::answer::{Answer, HeldUp};
use crate::routing::Routing;
use crate::shared::breakers::Breakers;
use crate::shared::gate_news::GateNews;
use crate::shared::kind::{Kind, Room};
use crate::shared::run_time_settings::RunTimeSettings;

fn granted(answer: Answer) -> Result<Permits, HeldUp> {
    match answer {
        Answer::Go(permits) => Ok(permits),
        Answer::NotBefore(at, reason, soon) => Err(HeldUp { until: Some(at), reason: Some(reason), soon, waits: None }),
        Answer::NoHandlerBefore(at) => Err(HeldUp { until: Some(at), reason: None, soon: 0, waits: None }),
        Answer::WhenFreed(reason) => Err(HeldUp { until: None, reason, soon: 0, waits: None }),
        Answer::ForSlot(waits, reason, soon) => Err(HeldUp { until: None, reason, soon, waits: Some(waits) }),
    }
}

/// The gates of a node.
#[derive(Clone)]
pub(crate) struct Gates {
    pub(crate) routing: Arc<Routing>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) breakers: Arc<Breakers>,
    pub(crate) run_time_settings: Arc<RunTimeSettings>,
    pub(crate) slots: Arc<Slots>,
    /// Notified when a gate may let more jobs start.
    pub(crate) news: Arc<GateNews>,
}

impl Gates {
    /// The kind within which jobs keep their order while a gate holds them up; `None`: no gate can hold this job up.
    pub(crate) fn kind_of(&self, assignment: &Assignment) -> Option<Kind> {
        let is_gated = assignment.calls_handler()
            && (handler_capacity::applies_to(&self.routing, assignment)
                || rate_limit::applies_to(&self.limits, &assignment.job)
                || breaker::applies_to(&self.breakers, assignment)
                || pause::applies_to(&self.run_time_settings, &assignment.job)
                || self.slots.applies_to(&assignment.job));
        is_gated.then(|| Kind::of(&assignment.job))
    }

    /// Whether a job that cannot start now is sent to its line all the same, on its way to be parked: there it may turn
    /// out that it has to end, or another run for its sake.
    pub(crate) fn is_judged_at_once(&self, assignment: &Assignment) -> bool {
        let arrival = &assignment.arrival;
        let is_new = !assignment.is_returned && arrival.attempt == 1 && arrival.deferrals == 0;
        is_new && concurrency::has_line(&self.routing.policies, &assignment.job)
    }

    /// Asks the gates about the first job of its kind. It may have the trial of its handlers already.
    ///
    /// # Errors
    /// It cannot start now: says why, and until when if that is known.
    pub(crate) fn ask(&self, assignment: &Assignment, now: Instant) -> Result<Permits, HeldUp> {
        if let Some(until) = pause::held_until(&self.run_time_settings, &assignment.job, now) {
            return Err(HeldUp { until: Some(until), reason: Some(DeferReason::Paused), soon: 0, waits: None });
        }
        let has_trial = assignment.permits.capacity.is_some();
        let asks_handlers = !has_trial && handler_capacity::applies_to(&self.routing, assignment);
        let is_limited = rate_limit::applies_to(&self.limits, &assignment.job);
        let may_break = breaker::applies_to(&self.breakers, assignment);
        let is_counted = concurrency::applies_to(&self.slots, assignment);
        // A job whose handlers are full takes nothing from the other gates. It does not take capacity first and give it
        // back either: the return of capacity wakes all that wait for it.
        if asks_handlers
            && (is_limited || may_break || is_counted)
            && let Some(lacks) = handler_capacity::lacks(&self.routing, assignment)
        {
            return granted(lacks).map(|_| Permits::default());
        }
        let mut permits = Permits::default();
        if is_limited {
            permits = granted(rate_limit::ask(&self.limits, &assignment.job, now))?;
        }
        if is_counted {
            permits.slots = granted(concurrency::ask(&self.slots, &self.routing, assignment))?.slots;
        }
        // Asked after the gates of tokens and slots: giving those back costs nothing, giving a probe back costs a
        // write.
        if may_break {
            permits.breaker = granted(breaker::ask(&self.breakers, assignment))?.breaker;
        }
        if asks_handlers {
            permits.capacity = granted(handler_capacity::ask(&self.routing, assignment))?.capacity;
        }
        Ok(permits)
    }

    /// Whether asking about a job that had to wait may have another answer by now.
    pub(crate) fn may_be_asked(&self, permits: &Permits) -> bool {
        permits.waits.is_none_or(|waits| self.slots.have_changed(waits))
    }

    /// How many parked jobs of a kind in a queue could start: `max` where no gate bounds them.
    pub(crate) fn room_for(&self, queue: &Queue, kind: &Kind, max: usize, now: Instant) -> Room {
        if pause::keeps_parked(&self.run_time_settings, queue, &kind.job_type) {
            return Room::NotYet;
        }
        let tokens = match rate_limit::expected(&self.limits, kind, now) {
            None => usize::MAX,
            Some(Expected::NotYet) => return Room::NotYet,
            Some(Expected::Tokens(tokens)) => tokens as usize,
        };
        let Some(passes) = self.breakers.room_for(kind) else { return Room::NotYet };
        let most = passes.min(tokens).min(self.slots.room(kind, now).unwrap_or(usize::MAX));
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
        if self.run_time_settings.pause_of_type(queue, &kind.job_type).is_some() {
            return Some(DeferReason::Paused);
        }
        if rate_limit::is_held(&self.limits, kind) {
            return Some(DeferReason::Held);
        }
        if self.breakers.holds_up(kind) {
            return Some(DeferReason::BreakerOpen);
        }
        if self.limits.has_limit(&kind.job_type) {
            return Some(DeferReason::RateLimited);
        }
        self.slots.has_limit_of(kind).then_some(DeferReason::Concurrency)
    }

    /// Jobs for remote handlers are there, though none of them can start.
    pub(crate) fn saw_remote(&self) {
        self.routing.discovery.saw_remote();
    }
}
