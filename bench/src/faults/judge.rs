//! What the event log says of faults: how long no attempt started, when the stored jobs had ended, which jobs never
//! did, and which ended twice; and what the handler says: the runs that it was called for more than once.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use longshore_harness::World;
use longshore_harness::history::Call;

use crate::event_log::{self, Event};
use crate::faults::load::Stored;

/// One fault.
#[derive(Debug)]
pub(super) struct Fault {
    pub at: Timestamp,
    /// When the frozen part was thawed; `at` for a kill.
    pub thawed: Timestamp,
    /// When the next fault may come.
    pub over: Timestamp,
}

/// The result of a round of faults. Times in seconds, one per fault.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Verdict {
    pub pauses: Vec<f64>,
    pub caught_up: Vec<f64>,
    pub thawed: Vec<f64>,
    pub jobs: usize,
    pub again: usize,
    pub done_twice: usize,
    pub lost: usize,
    pub twice: usize,
    pub repeats: usize,
}

/// How long a job waited.
#[derive(Debug)]
pub(super) struct Wait {
    pub due: Timestamp,
    pub seconds: f64,
}

/// The contents of the log.
#[derive(Debug, Default)]
struct Log {
    /// When starts happened.
    starts: Vec<Timestamp>,
    runs: HashMap<String, Life>,
    repeats: usize,
}

/// What the log has of one run.
#[derive(Debug, Default)]
struct Life {
    ids: HashSet<String>,
    ends: usize,
    /// When the server stored its first end.
    ended: Option<Timestamp>,
    /// When it first started.
    started: Option<Timestamp>,
    began_again: bool,
}

/// Reads the log and judges.
pub(super) async fn judge(
    world: &World,
    stored: &[Stored],
    faults: &[Fault],
    calls: &[Call],
) -> anyhow::Result<Verdict> {
    let mut log = Log::read(world).await?;
    Ok(Verdict { done_twice: done_twice(calls), ..log.judge(stored, faults) })
}

/// How long each of these jobs had to wait for its first start, from the time at which it was to be published; and how
/// long after `repaired` the last of those that were due then has started.
pub(super) async fn waits(world: &World, stored: &[Stored], repaired: Timestamp) -> anyhow::Result<(Vec<Wait>, f64)> {
    Ok(Log::read(world).await?.waits(stored, repaired))
}

impl Log {
    async fn read(world: &World) -> anyhow::Result<Log> {
        let mut log = Log::default();
        let mut wrong = None;
        event_log::read(world, |event| match (event.at.parse(), Timestamp::from_nanosecond(event.stored)) {
            (Ok(at), Ok(stored)) => log.note(event, at, stored),
            (Err(error), _) | (_, Err(error)) => wrong = Some(error),
        })
        .await?;
        match wrong {
            Some(error) => Err(error.into()),
            None => Ok(log),
        }
    }

    fn note(&mut self, event: &Event<'_>, at: Timestamp, stored: Timestamp) {
        let life = self.runs.entry(event.run_id.to_owned()).or_default();
        if !life.ids.insert(event.id.to_owned()) {
            self.repeats += 1;
            return;
        }
        match event.event {
            "started" => {
                // An attempt's second start has its ordinal behind the event's name.
                life.began_again |= event.attempt > 1 || !event.id.ends_with("/started");
                life.started = Some(life.started.map_or(at, |first| first.min(at)));
                self.starts.push(at);
            }
            "completed" | "dlq" | "cancelled" | "expired" | "duplicate" | "discarded" => {
                life.ends += 1;
                life.ended = Some(life.ended.map_or(stored, |first| first.min(stored)));
            }
            _ => {}
        }
    }

