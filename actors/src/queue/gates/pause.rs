//! The gate of paused types: their jobs wait, and hold up no others. The jobs of a paused queue never come to a gate:
//! they stay in the lanes (`queue/buffer.rs`).

use std::time::{Duration, Instant};

use longshore_domain::setting::Pause;
use longshore_domain::{Job, JobType, Queue};

use crate::shared::now;
use crate::shared::run_time_settings::RunTimeSettings;

/// When jobs are asked about again whose pause has no end: never, as the end of a pause is news to all gates.
const NO_END: Duration = Duration::from_secs(86_400);
/// Parked jobs are taken back when their pause is over, but for this.
const SOON: Duration = Duration::from_millis(500);

/// Whether a pause could hold up jobs of this type.
pub(crate) fn applies_to(settings: &RunTimeSettings, job: &Job) -> bool {
    settings.was_paused(&job.job_type)
}

/// Until when the job is held up, if it is.
pub(crate) fn held_until(settings: &RunTimeSettings, job: &Job, now: Instant) -> Option<Instant> {
    settings.pause_of_type(&job.queue, &job.job_type).map(|pause| now + left(pause))
}

/// Whether parked jobs of this type are to stay where they are.
pub(crate) fn keeps_parked(settings: &RunTimeSettings, queue: &Queue, job_type: &JobType) -> bool {
    settings.pause_of_type(queue, job_type).is_some_and(|pause| left(pause) > SOON)
}

fn left(pause: Pause) -> Duration {
    pause.until.map_or(NO_END, |until| until.since(now()).min(NO_END))
}
