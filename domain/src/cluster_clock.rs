//! The cluster's time: what the NATS server's clock shows, as a node finds it out by asking.
//!
//! Nodes judge by it everything that others judge as well: what is due, expired, paused, there. A node's own time of
//! day judges nothing; how far it is off is shown, for people. Leases do not belong here: they are spans of each
//! node's own monotonic clock.
//!
//! Three clocks play a part, all in microseconds: the server's, the process's monotonic one, which nobody sets and on
//! which the cluster's time is carried on between two questions, and the machine's time of day.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::Timestamp;

/// So many comparisons are kept.
const KEPT: usize = 8;
/// By so much clocks may drift apart while comparisons are kept, in microseconds.
const DRIFT: i64 = 10_000;
/// A machine's clock that is further off is warned of.
const OFF: Duration = Duration::from_secs(1);
/// A node whose machine's clock is further off is not ready.
const FAR_OFF: Duration = Duration::from_secs(30);

/// One comparison of the server's clock with the process's monotonic one: the first is ahead by something between two
/// bounds, as an answer takes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    least: i64,
    most: i64,
}

impl Comparison {
    /// The server's clock showed `server` at some moment after `sent` and before `received` of the monotonic one.
    pub fn new(server: Timestamp, sent: Duration, received: Duration) -> Self {
        let server = server.millis().saturating_mul(1_000);
        // A time stamp is cut to the millisecond.
        Self { least: server - micros(received), most: server + 999 - micros(sent) }
    }

    fn takes(self) -> i64 {
        self.most - self.least
    }

    /// What both allow; this one alone, if that is nothing, as the clocks have drifted.
    fn narrowed(self, other: Self) -> Self {
        let both = Self { least: self.least.max(other.least), most: self.most.min(other.most) };
        if both.takes() < 0 { self } else { both }
    }

    fn fits(self, other: Self) -> bool {
        self.least <= other.most + DRIFT && other.least <= self.most + DRIFT
    }
}

/// The last comparisons.
#[derive(Debug, Default)]
pub struct Comparisons(VecDeque<Comparison>);

impl Comparisons {
    /// Adds a comparison. Earlier ones that contradict it are dropped: the server's clock was set, another server leads
    /// by now, or the machine was suspended.
    pub fn add(&mut self, comparison: Comparison) {
        self.0.retain(|earlier| earlier.fits(comparison));
        self.0.truncate(KEPT - 1);
        self.0.push_front(comparison);
    }

    /// By how much the cluster's time is ahead of the monotonic clock, and how far the truth may be from that. `own` is
    /// by how much the machine's time of day is: where the two may agree, they do.
    pub fn ahead(&self, own: i64) -> Option<(i64, i64)> {
        // The fastest one is the most exact; the others may cut its ends off.
        let fastest = self.0.iter().copied().min_by_key(|comparison| comparison.takes())?;
        let best = self.0.iter().copied().fold(fastest, Comparison::narrowed);
        let agree = (best.least..=best.most).contains(&own);
        let ahead = if agree { own } else { best.least + best.takes() / 2 };
        Some((ahead, best.takes()))
    }
}

/// How far a clock is from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew {
    /// Milliseconds by which it is ahead; negative: behind.
    pub ahead_ms: i64,
    /// The truth lies at most so many milliseconds beside that.
    pub within_ms: i64,
}

/// How wrong a machine's clock is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wrong {
    /// Not so that it matters.
    #[default]
    No,
    /// By more than a second.
    Off,
    /// By more than half a minute.
    FarOff,
}

impl Skew {
    /// How wrong the clock certainly is.
    #[must_use]
    pub fn wrong(self) -> Wrong {
        let certain =
            Duration::from_millis(self.ahead_ms.saturating_abs().saturating_sub(self.within_ms).max(0) as u64);
        match certain {
            certain if certain > FAR_OFF => Wrong::FarOff,
            certain if certain > OFF => Wrong::Off,
            _ => Wrong::No,
        }
    }

