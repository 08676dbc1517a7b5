//! Merges the lanes' heads: of all buffered jobs, the one with the smallest rank is next.
//!
//! Within a lane jobs stand by rank, so only its head competes. Nearly all come in that order; one that was returned
//! comes again after younger ones, and goes before them. There are at most ten lanes, so a scan of the heads is faster
//! than any heap and needs no upkeep when a lane runs dry or fills again.

use std::collections::VecDeque;

use crate::rank::Rank;

/// Buffered jobs, by lane.
#[derive(Debug)]
pub struct Merge<T> {
    lanes: Vec<VecDeque<(Rank, T)>>,
}

impl<T> Merge<T> {
    /// An empty merge of `lanes` lanes.
    pub fn new(lanes: usize) -> Self {
        Self { lanes: (0..lanes).map(|_| VecDeque::new()).collect() }
    }

    /// Puts a job in its place in its lane: behind all that are not of a later rank.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn push(&mut self, lane: usize, rank: Rank, job: T) {
        let jobs = &mut self.lanes[lane];
        let is_last = jobs.back().is_none_or(|(last, _)| *last <= rank);
        let place = if is_last { jobs.len() } else { jobs.partition_point(|(other, _)| *other <= rank) };
        jobs.insert(place, (rank, job));
    }

    /// Takes the job with the smallest rank among the lanes' heads; the more urgent lane wins a tie.
    pub fn take_next(&mut self) -> Option<T> {
        let heads =
            self.lanes.iter().enumerate().filter_map(|(lane, jobs)| jobs.front().map(|(rank, _)| (*rank, lane)));
        let (_, lane) = heads.min()?;
        self.lanes[lane].pop_front().map(|(_, job)| job)
    }

    /// The smallest rank among the buffered jobs.
    pub fn next_rank(&self) -> Option<Rank> {
        self.lanes.iter().filter_map(|jobs| jobs.front().map(|(rank, _)| *rank)).min()
    }

    /// The first job of each lane that has any.
    pub fn heads(&self) -> impl Iterator<Item = &T> {
        self.lanes.iter().filter_map(|jobs| jobs.front().map(|(_, job)| job))
    }

    /// How many jobs of `lane` are buffered.
    pub fn held_of(&self, lane: usize) -> usize {
        self.lanes[lane].len()
    }

    /// How many jobs are buffered.
    pub fn held(&self) -> usize {
        self.lanes.iter().map(VecDeque::len).sum()
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
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Priority, Timestamp};
    use proptest::prelude::*;
    use std::time::Duration;

    /// A job's rank, its lane, when it came there, and what it is parked by.
    type Waiting = (Rank, usize, usize, u8);

    #[derive(Debug, Clone)]
    enum Step {
        Comes {
            since: i64,
            priority: u64,
            kind: u8,
        },
        Starts,
        /// Every job of a kind.
        IsParked(u8),
        /// One of those that are parked.
        ComesBack(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let comes = (0i64..100_000, 1u64..=9, 0u8..3);
        prop_oneof![
            4 => comes.prop_map(|(since, priority, kind)| Step::Comes { since, priority, kind }),
            2 => Just(Step::Starts),
            1 => (0u8..3).prop_map(Step::IsParked),
            3 => any::<usize>().prop_map(Step::ComesBack),
        ]
    }

    #[test]
    fn a_job_that_was_returned_comes_before_younger_ones_of_its_lane() {
        let rank = |millis| Rank::new(Timestamp::from_millis(millis), Priority::DEFAULT, Duration::ZERO);
        let mut merge = Merge::new(2);
        for (lane, millis) in [(0, 2), (0, 3), (1, 4), (0, 1), (0, 3)] {
            merge.push(lane, rank(millis), (millis, merge.held()));
        }
        let out: Vec<_> = std::iter::from_fn(|| merge.take_next()).collect();
        assert_eq!(out, [(1, 3), (2, 0), (3, 1), (3, 4), (4, 2)], "those of one rank stay as they came");
    }

    proptest! {
        /// Brute force: lanes come out sorted by rank, in whatever order they were filled.
        #[test]
        fn jobs_come_out_by_rank(arrivals in proptest::collection::vec((0i64..100_000, 1u64..=9), 0..200), aging in 0u64..30_000) {
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

        /// Brute force, while jobs come, start, are parked and come back in turns: of all that are held, the one with
        /// the smallest rank starts. Those that were parked or deferred come back through a lane of their own, in
        /// whatever order they were freed, with the rank that they had.
        #[test]
        fn jobs_that_were_parked_or_deferred_take_their_place_again(
            steps in proptest::collection::vec(step(), 0..300), aging in prop_oneof![Just(0), 1u64..30_000],
        ) {
            let returned = Priority::COUNT;
            let mut merge = Merge::new(returned + 1);
            let (mut held, mut parked): (Vec<Waiting>, Vec<Waiting>) = (Vec::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Comes { since, priority, kind } => {
                        let (lane, priority) = (usize::try_from(priority - 1).unwrap(), Priority::new(priority).unwrap());
                        let rank = Rank::new(Timestamp::from_millis(since), priority, Duration::from_millis(aging));
                        held.push((rank, lane, number, kind));
                        merge.push(lane, rank, (number, kind));
                    }
                    Step::Starts => {
                        held.sort_unstable();
                        let first = (!held.is_empty()).then(|| held.remove(0));
                        prop_assert_eq!(merge.next_rank(), first.map(|(rank, ..)| rank));
                        prop_assert_eq!(merge.take_next(), first.map(|(_, _, number, kind)| (number, kind)));
                    }
                    Step::IsParked(kind) => {
                        let (out, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(|(.., of)| *of == kind);
                        held = rest;
                        let mut taken = merge.take_where(|(_, of)| *of == kind);
                        taken.sort_unstable();
                        let mut numbers: Vec<_> = out.iter().map(|(_, _, number, kind)| (*number, *kind)).collect();
                        numbers.sort_unstable();
                        prop_assert_eq!(taken, numbers);
                        parked.extend(out);
                    }
                    Step::ComesBack(which) if !parked.is_empty() => {
                        let (rank, _, _, kind) = parked.swap_remove(which % parked.len());
                        held.push((rank, returned, number, kind));
                        merge.push(returned, rank, (number, kind));
                    }
                    Step::ComesBack(_) => {}
                }
                prop_assert_eq!(merge.held(), held.len());
            }
        }
    }
}
