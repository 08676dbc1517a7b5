//! Decides whether a job may start now. No other code decides it.

use std::time::Duration;

use crate::settlement::Settlement;
use crate::{DurationText, ErrorKind, Failure, JobOptions, Timestamp};

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
    /// The deadline is still to come, but nearer than an attempt of its kind takes: it would be started only to be
    /// stopped.
    NoTimeLeft {
        /// The time until the deadline.
        left: Duration,
        /// The least time that an attempt of its kind took.
        needs: Duration,
    },
}

impl Clearance {
    /// The word for a job that is given up without being started; `None` if it is not.
    #[must_use]
    pub fn gives_up(self) -> Option<&'static str> {
        match self {
            Self::Start | Self::NotBefore(_) => None,
            Self::Expired => Some("expired"),
            Self::TooLate => Some("deadline"),
            Self::NoTimeLeft { .. } => Some("no_time_left"),
        }
    }

    /// The settlement if the job may not start; `None` if it may.
    #[must_use]
    pub fn refusal(self) -> Option<Settlement> {
        let message = match self {
            Self::Start => return None,
            Self::NotBefore(at) => return Some(Settlement::Schedule(at)),
            Self::Expired => return Some(Settlement::Expire),
            Self::TooLate => "the run's deadline had passed before it could start".to_owned(),
            Self::NoTimeLeft { left, needs } => format!(
                "not started: the run's deadline leaves {}, and no attempt of its type has succeeded in less than {} \
                 lately",
                DurationText(left),
                DurationText(needs)
            ),
        };
        Some(Settlement::Dead(Failure::new(ErrorKind::Timeout, message)))
    }
}

/// The facts about a job that is about to start.
#[derive(Debug, Clone, Copy)]
pub struct JobFacts<'a> {
    /// What its headers asked for.
    pub options: Option<&'a JobOptions>,
    /// When it was enqueued, or when its schedule fired.
    pub enqueued_at: Timestamp,
    /// It has waited for its time already, so `Longshore-Run-At` and `-Delay` no longer apply.
    pub fell_due: bool,
    /// An attempt was started before, so it can no longer expire.
    pub started_before: bool,
    /// The least time that a successful attempt of its kind took lately, if that is known
    /// ([`Quickest`](crate::quickest::Quickest)). Never its time limit: that is a bound, and most attempts are done
    /// long before.
    pub needs: Option<Duration>,
}

/// Judges whether the job may start at `now`.
pub fn clear(job: JobFacts<'_>, now: Timestamp) -> Clearance {
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
    match (moment(options.deadline), job.needs) {
        (Some(deadline), Some(needs)) if deadline.since(now) < needs => {
            Clearance::NoTimeLeft { left: deadline.since(now), needs }
        }
        _ => Clearance::Start,
    }
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
            let waiting =
                JobFacts { options: Some(&options), enqueued_at: at(1_000), fell_due, started_before, needs: None };
            clear(waiting, at(now))
        };
        assert_eq!(judge(false, false, 1_050), Clearance::NotBefore(at(1_100)));
        assert_eq!(judge(false, false, 1_100), Clearance::Start);
        assert_eq!(judge(true, false, 1_050), Clearance::Start);
        assert_eq!(judge(true, false, 5_000), Clearance::Expired);
        assert_eq!(judge(true, true, 5_000), Clearance::Start);
        assert_eq!(judge(true, true, 9_000), Clearance::TooLate);
    }

    #[test]
    fn a_job_is_not_started_if_its_deadline_is_nearer_than_the_quickest_success() {
        let options = JobOptions {
            deadline: Some(When::At(at(9_000))),
            expires: Some(When::At(at(20_000))),
            ..JobOptions::default()
        };
        let judge = |needs: Option<u64>, started_before, now| {
            let needs = needs.map(Duration::from_millis);
            let options = Some(&options);
            clear(JobFacts { options, enqueued_at: at(1_000), fell_due: true, started_before, needs }, at(now))
        };
        assert_eq!(judge(None, false, 8_999), Clearance::Start, "a time limit says nothing of how long it takes");
        for started_before in [false, true] {
            assert_eq!(judge(Some(500), started_before, 8_500), Clearance::Start);
            let refused = judge(Some(500), started_before, 8_501);
            let millis = Duration::from_millis;
            assert_eq!(refused, Clearance::NoTimeLeft { left: millis(499), needs: millis(500) });
            let Some(Settlement::Dead(failure)) = refused.refusal() else { panic!("{refused:?}") };
            let message = "not started: the run's deadline leaves 499ms, and no attempt of its type has succeeded in less \
                           than 500ms lately";
            assert_eq!((failure.kind, failure.message.as_str()), (ErrorKind::Timeout, message));
        }
        assert_eq!(judge(Some(500), false, 9_000), Clearance::TooLate);
    }

    #[test]
    fn an_expiry_leaves_time_as_long_as_the_job_can_start() {
        let options = JobOptions { expires: Some(When::At(at(9_000))), ..JobOptions::default() };
        let needs = Some(Duration::from_secs(3_600));
        let waiting =
            JobFacts { options: Some(&options), enqueued_at: at(1_000), fell_due: true, started_before: false, needs };
        assert_eq!(clear(waiting, at(8_999)), Clearance::Start);
    }
}