    /// The same in seconds; negative: behind.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.ahead_ms as f64 / 1_000.0
    }
}

impl fmt::Display for Skew {
    /// As in `3.0 s ahead of`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.ahead_ms < 0 { "behind" } else { "ahead of" };
        write!(f, "{:.1} s {side}", self.seconds().abs())
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The server's clock is `ahead` milliseconds ahead of the monotonic one.
    fn compared(ahead: i64, sent: u64, took: u64) -> Comparison {
        let at = i64::try_from(sent + took / 2).unwrap();
        Comparison::new(Timestamp::from_millis(ahead + at), ms(sent), ms(sent + took))
    }

    #[test]
    fn where_the_clocks_may_agree_they_do_and_else_the_middle_counts() {
        let mut known = Comparisons::default();
        assert_eq!(known.ahead(0), None, "nothing was measured");
        known.add(compared(1_000_000, 10, 4));
        assert_eq!(known.ahead(1_000_001_234).unwrap().0, 1_000_001_234);
        let (ahead, within) = known.ahead(4_600_000_000).unwrap();
        assert!((ahead - 1_000_000_000).abs() <= 2_000 && within == 4_999, "{ahead} {within}");
    }

    #[test]
    fn the_fastest_comparison_counts_until_one_contradicts_it() {
        let mut known = Comparisons::default();
        known.add(compared(5_000, 0, 2));
        known.add(compared(5_000, 10, 900));
        assert!(known.ahead(0).unwrap().1 <= 2_999, "a slow one has nothing new");
        known.add(compared(65_000, 1_000, 40));
        let (ahead, within) = known.ahead(0).unwrap();
        assert!((ahead - 65_000_000).abs() <= 1_000 && within <= 40_999, "the server's clock was set: {ahead}");
        for round in 0..20 {
            known.add(compared(65_000, 2_000 + round, 50));
        }
        assert!(known.0.len() == KEPT && known.ahead(0).unwrap().1 > 40_999, "old ones are forgotten");
    }

    #[test]
    fn a_clock_is_judged_by_what_is_certain() {
        let wrong = |ahead_ms, within_ms| Skew { ahead_ms, within_ms }.wrong();
        assert_eq!([wrong(900, 1), wrong(-1_500, 600)], [Wrong::No; 2]);
        assert_eq!([wrong(1_500, 400), wrong(-3_000, 1), wrong(-30_000, 1)], [Wrong::Off; 3]);
        assert_eq!([wrong(30_002, 1), wrong(-3_600_000, 1)], [Wrong::FarOff; 2]);
        assert_eq!(Skew { ahead_ms: -3_000, within_ms: 1 }.to_string(), "3.0 s behind");
        assert_eq!(Skew { ahead_ms: 3_600_000, within_ms: 1 }.to_string(), "3600.0 s ahead of");
    }

    proptest! {
        /// Whatever the answers take and wherever within them the server looked at its clock: what is found is true
        /// within what is said.
        #[test]
        fn the_truth_is_within_the_bounds(
            ahead in 0i64..10_000_000_000,
            own in 0i64..10_000_000_000,
            looks in proptest::collection::vec((0u64..100_000, 0u64..50_000, 0u64..=100), 1..20),
        ) {
            let (mut known, mut clock) = (Comparisons::default(), 0);
            for (pause, took, share) in looks {
                let sent = clock + pause;
                clock = sent + took;
                let looked = i64::try_from(sent + took * share / 100).unwrap();
                let server = Timestamp::from_millis((ahead + looked) / 1_000);
                known.add(Comparison::new(server, Duration::from_micros(sent), Duration::from_micros(clock)));
                let (found, within) = known.ahead(own).unwrap();
                prop_assert!((found - ahead).abs() <= within.max(1), "{found} {ahead} {within}");
            }
        }
    }
}
