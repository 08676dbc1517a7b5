//! Counts jobs from events, by job type: how many run, wait for a retry or have ended, and how fast.
//!
//! Live events can be missed, so each run's state is kept by its id, and the run's next event corrects the count. How
//! many jobs wait in a queue is not counted from events but asked: jobs that were published before `dev` started sent
//! none.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use longshore_domain::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use crate::cli::output::text;

/// Rates are over this long.
const WINDOW: Duration = Duration::from_secs(5);

/// At most so many runs are followed by id; beyond it, runs that wait for a retry are no longer counted exactly.
const FOLLOWED: usize = 100_000;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) running: u64,
    pub(crate) scheduled: u64,
    pub(crate) retrying: u64,
    pub(crate) deferred: u64,
    pub(crate) completed: u64,
    pub(crate) failed_attempts: u64,
    pub(crate) cancelled: u64,
    pub(crate) dead: u64,
    /// Jobs that wait because no handler is there for them, the tenant of the last one, and since when.
    pub(crate) without_handler: u64,
    pub(crate) tenant: String,
    pub(crate) without_handler_since: String,
    /// Completed in each second of the window, the newest last: when the first of them was, since the start, and how
    /// many.
    recent: VecDeque<(Duration, u64)>,
    /// When the newest event came, in seconds since the start.
    pub(crate) last: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LiveState {
    Running,
    Scheduled,
    Retrying,
    Deferred,
    WithoutHandler,
}

#[derive(Debug)]
pub(crate) struct Tally {
    start: Instant,
    types: BTreeMap<String, Counts>,
    runs: HashMap<String, LiveState>,
    /// Runs that were cancelled before they were seen at work, and when: a start that is late is not counted.
    cancelled: HashMap<String, Option<Timestamp>>,
}

impl Tally {
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, types: BTreeMap::new(), runs: HashMap::new(), cancelled: HashMap::new() }
    }

    pub(crate) fn count(&mut self, event: &Value, now: Instant) {
        let (job_type, run_id) = (text(event, "type"), text(event, "run_id"));
        if job_type.is_empty() || run_id.is_empty() {
            return; // a system event
        }
        let run = format!("{}/{run_id}", text(event, "tenant"));
        let elapsed = now.duration_since(self.start);
        let at = Timestamp::parse(text(event, "at")).ok();
        if self.cancelled.get(&run).is_some_and(|cancelled| at <= *cancelled) {
            return;
        }
        let place = match text(event, "event") {
            "started" | "progress" | "log" => Some(LiveState::Running),
            "scheduled" => Some(LiveState::Scheduled),
            "failed" if event.get("retry_at").is_some() => Some(LiveState::Retrying),
            "deferred" if text(event, "reason") == "no_handler_online" => Some(LiveState::WithoutHandler),
            "deferred" => Some(LiveState::Deferred),
            _ => None,
        };
        let counts = self.types.entry(job_type.to_owned()).or_default();
        counts.last = elapsed.as_secs();
        match text(event, "event") {
            "completed" => counts.complete(elapsed),
            "failed" => counts.failed_attempts += 1,
            "dlq" | "expired" => counts.dead += 1,
            "cancelled" => {
                counts.cancelled += 1;
                if self.cancelled.len() < FOLLOWED && self.runs.get(&run) != Some(&LiveState::Running) {
                    self.cancelled.insert(run.clone(), at);
                }
            }
            _ => {}
        }
        let before = match place {
            Some(place) if self.runs.len() < FOLLOWED || self.runs.contains_key(&run) => self.runs.insert(run, place),
            _ => self.runs.remove(&run),
        };
        if place == Some(LiveState::WithoutHandler) && counts.without_handler == 0 {
            counts.tenant = text(event, "tenant").to_owned();
            counts.without_handler_since = text(event, "at").to_owned();
        }
        counts.moved(before, place);
    }

    /// The types, the one with the newest event first.
    pub(crate) fn types(&self) -> Vec<(&str, &Counts)> {
        let mut types: Vec<_> = self.types.iter().map(|(name, counts)| (name.as_str(), counts)).collect();
        types.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.last));
        types
    }

    pub(crate) fn running(&self) -> u64 {
        self.types.values().map(|counts| counts.running).sum()
    }

    /// Completed per second of a type, over the last seconds; of a burst that began within them, since it began.
    pub(crate) fn rate(&self, counts: &Counts, now: Instant) -> f64 {
        let elapsed = now.duration_since(self.start);
        let since = elapsed.saturating_sub(WINDOW);
        let within = || counts.recent.iter().filter(|(first, _)| first.as_secs() >= since.as_secs());
        let Some((began, _)) = within().next() else { return 0.0 };
        let completed: u64 = within().map(|(_, count)| count).sum();
        completed as f64 / elapsed.saturating_sub(*began).as_secs_f64().max(1.0)
    }

    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        now.duration_since(self.start)
    }
}

impl Counts {
    fn complete(&mut self, elapsed: Duration) {
        self.completed += 1;
        match self.recent.back_mut() {
            Some((newest, count)) if newest.as_secs() == elapsed.as_secs() => *count += 1,
            _ => self.recent.push_back((elapsed, 1)),
        }
        while self.recent.front().is_some_and(|(oldest, _)| oldest.as_secs() + WINDOW.as_secs() < elapsed.as_secs()) {
            self.recent.pop_front();
        }
    }

