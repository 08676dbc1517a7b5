//! The gate of circuit breakers: while a type's service fails, its jobs wait; once the breaker has cooled down, a few
//! of them start as probes.

use std::sync::Arc;

use longshore_domain::run::DeferReason;

use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;
use crate::queue::gates::answer::Answer;
use crate::shared::breakers::{Admitted, Breakers};
use crate::shared::clock::{instant, now};

/// Whether the job's type has breakers. An invalid job calls no service.
pub(crate) fn applies_to(breakers: &Breakers, assignment: &Assignment) -> bool {
    assignment.calls_handler() && breakers.policy(&assignment.job.job_type).is_some()
}

/// Whether the job's breaker lets it start.
pub(crate) fn ask(breakers: &Arc<Breakers>, assignment: &Assignment) -> Answer {
    match breakers.admit(&assignment.job) {
        None => Answer::Go(Permits::default()),
        Some(Admitted::Go(pass)) => Answer::Go(Permits { breaker: Some(pass), ..Permits::default() }),
        Some(Admitted::NotBefore(at)) => Answer::NotBefore(instant() + at.since(now()), DeferReason::BreakerOpen, 0),
        Some(Admitted::WhenChanged) => Answer::WhenFreed(Some(DeferReason::BreakerOpen)),
        Some(Admitted::WhenRead) => Answer::WhenFreed(None),
    }
}
