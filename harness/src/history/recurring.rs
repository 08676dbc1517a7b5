//! Checks recurring schedules: each due time has its run, no run stands for another time, none is published before it
//! was due, and where overlaps are left out, none before the end of the run before it. That a time has no two runs
//! follows from its name, and from what is checked of every run.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::by_run::Run;
use super::facts::{History, Recurring};
use super::span;
use super::violation::{Kind, Violation};

/// Judges every schedule by the runs of its name.
pub(super) fn judge(history: &History, runs: &[Run<'_>], found: &mut Vec<Violation>) {
    for schedule in &history.recurring {
        let (mut missing, mut by_time) = (schedule.due(), BTreeMap::new());
        let skew = span(history.rules.clock_skew);
        for run in runs.iter().filter(|run| run.tenant == schedule.tenant) {
            let Some(due) = schedule.due_of(&run.id) else { continue };
            if !missing.remove(&due) {
                let detail = format!("{due} is no due time of the schedule {}, or lies beyond its last", schedule.id);
                found.push(run.violation(Kind::FiringUnplanned, detail));
            }
            by_time.insert(due, run);
            if let Some(early) = run.events.iter().find(|event| event.at + skew < due) {
                let detail = format!("{} {:#} before its firing was due", early.event, due.duration_since(early.at));
                found.push(run.violation(Kind::Early, detail));
            }
        }
        if schedule.leaves_out {
            overlaps(schedule, &by_time.into_values().collect::<Vec<_>>(), skew, found);
            continue;
        }
        let missing = missing.into_iter().map(|due| Violation {
            tenant: schedule.tenant.clone(),
            run_id: schedule.run_of(due),
            kind: Kind::FiringMissing,
            detail: format!("the schedule {} was due at {due}, and there is no such run", schedule.id),
            thawed: None,
        });
        found.extend(missing);
    }
}

/// Judges the runs of a schedule that leaves overlaps out, in the order of their times.
fn overlaps(schedule: &Recurring, runs: &[&Run<'_>], skew: SignedDuration, found: &mut Vec<Violation>) {
    for pair in runs.windows(2) {
        let [before, after] = pair else { continue };
        let end = before.events.iter().filter(|event| event.event.is_end()).map(|event| event.at).max();
        let Some(begin) = after.events.iter().map(|event| event.at).min() else { continue };
        if end.is_none_or(|end| end > begin + skew) {
            let detail = format!("the schedule {} leaves overlaps out, and {} had not ended", schedule.id, before.id);
            found.push(after.violation(Kind::FiringOverlaps, detail));
        }
    }
}

impl Recurring {
    /// The run of a due time.
    pub fn run_of(&self, due: Timestamp) -> String {
        format!("{}-{}", self.id, due.as_millisecond())
    }

    /// Every due time.
    pub fn due(&self) -> BTreeSet<Timestamp> {
        let times = std::iter::successors(Some(self.first), |last| last.checked_add(span(self.every)).ok());
        times.take_while(|due| *due <= self.last).collect()
    }

    /// The due time that a run's id names, if the run is this schedule's.
    fn due_of(&self, run: &str) -> Option<Timestamp> {
        let millis = run.strip_prefix(&self.id)?.strip_prefix('-')?.parse().ok()?;
        Timestamp::from_millisecond(millis).ok()
    }
}
