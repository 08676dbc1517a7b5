//! The gate of paused types: their jobs wait, and hold up no others. The jobs of a paused queue never come to a gate:
//! they stay in the lanes (`queue/buffer.rs`).

use std::time::{Duration, Instant};

use longshore_domain::Queue;
use longshore_domain::run::DeferReason;
use longshore_domain::setting::Pause;

use super::{Gate, Gates, HeldUp, LetIn};
use crate::attempt::assignment::Assignment;
use crate::attempt::permits::Permits;
use crate::runtime::kind::Kind;
use crate::runtime::now;

/// When jobs are asked about again whose pause has no end: never, as the end of a pause is news to all gates.
const NO_END: Duration = Duration::from_secs(86_400);
/// Parked jobs are taken back when their pause is over, but for this.
const SOON: Duration = Duration::from_millis(500);

pub(super) struct OfTypes;

impl Gate for OfTypes {
    fn applies_to(&self, gates: &Gates, assignment: &Assignment) -> bool {
        gates.run_time_settings.was_paused(&assignment.job.job_type)
    }

    fn admit(&self, gates: &Gates, assignment: &Assignment, now: Instant, _permits: &mut Permits) -> LetIn {
        let (queue, job_type) = (&assignment.job.queue, &assignment.job.job_type);
        match gates.run_time_settings.pause_of_type(queue, job_type) {
            None => Ok(()),
            Some(pause) => Err(HeldUp::not_before(now + left(pause), DeferReason::Paused)),
        }
    }

    fn room(&self, gates: &Gates, queue: &Queue, kind: &Kind, _now: Instant) -> Option<usize> {
        let pause = gates.run_time_settings.pause_of_type(queue, &kind.job_type);
        pause.is_none_or(|pause| left(pause) <= SOON).then_some(usize::MAX)
    }

    fn closed(&self, gates: &Gates, queue: &Queue, kind: &Kind) -> Option<DeferReason> {
        gates.run_time_settings.pause_of_type(queue, &kind.job_type).map(|_| DeferReason::Paused)
    }
}

fn left(pause: Pause) -> Duration {
    pause.until.map_or(NO_END, |until| until.since(now()).min(NO_END))
}
