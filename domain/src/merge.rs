//! Merges the lanes' heads: of all buffered jobs, the one with the smallest rank is next.
//!
//! A lane is first in, first out, so only its head competes. There are at most ten lanes, so a scan of the heads is
//! faster than any heap and needs no upkeep when a lane runs dry or fills again.

use std::collections::VecDeque;

use crate::rank::Rank;

/// Buffered jobs, by lane.
#[derive(Debug)]
pub struct Merge<T> {
    lanes: Vec<VecDeque<(Rank, T)>>,
    held: usize,
}

impl<T> Merge<T> {
    /// An empty merge of `lanes` lanes.
    #[must_use]
    pub fn new(lanes: usize) -> Self {
        Self { lanes: (0..lanes).map(|_| VecDeque::new()).collect(), held: 0 }
    }

    /// Puts a job behind the others of its lane.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn push(&mut self, lane: usize, rank: Rank, job: T) {
        self.lanes[lane].push_back((rank, job));
        self.held += 1;
    }

    /// Takes the job with the smallest rank among the lanes' heads; the more urgent lane wins a tie.
    pub fn take_next(&mut self) -> Option<T> {
        let heads =
            self.lanes.iter().enumerate().filter_map(|(lane, jobs)| jobs.front().map(|(rank, _)| (*rank, lane)));
        let (_, lane) = heads.min()?;
        self.held -= 1;
        self.lanes[lane].pop_front().map(|(_, job)| job)
    }

    /// The smallest rank among the buffered jobs.
    #[must_use]
    pub fn next_rank(&self) -> Option<Rank> {
        self.lanes.iter().filter_map(|jobs| jobs.front().map(|(rank, _)| *rank)).min()
    }

    /// The first job of each lane that has any.
    pub fn heads(&self) -> impl Iterator<Item = &T> {
        self.lanes.iter().filter_map(|jobs| jobs.front().map(|(_, job)| job))
    }

    /// How many jobs of `lane` are buffered.
    #[must_use]
    pub fn held_of(&self, lane: usize) -> usize {
        self.lanes[lane].len()
    }

    /// How many jobs are buffered.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    /// Every job, in no order of lanes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.lanes.iter_mut().flatten().map(|(_, job)| job)
    }

    /// Takes out every job for which `leaves` returns true; the others keep their order.
    pub fn take_where(&mut self, mut leaves: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for lane in &mut self.lanes {
            let (out, keep): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(lane).into_iter().partition(|(_, job)| leaves(job));
            *lane = keep;
            taken.extend(out.into_iter().map(|(_, job)| job));
        }
        self.held -= taken.len();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Priority, Timestamp};
    use proptest::prelude::*;
    use std::time::Duration;

    proptest! {
        /// Brute force: lanes filled in order of time come out sorted by rank.
        #[test]
        fn jobs_come_out_by_rank(mut arrivals in proptest::collection::vec((0i64..100_000, 1u64..=9), 0..200), aging in 0u64..30_000) {
            arrivals.sort_unstable();
            let mut merge = Merge::new(Priority::COUNT);
            let mut ranks = Vec::new();
            for (since, number) in arrivals {
                let priority = Priority::new(number).unwrap();
                let rank = Rank::new(Timestamp::from_millis(since), priority, Duration::from_millis(aging));
                merge.push(usize::from(priority.number() - 1), rank, rank);
                ranks.push(rank);
            }
            ranks.sort_unstable();
            let out: Vec<Rank> = std::iter::from_fn(|| merge.take_next()).collect();
            prop_assert_eq!(out, ranks);
            prop_assert_eq!(merge.held(), 0);
        }
    }
}
