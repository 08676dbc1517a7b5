//! The gate of rate limits and holds: a job starts only with the tokens of its limits, and not while its key or type is
//! held.

use std::sync::Arc;
use std::time::Instant;

use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::Job;
use longshore_domain::run::DeferReason;

use crate::attempt::permits::Permits;
use crate::limits::{Expected, Limits};
use crate::queue::gates::answer::Answer;
use crate::shared;
use crate::shared::kind::Kind;

/// Whether a job of this type could be held up.
pub(crate) fn applies_to(limits: &Limits, job: &Job) -> bool {
    limits.may_bite(&job.job_type)
}

/// How many parked jobs of a kind could start; `None`: no limit bounds them.
pub(crate) fn expected(limits: &Limits, kind: &Kind, now: Instant) -> Option<Expected> {
    limits.room(kind, now)
}

/// Whether a handler holds jobs of a kind.
pub(crate) fn is_held(limits: &Limits, kind: &Kind) -> bool {
    limits.held_until(&kind.tenant, &kind.job_type, &kind.key).is_some()
}

/// Whether the job may start, and with which tokens.
pub(crate) fn ask(limits: &Arc<Limits>, job: &Job, now: Instant) -> Answer {
    let key = KindKey::of(job.options.as_deref());
    if let Some(until) = limits.held_until(&job.tenant, &job.job_type, &key) {
        return Answer::NotBefore(now + until.since(shared::now()), DeferReason::Held, 0);
    }
    match limits.take(job, now) {
        Ok(tokens) => Answer::Go(Permits { tokens, ..Permits::default() }),
        Err(short) => Answer::NotBefore(short.until, DeferReason::RateLimited, short.share),
    }
}