    fn moved(&mut self, before: Option<LiveState>, after: Option<LiveState>) {
        for (place, by) in [(before, -1), (after, 1)] {
            let count = match place {
                Some(LiveState::Running) => &mut self.running,
                Some(LiveState::Scheduled) => &mut self.scheduled,
                Some(LiveState::Retrying) => &mut self.retrying,
                Some(LiveState::Deferred | LiveState::WithoutHandler) => &mut self.deferred,
                None => continue,
            };
            *count = count.saturating_add_signed(by);
            if place == Some(LiveState::WithoutHandler) {
                self.without_handler = self.without_handler.saturating_add_signed(by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tally(events: &[(&str, &str)]) -> Tally {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        for (run, event) in events {
            let retry = (*event == "failed").then_some("2026-11-21T12:00:00.000Z");
            let mut event = json!({"event": event, "run_id": run, "type": "t", "tenant": "default"});
            if let Some(at) = retry {
                event["retry_at"] = json!(at);
            }
            tally.count(&event, start);
        }
        tally
    }

    fn counts(events: &[(&str, &str)]) -> (u64, u64, u64, u64, u64) {
        let tally = tally(events);
        let counts = &tally.types["t"];
        (counts.running, counts.retrying, counts.completed, counts.failed_attempts, counts.dead)
    }

    #[test]
    fn a_run_is_counted_where_its_last_event_puts_it() {
        assert_eq!(
            counts(&[("a", "enqueued"), ("a", "started"), ("b", "enqueued"), ("b", "started")]),
            (2, 0, 0, 0, 0)
        );
        assert_eq!(counts(&[("a", "started"), ("a", "failed")]), (0, 1, 0, 1, 0));
        assert_eq!(counts(&[("a", "started"), ("a", "failed"), ("a", "started"), ("a", "completed")]), (0, 0, 1, 1, 0));
        assert_eq!(counts(&[("a", "started"), ("a", "dlq"), ("b", "expired")]), (0, 0, 0, 0, 2));
        assert_eq!(counts(&[("a", "started"), ("a", "released")]), (0, 0, 0, 0, 0));
    }

    #[test]
    fn a_job_that_waits_is_counted_by_what_it_waits_for() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        let mut happens = |run: &str, event: &str, reason: &str| {
            let event =
                json!({"event": event, "run_id": run, "type": "t", "tenant": "acme", "reason": reason, "at": "x"});
            tally.count(&event, start);
            let counts = &tally.types["t"];
            (counts.scheduled, counts.deferred, counts.without_handler, counts.cancelled)
        };
        assert_eq!(happens("a", "scheduled", ""), (1, 0, 0, 0));
        assert_eq!(happens("b", "deferred", "no_handler_online"), (1, 1, 1, 0));
        assert_eq!(happens("a", "deferred", "busy"), (0, 2, 1, 0));
        assert_eq!(happens("b", "started", ""), (0, 1, 0, 0));
        assert_eq!(happens("a", "cancelled", ""), (0, 0, 0, 1));
        assert_eq!(tally.types["t"].tenant, "acme");
    }

    #[test]
    fn a_start_that_comes_after_its_cancellation_is_not_counted() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        let mut runs = |event: &str, at: &str| {
            let event = json!({"event": event, "run_id": "a", "type": "t", "tenant": "d", "at": at});
            tally.count(&event, start);
            tally.running()
        };
        assert_eq!(runs("cancelled", "2026-11-21T12:00:00.48Z"), 0);
        assert_eq!(runs("started", "2026-11-21T12:00:00.471Z"), 0);
        assert_eq!(runs("started", "2026-11-21T12:00:01Z"), 1, "it was replayed");
    }

    #[test]
    fn a_missed_event_does_no_lasting_harm() {
        assert_eq!(counts(&[("a", "completed")]), (0, 0, 1, 0, 0));
        assert_eq!(counts(&[("a", "started"), ("a", "started"), ("a", "completed")]), (0, 0, 1, 0, 0));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        let at = |second: u64| start + Duration::from_secs(second);
        for second in 0..20 {
            for run in 0..10 {
                let event =
                    json!({"event": "completed", "run_id": format!("{second}-{run}"), "type": "t", "tenant": "d"});
                tally.count(&event, at(second));
            }
        }
        let rate = tally.rate(&tally.types["t"], at(19) + Duration::from_millis(999));
        assert!((10.0..=12.0).contains(&rate), "{rate}");
        assert!(tally.rate(&tally.types["t"], at(40)).abs() < f64::EPSILON, "nothing lately");
        assert!(tally.types["t"].recent.len() < 10, "memory stays flat");
        for run in 0..600 {
            let event = json!({"event": "completed", "run_id": format!("burst-{run}"), "type": "t", "tenant": "d"});
            tally.count(&event, at(60));
        }
        let rate = tally.rate(&tally.types["t"], at(62));
        assert!((299.0..=301.0).contains(&rate), "a burst of two seconds: {rate}");
        for run in 0..1_000_u64 {
            let event = json!({"event": "completed", "run_id": format!("late-{run}"), "type": "t", "tenant": "d"});
            tally.count(&event, at(80) + Duration::from_millis(900 + run));
        }
        let rate = tally.rate(&tally.types["t"], at(81) + Duration::from_millis(900));
        assert!((999.0..=1_001.0).contains(&rate), "a burst that began late in a second: {rate}");
    }
}