    fn judge(&mut self, stored: &[Stored], faults: &[Fault]) -> Verdict {
        self.starts.sort_unstable();
        let life = |job: &Stored| self.runs.get(&job.run_id);
        let mut verdict = Verdict { jobs: stored.len(), repeats: self.repeats, ..Verdict::default() };
        for fault in faults {
            verdict.pauses.push(self.pause(fault));
            let had_come = stored.iter().filter(|job| job.at <= fault.at && !job.remote);
            let last = had_come.filter_map(|job| life(job)?.ended).max().unwrap_or(fault.at).max(fault.at);
            verdict.caught_up.push(seconds(fault.at, last));
            verdict.thawed.push(seconds(fault.thawed, last));
        }
        verdict.again = self.runs.values().filter(|life| life.began_again).count();
        verdict.lost = stored.iter().filter(|job| life(job).is_none_or(|life| life.ends == 0)).count();
        verdict.twice = self.runs.values().filter(|life| life.ends > 1).count();
        verdict
    }

    fn waits(&self, stored: &[Stored], repaired: Timestamp) -> (Vec<Wait>, f64) {
        let built_in = || stored.iter().filter(|job| !job.remote);
        let start = |job: &Stored| self.runs.get(&job.run_id).and_then(|life| life.started);
        let waits = built_in().filter_map(|job| Some(Wait { due: job.due, seconds: seconds(job.due, start(job)?) }));
        let last = built_in().filter(|job| job.due <= repaired).filter_map(start).max().unwrap_or(repaired);
        (waits.collect(), seconds(repaired, last))
    }

    /// The longest time without a start between a fault and the next one.
    fn pause(&self, fault: &Fault) -> f64 {
        let within = self.starts.iter().filter(|at| **at > fault.at && **at < fault.over).copied();
        let marks: Vec<Timestamp> = [fault.at].into_iter().chain(within).chain([fault.over]).collect();
        marks.windows(2).map(|pair| seconds(pair[0], pair[1])).fold(0.0, f64::max)
    }
}

/// Runs with more than one call. No job here fails, so each further call repeats the same work.
fn done_twice(calls: &[Call]) -> usize {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for call in calls {
        *counts.entry(&call.run_id).or_default() += 1;
    }
    counts.values().filter(|count| **count > 1).count()
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn event<'a>(run_id: &'a str, event: &'a str, id: &'a str, attempt: u32) -> Event<'a> {
        Event { id, event, run_id, attempt, at: "", stored: 0 }
    }

    #[test]
    fn pauses_ends_losses_and_repeats_are_counted_apart() {
        let mut log = Log::default();
        log.note(&event("a", "started", "a/started", 1), at(10), at(10));
        log.note(&event("a", "completed", "a/completed", 1), at(11), at(11));
        log.note(&event("a", "completed", "a/completed", 1), at(11), at(11));
        log.note(&event("b", "started", "b/started/2", 1), at(17), at(18));
        log.note(&event("b", "completed", "b/1/completed", 1), at(18), at(19));
        log.note(&event("b", "completed", "b/2/completed", 2), at(18), at(25));
        let stored = ["a", "b", "c"].map(|run| Stored { run_id: run.to_owned(), remote: false, due: at(9), at: at(9) });
        let verdict = log.judge(&stored, &[Fault { at: at(12), thawed: at(14), over: at(20) }]);
        let expected = Verdict {
            pauses: vec![5.0],
            caught_up: vec![7.0],
            thawed: vec![5.0],
            jobs: 3,
            again: 1,
            done_twice: 0,
            lost: 1,
            twice: 1,
            repeats: 1,
        };
        assert_eq!(verdict, expected);
        // `a` waited for 1 s and `b` for 8, 5 of them after the repair; `c` never started.
        let (waits, recovered) = log.waits(&stored, at(12));
        assert_eq!(waits.iter().map(|wait| wait.seconds).collect::<Vec<_>>(), [1.0, 8.0]);
        assert_eq!(recovered, 5.0);
    }

    #[test]
    fn a_run_is_done_twice_if_its_handler_was_called_more_than_once() {
        let call = |run: &str, attempt| {
            let (tenant, run_id) = ("default".to_owned(), run.to_owned());
            Call { tenant, run_id, round: 1, attempt, start: at(1), end: None, node: None }
        };
        assert_eq!(
            done_twice(&[call("a", 1), call("b", 1), call("a", 1), call("c", 1), call("c", 2), call("c", 3)]),
            2
        );
    }
}
