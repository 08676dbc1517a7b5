//! What a node has counted in each ten seconds of the last hour. The slots are those of the cluster's time, so that the
//! counts of several nodes can be added.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longshore_backbone::wire::api::{Quantiles, StatsPoint};
use longshore_domain::Timestamp;
use prometheus::Histogram;
use prometheus::core::Metric as _;
use serde::{Deserialize, Serialize};

pub(super) const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

/// What stands for a time above the last of these, in milliseconds: it has no bound.
const ABOVE: u64 = 600_001;

pub(crate) const SLOT: Duration = Duration::from_secs(10);
/// Slots of an hour.
const KEPT: usize = 360;

/// What was counted, since the start of the node or in one slot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) enqueued: u64,
    pub(crate) ended: u64,
    pub(crate) failed: u64,
    pub(crate) wait: Spread,
    pub(crate) run: Spread,
}

/// How many times there were up to each edge of a histogram, and in all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread(Vec<u64>);

#[derive(Debug, Default)]
pub(crate) struct History {
    /// The slot that goes on, and what was counted until it began.
    last: Option<(i64, Counted)>,
    slots: VecDeque<(i64, Counted)>,
}

impl History {
    /// So much was counted since the start of the node until `at`.
    pub(crate) fn look(&mut self, at: Timestamp, all: impl FnOnce() -> Counted) {
        let slot = at.millis().div_euclid(SLOT.as_millis() as i64);
        match &self.last {
            Some((last, _)) if slot <= *last => {}
            Some((last, before)) => {
                let all = all();
                self.slots.truncate(KEPT - 1);
                self.slots.push_front((*last, all.since(before)));
                self.last = Some((slot, all));
            }
            None => self.last = Some((slot, all())),
        }
    }

    /// Each slot that is over, the newest first.
    pub(crate) fn slots(&self) -> Vec<(i64, Counted)> {
        self.slots.iter().cloned().collect()
    }
}

impl Counted {
    /// Adds what other counters or another node have counted.
    pub(crate) fn add(&mut self, other: &Self) {
        self.enqueued += other.enqueued;
        self.ended += other.ended;
        self.failed += other.failed;
        self.wait.add(&other.wait);
        self.run.add(&other.run);
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            enqueued: self.enqueued.saturating_sub(before.enqueued),
            ended: self.ended.saturating_sub(before.ended),
            failed: self.failed.saturating_sub(before.failed),
            wait: self.wait.since(&before.wait),
            run: self.run.since(&before.run),
        }
    }
}

impl Spread {
    pub(crate) fn of(histogram: &Histogram) -> Self {
        let metric = histogram.metric();
        let found = metric.get_histogram();
        let edges = found.get_bucket().iter().map(|bucket| bucket.cumulative_count());
        Self(edges.chain([found.get_sample_count()]).collect())
    }

    fn add(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own += other);
    }

    fn since(&self, before: &Self) -> Self {
        let before = before.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect())
    }

    /// The edges below which half and 99 of 100 times lie.
    fn quantiles(&self) -> Option<Quantiles> {
        let all = *self.0.last().filter(|all| **all > 0)?;
        let below = |percent: u64| {
            let at = self.0.iter().position(|count| count * 100 >= all * percent).unwrap_or(0);
            SECONDS.get(at).map_or(ABOVE, |edge| (edge * 1_000.0).ceil() as u64)
        };
        Some(Quantiles { p50_ms: below(50), p99_ms: below(99) })
    }
}

/// The counts of several nodes together, the oldest first.
pub(crate) fn together(nodes: impl Iterator<Item = Vec<(i64, Counted)>>) -> Vec<StatsPoint> {
    let mut slots = BTreeMap::<i64, Counted>::new();
    nodes.flatten().for_each(|(slot, counted)| slots.entry(slot).or_default().add(&counted));
    let point = |(slot, counted): (i64, Counted)| StatsPoint {
        at: Timestamp::from_millis(slot.saturating_mul(SLOT.as_millis() as i64)),
        enqueued: counted.enqueued,
        ended: counted.ended,
        failed: counted.failed,
        wait: counted.wait.quantiles(),
        run: counted.run.quantiles(),
    };
    slots.into_iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(enqueued: u64, times: &[u64]) -> Counted {
        Counted { enqueued, wait: Spread(times.to_vec()), ..Counted::default() }
    }

    #[test]
    fn each_slot_has_what_came_in_it_and_an_hour_is_kept() {
        let mut history = History::default();
        for second in 0..4_000 {
            history.look(Timestamp::from_millis(second * 1_000), || counted(second as u64, &[second as u64]));
        }
        let slots = history.slots();
        assert_eq!((slots.len(), slots[0].0, slots[359].0), (360, 398, 39));
        assert!(slots.iter().all(|(_, of)| *of == counted(10, &[10])));
    }

    #[test]
    fn nodes_are_added_slot_by_slot() {
        let one = vec![(7, counted(1, &[1, 1, 1, 1])), (6, counted(2, &[0, 0, 0, 0]))];
        let other = vec![(7, counted(10, &[0, 97, 99, 99]))];
        let points = together([one, other].into_iter());
        let shown: Vec<_> = points.iter().map(|point| (point.at.millis(), point.enqueued, point.wait)).collect();
        let times = Quantiles { p50_ms: 3, p99_ms: 5 };
        assert_eq!(shown, [(60_000, 2, None), (70_000, 11, Some(times))]);

        // One of ten minutes at most, and so many in all.
        for (all, millis) in [(1, 600_000), (3, 600_001)] {
            let slow = Spread([0; 13].into_iter().chain([1, all]).collect());
            assert_eq!(slow.quantiles(), Some(Quantiles { p50_ms: millis, p99_ms: millis }));
        }
    }
}
