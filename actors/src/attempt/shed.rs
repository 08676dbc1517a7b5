//! Jobs that are given up because they come too late: what their judge has to know, how long attempts take, and what
//! the node says of it. A job without a deadline costs nothing here.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use longshore_domain::quickest::Quickest;
use longshore_domain::two_spans::TwoSpans;
use longshore_domain::{Job, JobType, Tenant};

use crate::runtime::Unpoisoned as _;

/// Kinds of jobs whose successes are known. Of further ones nothing is: their jobs start however near the deadline is.
const KINDS: usize = 4_096;
/// What `health` says counts jobs of this time, and of as long before.
const LATELY: Duration = Duration::from_secs(60);

/// What the node knows of jobs that come too late.
#[derive(Debug, Default)]
pub(crate) struct Shed {
    /// How quickly jobs with a deadline have succeeded here: those of one tenant and type have the same handlers.
    quickest: Mutex<HashMap<(Tenant, JobType), Quickest>>,
    /// How many jobs were given up.
    given_up: Mutex<Option<TwoSpans<u64>>>,
}

impl Shed {
    /// An attempt of this job has succeeded, which took so long. Counts only jobs with a deadline: only these ask.
    pub(crate) fn succeeded(&self, job: &Job, took: Duration, now: Instant) {
        if !has_deadline(job) {
            return;
        }
        let mut kinds = self.quickest.lock().unpoisoned();
        let kind = (job.tenant.clone(), job.job_type.clone());
        if kinds.len() >= KINDS && !kinds.contains_key(&kind) {
            kinds.retain(|_, quickest| !quickest.is_forgotten(now));
            if kinds.len() >= KINDS {
                return;
            }
        }
        kinds.entry(kind).or_insert_with(|| Quickest::new(now)).add(took, now);
    }

    /// The least time that an attempt of this job needs, as far as is known and if it matters.
    pub(crate) fn needs(&self, job: &Job, now: Instant) -> Option<Duration> {
        if !has_deadline(job) {
            return None;
        }
        self.quickest.lock().unpoisoned().get(&(job.tenant.clone(), job.job_type.clone()))?.least(now)
    }

    /// A job was given up; says whether that is the first in a while.
    pub(crate) fn gave_up(&self, now: Instant) -> bool {
        let mut given_up = self.given_up.lock().unpoisoned();
        let mut counted = given_up.unwrap_or_else(|| TwoSpans::new(now)).at(now, LATELY);
        let is_first = counted.this == 0 && counted.before == 0;
        counted.this += 1;
        *given_up = Some(counted);
        is_first
    }

    /// A warning, if jobs were given up lately.
    pub(crate) fn warning(&self, now: Instant) -> Option<String> {
        let given_up = *self.given_up.lock().unpoisoned();
        let jobs = given_up.map(|given_up| given_up.at(now, LATELY)).map_or(0, |counted| counted.this + counted.before);
        (jobs > 0).then(|| {
            let (were, them) = if jobs == 1 { ("job was", "it") } else { ("jobs were", "them") };
            format!("{jobs} {were} not started in the last two minutes: too little time was left to {them}")
        })
    }
}

fn has_deadline(job: &Job) -> bool {
    job.options.as_ref().is_some_and(|options| options.deadline.is_some())
}

#[cfg(test)]
mod tests {
    use longshore_domain::JobOptions;
    use longshore_domain::job::When;
    use longshore_domain::quickest::{ENOUGH, SPAN};

    use super::*;

    fn job(job_type: &str, deadline: bool) -> Job {
        let options = JobOptions { deadline: deadline.then_some(When::After(LATELY)), ..JobOptions::default() };
        Job { options: Some(Box::new(options)), ..crate::tests::job(job_type, "r") }
    }

    #[test]
    fn jobs_with_a_deadline_alone_are_counted_and_asked_about() {
        let (shed, now, took) = (Shed::default(), Instant::now(), Duration::from_millis(70));
        for _ in 0..ENOUGH {
            shed.succeeded(&job("a", true), took, now);
            shed.succeeded(&job("b", false), took, now);
        }
        assert_eq!(shed.needs(&job("a", true), now), Some(took));
        assert_eq!(shed.needs(&job("a", false), now), None);
        assert_eq!(shed.needs(&job("b", true), now), None);
        assert_eq!(shed.quickest.lock().unpoisoned().len(), 1);
    }

    #[test]
    fn no_more_kinds_are_known_than_may_be_and_forgotten_ones_make_room() {
        let (shed, from) = (Shed::default(), Instant::now());
        for number in 0..=KINDS {
            shed.succeeded(&job(&format!("t{number}"), true), LATELY, from);
        }
        assert_eq!(shed.quickest.lock().unpoisoned().len(), KINDS);
        shed.succeeded(&job("new", true), LATELY, from + 2 * SPAN);
        assert_eq!(shed.quickest.lock().unpoisoned().len(), 1);
    }

    #[test]
    fn what_was_given_up_is_known_for_a_while() {
        let (shed, from) = (Shed::default(), Instant::now());
        assert_eq!(shed.warning(from), None);
        assert!(shed.gave_up(from));
        assert!(!shed.gave_up(from + LATELY), "it was published a minute ago");
        let text = "2 jobs were not started in the last two minutes: too little time was left to them";
        assert_eq!(shed.warning(from + LATELY).as_deref(), Some(text));
        assert!(shed.warning(from + 2 * LATELY).is_some_and(|text| text.starts_with("1 job was ")));
        assert_eq!(shed.warning(from + 3 * LATELY), None);
        assert!(shed.gave_up(from + 4 * LATELY));
    }
}
