//! Which jobs are on their way from lanes that have none in the buffer.
//!
//! The order of a queue is kept by comparing the lanes' heads, so a lane whose head is still on the wire would lose to
//! any lane that has a job in the buffer. Each delivery says how many more jobs wait behind it: while some do, and
//! until a pull had time to come back, a job that ranks behind them is left alone. Over a slow network the order is as
//! good as it can be within that time. When a node starts it knows of no lane what waits there, so its first jobs wait
//! until the first pulls had that time; a job that comes later waits for nothing.

use std::time::{Duration, Instant};

use longshore_domain::rank::Rank;

/// How long a head may take from the server: many times the round trip of a pull. So a wait ends in vain only if the
/// server is very busy, or if other nodes took the last jobs of the lane.
const HOLD_OFF_MAX: Duration = Duration::from_millis(100);
/// The part of the time that waits in vain may cost: waiting for urgent jobs must not idle the workers.
const COST: f64 = 0.025;
/// How much of that time can be saved up.
const CREDIT: Duration = Duration::from_secs(1);

/// What the node knows of each lane's next job.
#[derive(Debug)]
pub(crate) struct Lookahead {
    lanes: Vec<LaneAhead>,
    /// How much time waits in vain may still cost, and when that was last counted up.
    credit: Duration,
    counted: Instant,
}

#[derive(Debug, Clone)]
struct LaneAhead {
    next: NextInLane,
    missed_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum NextInLane {
    /// No delivery of the lane has arrived yet, nor had the first pull time to come back.
    Unknown,
    /// More jobs wait; they rank behind this one.
    Behind(Rank),
    /// No further job is known.
    None,
}

impl Lookahead {
    pub(crate) fn new(lanes: usize, now: Instant) -> Self {
        let unknown = LaneAhead { next: NextInLane::Unknown, missed_since: None };
        Self { lanes: vec![unknown; lanes], credit: CREDIT, counted: now }
    }

    /// The first pulls have been sent: what waits in the lanes is on its way from now on.
    pub(crate) fn asked(&mut self, now: Instant) {
        for lane in self.lanes.iter_mut().filter(|lane| matches!(lane.next, NextInLane::Unknown)) {
            lane.missed_since.get_or_insert(now);
        }
    }

    pub(crate) fn came(&mut self, lane: usize, rank: Rank, behind: u64) {
        let next = if behind > 0 { NextInLane::Behind(rank) } else { NextInLane::None };
        self.lanes[lane] = LaneAhead { next, missed_since: None };
    }

    /// Until when a job of this rank is to be left alone, because one of a lane without buffered jobs goes before it.
    pub(crate) fn hold_off(&mut self, rank: Rank, now: Instant, is_empty: impl Fn(usize) -> bool) -> Option<Instant> {
        let saved = now.saturating_duration_since(self.counted).mul_f64(COST);
        (self.credit, self.counted) = ((self.credit + saved).min(CREDIT), now);
        let mut until = None;
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let goes_before = match lane.next {
                NextInLane::Unknown => true,
                NextInLane::Behind(last) => last < rank,
                NextInLane::None => false,
            };
            if !goes_before || !is_empty(number) {
                continue;
            }
            let hold_off_until = *lane.missed_since.get_or_insert(now) + HOLD_OFF_MAX;
            if hold_off_until <= now {
                // Another node took it, or there was none. Nobody may have waited for the first pulls.
                if matches!(lane.next, NextInLane::Behind(_)) {
                    self.credit = self.credit.saturating_sub(HOLD_OFF_MAX);
                }
                lane.next = NextInLane::None;
            } else if self.credit < HOLD_OFF_MAX {
                lane.next = NextInLane::None;
            } else {
                until = until.max(Some(hold_off_until));
            }
        }
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::{Priority, Timestamp};

    fn rank(priority: u64) -> Rank {
        Rank::new(Timestamp::from_millis(7), Priority::new(priority).unwrap(), Duration::from_secs(1))
    }

    #[test]
    fn a_head_on_its_way_is_waited_for_but_not_for_long() {
        let now = Instant::now();
        let mut coming = Lookahead::new(2, now);
        let later = now + HOLD_OFF_MAX;
        assert_eq!(coming.hold_off(rank(5), now, |_| true), Some(later), "nothing is known yet");
        assert_eq!(coming.hold_off(rank(5), later, |_| true), None);

        coming.came(0, rank(1), 3);
        assert_eq!(coming.hold_off(rank(5), now, |lane| lane == 0), Some(later));
        assert_eq!(coming.hold_off(rank(5), now, |_| false), None, "it is buffered");
        assert_eq!(coming.hold_off(rank(1), now, |_| true), None, "it does not go before this one");
        assert_eq!(coming.hold_off(rank(5), later, |_| true), None, "another node has it");
        assert_eq!(coming.hold_off(rank(5), later, |_| true), None);

        coming.came(0, rank(1), 0);
        assert_eq!(coming.hold_off(rank(5), now, |_| true), None, "nothing waits behind it");
    }

    #[test]
    fn a_job_that_comes_long_after_the_first_pulls_waits_for_no_lane() {
        let start = Instant::now();
        let mut coming = Lookahead::new(2, start);
        coming.asked(start);
        let soon = start + HOLD_OFF_MAX / 2;
        assert_eq!(
            coming.hold_off(rank(5), soon, |_| true),
            Some(start + HOLD_OFF_MAX),
            "the other head may be on its way"
        );
        assert_eq!(coming.hold_off(rank(5), start + HOLD_OFF_MAX, |_| true), None);

        let mut coming = Lookahead::new(2, start);
        coming.asked(start);
        coming.asked(start + HOLD_OFF_MAX);
        assert_eq!(coming.hold_off(rank(5), start + HOLD_OFF_MAX, |_| true), None, "the first pulls found nothing");
        assert_eq!(coming.credit, CREDIT, "it has cost no time");
    }

    #[test]
    fn waits_in_vain_cost_little_in_the_long_run() {
        let start = Instant::now();
        let mut coming = Lookahead::new(1, start);
        let (mut now, mut waited) = (start, Duration::ZERO);
        while now < start + Duration::from_secs(100) {
            coming.came(0, rank(1), 1);
            while let Some(until) = coming.hold_off(rank(5), now, |_| true) {
                waited += until - now;
                now = until;
            }
            now += Duration::from_millis(1);
        }
        assert!(waited <= CREDIT + Duration::from_secs(100).mul_f64(COST) + HOLD_OFF_MAX, "{waited:?}");
    }
}
