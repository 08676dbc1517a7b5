//! How many jobs a queue's scheduler wants of each lane, and when it wakes workers for whom there is no wake permit.
//!
//! Pure: the clock and what the node holds are arguments. The scheduler pulls by it, and so does the simulation.
//!
//! It wants no more jobs than can soon be started: one for each idle worker, and as many as start within [`AHEAD`] at
//! the present rate, from the lanes that jobs come from.

use std::time::{Duration, Instant};

use longshore_domain::QueueLane;
use longshore_domain::pressure::HeldBack;

use crate::queue::buffer::Buffered;

/// How often the scheduler's loop runs without another reason: to measure its own rate, and to probe how fresh its
/// deliveries are.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// At most so many jobs of one lane are buffered or on their way.
const MAX_PER_LANE: usize = 512;
/// As many jobs are buffered as start within this time at the present rate.
const AHEAD: Duration = Duration::from_millis(50);
/// How long a buffered job and an idle worker may wait for each other while nothing starts.
const STALLED_AFTER: Duration = Duration::from_millis(2);

/// What a scheduler knows of the pace of its queue.
#[derive(Debug)]
pub(crate) struct Demand {
    /// While buffered jobs and idle workers wait for a wake permit: until when, and how many jobs had started by then.
    stalled: Option<(Instant, u64)>,
    /// How many jobs had started when such a stall was last acted on, within this tick.
    checked_at: Option<u64>,
    /// How many jobs had started at the last tick.
    counted: u64,
    /// Jobs that start in a second.
    rate: f64,
    /// How many jobs came from each lane of late.
    recent: [usize; QueueLane::COUNT],
}

/// The workers of a queue, and by how far their node holds back with pulls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workers {
    pub(crate) all: usize,
    pub(crate) idle: usize,
    pub(crate) held_back: HeldBack,
}

/// How many jobs are to be buffered or on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferTarget {
    /// Of each lane that jobs came from of late.
    of_busy: usize,
    /// Of each other one.
    of_quiet: usize,
}

impl Demand {
    /// No job has come yet; so many have started before.
    pub(crate) fn new(started: u64) -> Self {
        Self { stalled: None, checked_at: None, counted: started, rate: 0.0, recent: [0; QueueLane::COUNT] }
    }

    pub(crate) fn came(&mut self, lane: usize) {
        self.recent[lane] += 1;
    }

    /// A [`TICK`] is over, and so many jobs have started so far.
    pub(crate) fn tick(&mut self, started: u64) {
        let of_tick = started - std::mem::replace(&mut self.counted, started);
        self.checked_at = None;
        self.rate = self.rate.mul_add(0.5, 0.5 * of_tick as f64 / TICK.as_secs_f64());
        self.recent.iter_mut().for_each(|count| *count /= 2);
    }

    /// How many jobs can soon be started.
    pub(crate) fn wanted(&self, workers: Workers) -> BufferTarget {
        let busy = self.recent.iter().filter(|count| **count > 0).count().max(1);
        let ahead = (self.rate * AHEAD.as_secs_f64()) as usize;
        let (to_start, ahead) = workers.held_back.pulls(workers.all, workers.idle, ahead);
        BufferTarget { of_busy: (to_start + ahead).div_ceil(busy), of_quiet: to_start.div_ceil(QueueLane::COUNT) }
    }

    /// How many of them are to come from this lane.
    pub(crate) fn of_lane(&self, lane: usize, wanted: BufferTarget) -> usize {
        let want = if self.recent[lane] > 0 { wanted.of_busy } else { wanted.of_quiet };
        want.min(MAX_PER_LANE)
    }

    /// The workers were given what may start. If jobs and idle workers are left, they wait for a wake permit.
    pub(crate) fn has_dispatched(&mut self, held: &Buffered, idle: usize, now: Instant) {
        let waits = idle > 0 && held.of.iter().any(|held| *held > 0);
        let waits = waits && self.checked_at != Some(held.started);
        self.stalled = waits.then(|| self.stalled.unwrap_or((now + STALLED_AFTER, held.started)));
    }

    /// No job may start: none waits for a permit.
    pub(crate) fn is_closed(&mut self) {
        self.stalled = None;
    }

    /// Until when jobs and idle workers wait for a permit before it is judged whether they are stalled.
    pub(crate) fn stalled_until(&self) -> Option<Instant> {
        self.stalled.map(|(until, _)| until)
    }

    /// Whether the workers that hold the permits block their threads, so that the other workers need not wait for them:
    /// no job has started meanwhile. Asked once that time has come.
    pub(crate) fn is_stalled(&mut self, started: u64) -> bool {
        let is_stalled = self.stalled.take().is_some_and(|(_, before)| before == started);
        if is_stalled {
            // Perhaps no job can start; trying again and again would not help.
            self.checked_at = Some(started);
        }
        is_stalled
    }
}

#[cfg(test)]
mod tests;
