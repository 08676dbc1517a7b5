//! The gate of concurrency limits: a job starts only with a slot of its type's limit, if that has one, and of its
//! key's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_domain::Job;
use longshore_domain::concurrency::{Hold, MAX_HOLD, OnBusy};
use longshore_domain::policy::Policies;
use longshore_domain::run::DeferReason;

use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;
use crate::concurrency::{NoSlot, Slots};
use crate::queue::gates::answer::Answer;
use crate::routing::Routing;

/// How long jobs wait whose limit finds no place here.
const NO_PLACE: Duration = Duration::from_secs(1);
/// While the cluster is asked, at most so many jobs of a kind are kept for its answer.
const KEPT: usize = 256;

/// Whether attempts of the job are counted. An invalid job has none.
pub(crate) fn applies_to(slots: &Slots, assignment: &Assignment) -> bool {
    assignment.calls_handler() && slots.applies_to(&assignment.job)
}

/// Whether the job's key does more with its jobs than to let them wait for a slot.
pub(crate) fn has_line(policies: &Policies, job: &Job) -> bool {
    let has_key = job.options.as_ref().is_some_and(|options| options.concurrency_key.is_some());
    let policy = policies.of(&job.job_type);
    has_key && (policy.on_busy != OnBusy::Wait || policy.ordered)
}

/// Whether the job may start, and with which slots.
pub(crate) fn ask(slots: &Arc<Slots>, routing: &Routing, assignment: &Assignment) -> Answer {
    let job = &assignment.job;
    // A handler in this node is stopped with the node's session; another may go on until its time limit. That counts
    // anew from its word that it has begun, which only a node hears that is there.
    let elsewhere = routing.handler(job).is_none().then(|| match slots.hold(job) {
        Hold::Lease => Duration::ZERO,
        Hold::Timeout => routing.time_limit(job).min(MAX_HOLD),
    });
    match slots.take(job, elsewhere) {
        Ok(permit) => Answer::Go(Permits { slots: Some(Arc::new(permit)), ..Permits::default() }),
        Err((NoSlot::Full, waits)) => Answer::ForSlot(waits, Some(DeferReason::Concurrency), 0),
        Err((NoSlot::Unknown(most), waits)) => Answer::ForSlot(waits, None, most.min(KEPT)),
        Err((NoSlot::NoPlace, _)) => Answer::NotBefore(Instant::now() + NO_PLACE, DeferReason::Concurrency, 0),
    }
}
