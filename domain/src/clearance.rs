//! Decides whether a job may start now. No other code decides it.

use crate::settlement::Settlement;
use crate::{ErrorKind, Failure, JobOptions, Timestamp};

/// Whether a job may start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clearance {
    /// It may start.
    Start,
    /// It must not start before this time.
    NotBefore(Timestamp),
    /// It was not started in time: it ends as `expired`.
    Expired,
    /// The deadline of the whole run passed before an attempt could start: the run ends dead, with kind `timeout`.
    TooLate,
}

impl Clearance {
    /// The settlement if the job may not start; `None` if it may.
    #[must_use]
    pub fn refusal(self) -> Option<Settlement> {
        match self {
            Self::Start => None,
            Self::NotBefore(at) => Some(Settlement::Schedule { at }),
            Self::Expired => Some(Settlement::Expire),
            Self::TooLate => {
                let failure = Failure::new(ErrorKind::Timeout, "the run's deadline had passed before it could start");
                Some(Settlement::Dead { failure })
            }
        }
    }
}

/// The facts about a job that is about to start.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// What its headers asked for.
    pub options: Option<&'a JobOptions>,
    /// When it was enqueued, or when its schedule fired.
    pub enqueued_at: Timestamp,
    /// It has waited for its time already, so `Longshore-Run-At` and `-Delay` no longer apply.
    pub fell_due: bool,
    /// An attempt was started before, so it can no longer expire.
    pub started_before: bool,
}

/// Judges whether the job may start at `now`.
#[must_use]
pub fn clear(job: Waiting<'_>, now: Timestamp) -> Clearance {
    let Some(options) = job.options else { return Clearance::Start };
    let moment = |when: Option<crate::job::When>| when.map(|when| when.from(job.enqueued_at));
    if let Some(run_at) = moment(options.run_at).filter(|at| !job.fell_due && *at > now) {
        return Clearance::NotBefore(run_at);
    }
    if moment(options.deadline).is_some_and(|deadline| deadline <= now) {
        return Clearance::TooLate;
    }
    if !job.started_before && moment(options.expires).is_some_and(|expires| expires <= now) {
        return Clearance::Expired;
    }
    Clearance::Start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::When;
    use std::time::Duration;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_job_waits_starts_expires_or_comes_too_late() {
        let options = JobOptions {
            run_at: Some(When::After(Duration::from_millis(100))),
            expires: Some(When::At(at(5_000))),
            deadline: Some(When::At(at(9_000))),
            ..JobOptions::default()
        };
        let judge = |fell_due, started_before, now| {
            clear(Waiting { options: Some(&options), enqueued_at: at(1_000), fell_due, started_before }, at(now))
        };
        assert_eq!(judge(false, false, 1_050), Clearance::NotBefore(at(1_100)));
        assert_eq!(judge(false, false, 1_100), Clearance::Start);
        assert_eq!(judge(true, false, 1_050), Clearance::Start);
        assert_eq!(judge(true, false, 5_000), Clearance::Expired);
        assert_eq!(judge(true, true, 5_000), Clearance::Start);
        assert_eq!(judge(true, true, 9_000), Clearance::TooLate);
    }
}
