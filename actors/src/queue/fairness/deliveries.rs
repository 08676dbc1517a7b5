//! How long a queue's lanes are, as their deliveries say; whether jobs were long on their way; and, while some node
//! wants to know it, how many jobs of each fairness key this node was delivered.
//!
//! Written by the queue's scheduler, for every job: without a question that is one store. Bound: [`MAX_COUNTED`] pairs
//! of priority and key.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longshore_backbone::deliveries::{DeliveryCount, DeliveryCounts};
use longshore_domain::fairness::{FairBy, FairnessKey};
use longshore_domain::two_spans::TwoSpans;
use longshore_domain::{Job, Priority, QueueLane, Timestamp};

use crate::runtime::Unpoisoned as _;

/// Pairs of priority and key that are counted; jobs of others are not.
const MAX_COUNTED: usize = 8_192;
/// What nobody has asked for in this time is no longer counted.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Servers deliver a job within milliseconds; one that is on its way for so long is worth a warning, for this time and
/// as long again.
const LONG: Duration = Duration::from_secs(1);
const LATELY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    /// How many jobs stood behind the last one that was delivered from each lane.
    behind: [AtomicU64; Priority::COUNT],
    /// What counts as one key.
    by: FairBy,
    /// The longest time that a job was on its way, if that was long.
    longest: Mutex<Option<TwoSpans<Duration>>>,
    counts: AtomicBool,
    counting: Mutex<Counting>,
}

#[derive(Debug, Default)]
struct Counting {
    since: Timestamp,
    asked_at: Option<Instant>,
    /// From their lane, and from the lane of returned jobs.
    of: HashMap<(Priority, FairnessKey), [u64; 2]>,
}

impl Deliveries {
    /// Nothing is known yet of a queue that is fair so.
    pub(crate) fn new(by: FairBy) -> Self {
        Self { by, ..Self::default() }
    }

    /// A job was delivered from the lane of this number; `behind` more stood behind it.
    pub(crate) fn came(&self, lane: usize, behind: u64, job: &Job) {
        let of_lane = self.behind.get(lane);
        if let Some(of_lane) = of_lane {
            of_lane.store(behind, Ordering::Relaxed);
        }
        if self.counts.load(Ordering::Relaxed) {
            let kind = (job.priority, self.by.key_of(job));
            self.counting.lock().unpoisoned().count(usize::from(of_lane.is_none()), kind);
        }
    }

    /// A job was so long on its way from its lane, in which it was alone, to this node.
    pub(crate) fn took(&self, time: Duration, now: Instant) {
        if time >= LONG {
            let mut longest = self.longest.lock().unpoisoned();
            let mut spans = longest.unwrap_or_else(|| TwoSpans::new(now)).at(now, LATELY);
            spans.this = spans.this.max(time);
            *longest = Some(spans);
        }
    }

    /// The longest time in the last two minutes, if it was long.
    pub(crate) fn longest(&self, now: Instant) -> Option<Duration> {
        let spans = (*self.longest.lock().unpoisoned())?.at(now, LATELY);
        Some(spans.this.max(spans.before)).filter(|longest| !longest.is_zero())
    }

    /// The lanes that had more than so many jobs left at their last delivery.
    pub(crate) fn longer_than(&self, jobs: u64) -> Vec<Priority> {
        let is_long = |priority: &Priority| self.behind_of(*priority).load(Ordering::Relaxed) > jobs;
        Priority::all().filter(is_long).collect()
    }

    /// A lane is known to be shorter than its last delivery said.
    pub(crate) fn is_short(&self, priority: Priority) {
        self.behind_of(priority).store(0, Ordering::Relaxed);
    }

    fn behind_of(&self, priority: Priority) -> &AtomicU64 {
        &self.behind[QueueLane::Of(priority).index()]
    }

    /// What was counted since the first question; from it on, jobs are counted.
    pub(crate) fn asked(&self, node: &str, at: Instant, now: Timestamp) -> DeliveryCounts {
        let mut counting = self.counting.lock().unpoisoned();
        if counting.asked_at.replace(at).is_none() {
            counting.since = now;
        }
        self.counts.store(true, Ordering::Relaxed);
        let of = counting.of.iter().map(|((priority, key), [from_lane, returned])| DeliveryCount {
            priority: *priority,
            key: key.clone(),
            from_lane: *from_lane,
            returned: *returned,
        });
        DeliveryCounts { by: self.by, node: node.to_owned(), since_ms: counting.since.millis(), of: of.collect() }
    }

    /// Stops counting if nobody has asked for a while.
    pub(crate) fn forget_unasked(&self, now: Instant) {
        if !self.counts.load(Ordering::Relaxed) {
            return;
        }
        let mut counting = self.counting.lock().unpoisoned();
        if counting.asked_at.is_some_and(|at| now.duration_since(at) > FORGOTTEN_AFTER) {
            self.counts.store(false, Ordering::Relaxed);
            *counting = Counting::default();
        }
    }
}

impl Counting {
    fn count(&mut self, way: usize, key: (Priority, FairnessKey)) {
        if self.of.len() < MAX_COUNTED || self.of.contains_key(&key) {
            self.of.entry(key).or_default()[way] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::{JobType, Queue, RunId, Tenant};

    use super::*;

    fn job(tenant: &str, priority: u64) -> Job {
        Job {
            tenant: Tenant::parse(tenant).unwrap(),
            queue: Queue::main(),
            priority: Priority::new(priority).unwrap(),
            job_type: JobType::parse("t").unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: None,
        }
    }

    #[test]
    fn jobs_are_counted_from_the_first_question_until_nobody_asks() {
        let (deliveries, start) = (Deliveries::default(), Instant::now());
        let asked = |at, now| deliveries.asked("n", start + at, Timestamp::from_millis(now));
        deliveries.came(4, 5_000, &job("a", 5));
        assert_eq!(asked(Duration::ZERO, 7).of, [], "nobody had asked");
        deliveries.came(4, 4_999, &job("a", 5));
        deliveries.came(QueueLane::Returned.index(), 9_000, &job("a", 5));
        let counts = asked(Duration::from_secs(9), 8);
        assert_eq!((counts.since_ms, counts.of.len()), (7, 1));
        assert_eq!((counts.of[0].from_lane, counts.of[0].returned), (1, 1));
        assert_eq!(deliveries.longer_than(1_000), [Priority::DEFAULT]);
        deliveries.is_short(Priority::DEFAULT);
        assert_eq!(deliveries.longer_than(1_000), []);
        deliveries.forget_unasked(start + Duration::from_secs(19));
        assert_eq!(asked(Duration::from_secs(19), 9).of.len(), 1);
        deliveries.forget_unasked(start + Duration::from_secs(30));
        let anew = asked(Duration::from_secs(31), 10);
        assert_eq!((anew.since_ms, anew.of.len()), (10, 0));
    }

    #[test]
    fn the_longest_time_on_the_way_is_known_for_two_minutes_if_it_was_long() {
        let (deliveries, start) = (Deliveries::default(), Instant::now());
        deliveries.took(Duration::from_millis(999), start);
        assert_eq!(deliveries.longest(start), None);
        for seconds in [3, 5, 2] {
            deliveries.took(Duration::from_secs(seconds), start);
        }
        assert_eq!(deliveries.longest(start + LATELY), Some(Duration::from_secs(5)));
        assert_eq!(deliveries.longest(start + 2 * LATELY), None);
    }
}
