//! The gate of circuit breakers: while a type's service fails, its jobs wait; once the breaker has cooled down, a few
//! of them start as probes.

use std::time::Instant;

use longshore_domain::Queue;
use longshore_domain::run::DeferReason;

use super::{Gate, Gates, HeldUp, LetIn};
use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;
use crate::limits::breaker::Admitted;
use crate::runtime::clock::{instant, now};
use crate::runtime::kind::Kind;

pub(super) struct OfBreakers;

impl Gate for OfBreakers {
    fn applies_to(&self, gates: &Gates, assignment: &Assignment) -> bool {
        gates.breakers.policy(&assignment.job.job_type).is_some()
    }

    fn admit(&self, gates: &Gates, assignment: &Assignment, _now: Instant, permits: &mut Permits) -> LetIn {
        match gates.breakers.admit(&assignment.job) {
            None => Ok(()),
            Some(Admitted::Go(pass)) => {
                permits.breaker = Some(pass);
                Ok(())
            }
            Some(Admitted::NotBefore(at)) => {
                Err(HeldUp::not_before(instant() + at.since(now()), DeferReason::BreakerOpen))
            }
            Some(Admitted::WhenChanged) => Err(HeldUp { reason: Some(DeferReason::BreakerOpen), ..HeldUp::default() }),
            Some(Admitted::WhenRead) => Err(HeldUp::default()),
        }
    }

    fn room(&self, gates: &Gates, _queue: &Queue, kind: &Kind, _now: Instant) -> Option<usize> {
        gates.breakers.room_for(kind)
    }

    fn closed(&self, gates: &Gates, _queue: &Queue, kind: &Kind) -> Option<DeferReason> {
        gates.breakers.holds_up(kind).then_some(DeferReason::BreakerOpen)
    }
}
