//! What is on its way from lanes of which nothing is in hand.
//!
//! The order of a queue is kept by comparing the lanes' heads, so a lane whose head is still on the wire would lose its
//! turn to any lane that has one in hand. Each delivery says how many more wait behind it: while some do, and until a
//! pull had time to come back, a job that ranks behind them is left alone. Over a slow network the order is what can be
//! had within that time.

use std::time::{Duration, Instant};

use longshore_domain::rank::Rank;

/// How long a head may take from the server: many times a pull's way and back, because a wait that is in vain comes only
/// where other nodes took the last of a lane.
const PATIENCE: Duration = Duration::from_millis(25);

/// What is known of each lane's next job.
#[derive(Debug)]
pub(crate) struct Coming(Vec<Lane>);

#[derive(Debug, Clone)]
struct Lane {
    next: Next,
    missed_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Next {
    /// Nothing was heard of the lane yet.
    Unknown,
    /// More wait, ranking behind this.
    Behind(Rank),
    /// None that is known of.
    None,
}

impl Coming {
    /// Nothing is known of any lane.
    pub(crate) fn new(lanes: usize) -> Self {
        Self(vec![Lane { next: Next::Unknown, missed_since: None }; lanes])
    }

    /// A job came, with so many behind it.
    pub(crate) fn came(&mut self, lane: usize, rank: Rank, behind: u64) {
        let next = if behind > 0 { Next::Behind(rank) } else { Next::None };
        self.0[lane] = Lane { next, missed_since: None };
    }

    /// Until when a job of this rank is to be left alone, because one of an empty lane goes before it.
    pub(crate) fn hold_off(&mut self, rank: Rank, now: Instant, is_empty: impl Fn(usize) -> bool) -> Option<Instant> {
        let mut until = None;
        for (number, lane) in self.0.iter_mut().enumerate() {
            let goes_before = match lane.next {
                Next::Unknown => true,
                Next::Behind(last) => last < rank,
                Next::None => false,
            };
            if !goes_before || !is_empty(number) {
                continue;
            }
            let patient_until = *lane.missed_since.get_or_insert(now) + PATIENCE;
            if patient_until <= now {
                // Another node has it, or there was none.
                lane.next = Next::None;
            } else {
                until = until.max(Some(patient_until));
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
        let mut coming = Coming::new(2);
        let now = Instant::now();
        let later = now + PATIENCE;
        assert_eq!(coming.hold_off(rank(5), now, |_| true), Some(later), "nothing is known yet");
        assert_eq!(coming.hold_off(rank(5), later, |_| true), None);

        coming.came(0, rank(1), 3);
        assert_eq!(coming.hold_off(rank(5), now, |lane| lane == 0), Some(later));
        assert_eq!(coming.hold_off(rank(5), now, |_| false), None, "it is in hand");
        assert_eq!(coming.hold_off(rank(1), now, |_| true), None, "it does not go before this one");
        assert_eq!(coming.hold_off(rank(5), later, |_| true), None, "another node has it");
        assert_eq!(coming.hold_off(rank(5), later, |_| true), None);

        coming.came(0, rank(1), 0);
        assert_eq!(coming.hold_off(rank(5), now, |_| true), None, "nothing waits behind it");
    }
}
