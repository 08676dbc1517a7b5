//! The gate of rate limits and holds: a job starts only with its limits' tokens, and not while its key or type is held.

use std::time::Instant;

use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::Queue;
use longshore_domain::run::DeferReason;

use super::{Gate, Gates, HeldUp, LetIn};
use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;
use crate::limits::rate::{Expected, Short};
use crate::runtime;
use crate::runtime::kind::Kind;

pub(super) struct OfTokens;

impl Gate for OfTokens {
    fn applies_to(&self, gates: &Gates, assignment: &Assignment) -> bool {
        gates.limits.may_bite(&assignment.job.job_type)
    }

    fn admit(&self, gates: &Gates, assignment: &Assignment, now: Instant, permits: &mut Permits) -> LetIn {
        let job = &assignment.job;
        let key = KindKey::of(job.options.as_deref());
        if let Some(until) = gates.limits.held_until(&job.tenant, &job.job_type, &key) {
            return Err(HeldUp::not_before(now + until.since(runtime::now()), DeferReason::Held));
        }
        let short =
            |short: Short| HeldUp { soon: short.share, ..HeldUp::not_before(short.until, DeferReason::RateLimited) };
        permits.tokens = gates.limits.take(job, now).map_err(short)?;
        Ok(())
    }

    fn room(&self, gates: &Gates, _queue: &Queue, kind: &Kind, now: Instant) -> Option<usize> {
        match gates.limits.room(kind, now) {
            None => Some(usize::MAX),
            Some(Expected::NotYet) => None,
            Some(Expected::Tokens(tokens)) => Some(tokens as usize),
        }
    }

    fn closed(&self, gates: &Gates, _queue: &Queue, kind: &Kind) -> Option<DeferReason> {
        gates.limits.held_until(&kind.tenant, &kind.job_type, &kind.key).map(|_| DeferReason::Held)
    }

    fn bounds(&self, gates: &Gates, kind: &Kind) -> Option<DeferReason> {
        gates.limits.has_limit(&kind.job_type).then_some(DeferReason::RateLimited)
    }
}
