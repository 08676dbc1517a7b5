//! The gate of concurrency limits: a job starts only with a slot of its type's limit, if any, and of its key's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_domain::concurrency::{Hold, MAX_HOLD, OnBusy};
use longshore_domain::policy::Policies;
use longshore_domain::run::DeferReason;
use longshore_domain::{Job, Queue};

use super::{Gate, Gates, HeldUp, LetIn};
use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;
use crate::limits::concurrency::NoSlot;
use crate::runtime::kind::Kind;

/// How long jobs wait whose limit finds no place here.
const NO_PLACE: Duration = Duration::from_secs(1);
/// While the cluster is asked, at most so many jobs of a kind are kept for its answer. In a line, all are: one that is
/// judged there before an earlier one would end that.
const KEPT: usize = 256;

pub(super) struct OfSlots;

impl Gate for OfSlots {
    fn applies_to(&self, gates: &Gates, assignment: &Assignment) -> bool {
        gates.slots.applies_to(&assignment.job)
    }

    fn admit(&self, gates: &Gates, assignment: &Assignment, _now: Instant, permits: &mut Permits) -> LetIn {
        let job = &assignment.job;
        // A handler in this node is stopped with the node's session; another may go on until its time limit. That
        // counts anew from its word that it has begun, which only a node hears that is there.
        let elsewhere =
            gates.routing.handler(job).is_none().then(|| match gates.routing.policy(job).concurrency_hold {
                Hold::Lease => Duration::ZERO,
                Hold::Timeout => gates.routing.time_limit(job).min(MAX_HOLD),
            });
        let slots = gates.slots.take(job, elsewhere).map_err(|(no_slot, waits)| match no_slot {
            NoSlot::Full => HeldUp { reason: Some(DeferReason::Concurrency), waits: Some(waits), ..HeldUp::default() },
            NoSlot::Unknown(most) => {
                let most = if has_line(&gates.routing.policies, job) { KEPT } else { most };
                HeldUp { soon: most.min(KEPT), waits: Some(waits), ..HeldUp::default() }
            }
            NoSlot::NoPlace => HeldUp::not_before(Instant::now() + NO_PLACE, DeferReason::Concurrency),
        })?;
        permits.slots = Some(Arc::new(slots));
        Ok(())
    }

    fn room(&self, gates: &Gates, _queue: &Queue, kind: &Kind, now: Instant) -> Option<usize> {
        Some(gates.slots.room(kind, now).unwrap_or(usize::MAX))
    }

    fn bounds(&self, gates: &Gates, kind: &Kind) -> Option<DeferReason> {
        gates.slots.has_limit_of(kind).then_some(DeferReason::Concurrency)
    }
}

/// Whether the job's key does more with its jobs than to let them wait for a slot.
pub(super) fn has_line(policies: &Policies, job: &Job) -> bool {
    let has_key = job.options.as_ref().is_some_and(|options| options.concurrency_key.is_some());
    let policy = policies.of(&job.job_type);
    has_key && (policy.on_busy != OnBusy::Wait || policy.ordered)
}
