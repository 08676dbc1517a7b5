//! The jobs of one kind that cannot start now: how many are kept, and what is known of those that are parked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longshore_domain::run::DeferReason;

use crate::queue::gates::HeldUp;
use crate::runtime::park_permits::{OnTheirWay, Position};

/// At least and at most so many jobs of each kind are kept.
pub(super) const MIN_KEPT: usize = 2;
pub(super) const MAX_KEPT: usize = 256;
/// A job that cannot start within this time is parked at once. Others are kept, so that they start on time.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// A job that was taken back and has not arrived after this long was pulled by another node.
pub(super) const ARRIVES_WITHIN: Duration = Duration::from_secs(1);
/// The same where no job of its kind is left here: then those that other nodes pulled must not keep this one waiting.
pub(super) const ARRIVES_SOON: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Waiting<T> {
    /// In order.
    pub(super) jobs: VecDeque<(Position, T)>,
    /// Other jobs are parked, and go first.
    pub(super) are_parked: bool,
    /// In order: those that go behind them, and could not be parked yet because too many are on their way.
    pub(super) behind: VecDeque<(Position, T)>,
    /// How many were given out to be parked, and which of those are still on their way.
    pub(super) parks: u64,
    pub(super) on_their_way: OnTheirWay,
    /// `parks` when the stream of parked jobs was last asked, if none was on its way then.
    pub(super) settled: Option<u64>,
    pub(super) starts: Starts,
    /// How many were taken back and have not arrived yet, and since when.
    pub(super) expected: (usize, Option<Instant>),
    /// Why the first of them could not start when it was last asked about.
    pub(super) reason: Option<DeferReason>,
    /// About how many of them may start in a second, if that was said then.
    pub(super) soon: usize,
    /// Whether the cluster was being asked for its slot then.
    pub(super) asks_for_slot: bool,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self {
            jobs: VecDeque::new(),
            are_parked: false,
            behind: VecDeque::new(),
            parks: 0,
            on_their_way: OnTheirWay::default(),
            settled: None,
            starts: Starts::default(),
            expected: (0, None),
            reason: None,
            soon: 0,
            asks_for_slot: false,
        }
    }
}

/// Starts, where older ones count less and less; and when that was counted.
#[derive(Debug, Default)]
pub(super) struct Starts {
    count: f64,
    counted: Option<Instant>,
}

impl Starts {
    pub(super) fn add(&mut self, now: Instant, over: Duration) {
        self.count = self.within(now, over) + 1.0;
        self.counted = Some(now);
    }

    fn within(&self, now: Instant, over: Duration) -> f64 {
        let Some(counted) = self.counted else { return 0.0 };
        self.count * (-now.duration_since(counted).as_secs_f64() / over.as_secs_f64()).exp()
    }

    /// As many jobs as started within about `over`, up to the most that are kept.
    pub(super) fn recent(&self, now: Instant, over: Duration) -> usize {
        (self.within(now, over) as usize).min(MAX_KEPT)
    }
}

impl<T> Waiting<T> {
    /// How many jobs are to be kept here.
    pub(super) fn kept(&self, now: Instant, over: Duration) -> usize {
        self.starts.recent(now, over).max(MIN_KEPT)
    }

    /// How many were taken back a moment ago and have not arrived yet.
    pub(super) fn expected(&self, now: Instant) -> usize {
        let (count, since) = self.expected;
        let within = if self.jobs.is_empty() { ARRIVES_SOON } else { ARRIVES_WITHIN };
        if since.is_some_and(|since| now.duration_since(since) < within) { count } else { 0 }
    }

    /// Takes out jobs that were kept because more could have started, now that it is known how many can.
    pub(super) fn excess(&mut self, held_up: HeldUp, now: Instant, over: Duration) -> VecDeque<(Position, T)> {
        let are_judged = self.asks_for_slot && held_up.is_judged;
        if self.soon <= held_up.soon && !are_judged {
            return VecDeque::new();
        }
        let is_soon = held_up.until.is_none_or(|until| until <= now + SOON);
        let kept = if is_soon && !are_judged { self.kept(now, over).max(held_up.soon) } else { 0 };
        let excess = self.jobs.split_off(kept.min(self.jobs.len()));
        self.are_parked |= !excess.is_empty();
        excess
    }

    pub(super) fn learn(&mut self, held_up: HeldUp) {
        self.reason = held_up.reason.or(self.reason);
        self.soon = held_up.soon;
        self.asks_for_slot = held_up.asks_for_slot();
    }

    /// No job of the kind is parked any more: those that had to go behind parked ones wait here. Returns how many did.
    pub(super) fn none_is_parked(&mut self) -> usize {
        self.are_parked = false;
        let behind = std::mem::take(&mut self.behind);
        let count = behind.len();
        for (position, job) in behind {
            insert(&mut self.jobs, position, job);
        }
        count
    }

    pub(super) fn is_parking(&self) -> bool {
        !self.on_their_way.is_empty()
    }

    /// Whether nothing here is worth remembering.
    pub(super) fn is_over(&self, now: Instant, over: Duration) -> bool {
        self.jobs.is_empty()
            && self.behind.is_empty()
            && !self.are_parked
            && !self.is_parking()
            && self.starts.recent(now, over) == 0
    }
}

/// Puts a job in its place in the order; returns where that is.
pub(super) fn insert<T>(jobs: &mut VecDeque<(Position, T)>, position: Position, job: T) -> usize {
    let at = jobs.partition_point(|(other, _)| *other <= position);
    jobs.insert(at, (position, job));
    at
}

/// Takes out the first job of which `is_wanted` says so, and all behind it.
pub(super) fn split_off<T>(
    jobs: &mut VecDeque<(Position, T)>,
    is_wanted: impl Fn(&T) -> bool,
) -> VecDeque<(Position, T)> {
    let at = jobs.iter().position(|(_, job)| is_wanted(job)).unwrap_or(jobs.len());
    jobs.split_off(at)
}
