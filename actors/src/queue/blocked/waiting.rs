//! The jobs of one kind that cannot start now: how many are kept, and what is known of those that are parked.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use longshore_domain::RunId;
use longshore_domain::run::DeferReason;

use crate::queue::gates::answer::HeldUp;
use crate::shared::park_permits::{OnItsWay, OnTheirWay, Position};

/// At least and at most so many jobs of each kind are kept.
pub(super) const MIN_KEPT: usize = 2;
pub(super) const MAX_KEPT: usize = 256;
/// A job that cannot start within this time is parked at once. Others are kept, so that they start on time.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// A job that was taken back and has not arrived after this long was pulled by another node.
pub(super) const ARRIVES_WITHIN: Duration = Duration::from_secs(1);
/// The same where no job of its kind is left here: then those that other nodes pulled must not keep this one waiting.
pub(super) const ARRIVES_SOON: Duration = Duration::from_millis(100);
/// For so long it is known of such a job that it was taken back: a slow server may still deliver it.
pub(super) const ARRIVES_LATE: Duration = Duration::from_secs(10);

/// The jobs of one kind that wait.
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
    /// Those that were taken back and have not had their turn here yet.
    pub(super) expected: HashMap<RunId, ComingBack>,
    /// Why the first of them could not start when it was last asked about.
    pub(super) reason: Option<DeferReason>,
    /// About how many of them may start in a second, if that was said then.
    pub(super) soon: usize,
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
            expected: HashMap::new(),
            reason: None,
            soon: 0,
        }
    }
}

/// A job that was taken back.
#[derive(Debug)]
pub(super) struct ComingBack {
    pub(super) since: Instant,
    /// Jobs before it were set aside here since: it must not overtake them.
    pub(super) goes_behind: bool,
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

    /// Starts within about `over`.
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

    /// How many were taken back a moment ago, and have not had their turn here yet.
    pub(super) fn expected(&self, now: Instant) -> usize {
        let within = if self.jobs.is_empty() { ARRIVES_SOON } else { ARRIVES_WITHIN };
        let is_expected =
            |coming: &&ComingBack| !coming.goes_behind && now.saturating_duration_since(coming.since) < within;
        self.expected.values().filter(is_expected).count()
    }

    /// These were taken back.
    pub(super) fn expect(&mut self, runs: impl Iterator<Item = RunId>, now: Instant) {
        self.expected.retain(|_, coming| now.saturating_duration_since(coming.since) < ARRIVES_LATE);
        self.expected.extend(runs.map(|run| (run, ComingBack { since: now, goes_behind: false })));
    }

    /// Jobs from here are to be parked: so are those behind them, also those that are on their way back. With them
    /// are parked those that go `behind` parked ones.
    pub(super) fn set_aside(
        &mut self,
        jobs: VecDeque<(Position, T)>,
        behind: VecDeque<(Position, T)>,
    ) -> impl Iterator<Item = (OnItsWay, T)> {
        if !jobs.is_empty() {
            self.are_parked = true;
            self.expected.values_mut().for_each(|coming| coming.goes_behind = true);
        }
        jobs.into_iter().chain(behind).map(|(position, job)| (self.on_their_way.sets_out(position), job))
    }

    /// Takes out jobs that were kept because more could have started, now that it is known how many can.
    pub(super) fn excess(&mut self, held_up: HeldUp, now: Instant, over: Duration) -> VecDeque<(Position, T)> {
        if self.soon <= held_up.soon {
            return VecDeque::new();
        }
        let is_soon = held_up.until.is_none_or(|until| until <= now + SOON);
        let kept = if is_soon { self.kept(now, over).max(held_up.soon) } else { 0 };
        self.jobs.split_off(kept.min(self.jobs.len()))
    }

    pub(super) fn learn(&mut self, held_up: HeldUp) {
        self.reason = held_up.reason.or(self.reason);
        self.soon = held_up.soon;
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

    /// Whether jobs are on their way to be parked.
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
