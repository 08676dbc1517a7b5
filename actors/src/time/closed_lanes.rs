//! Closed lanes: lanes that take no due job just now, because they are full, have no leader, or belong to a queue that
//! no node declares.
//!
//! A refused job does not keep a place among the moves. While a lane is closed, one job at a time is a trial of it; the
//! others go back to the server for a while, a few milliseconds apart, so that they come again in their order and as a
//! trickle, however many they are. It has no clock of its own: the time is an argument.
//!
//! Bounds: one entry per lane that refused its last job.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use longshore_domain::Lane;

/// How long a closed lane waits for the next trial.
const TRIAL_EVERY: Duration = Duration::from_millis(500);
/// How long a job that is put off stays away: at least, and at most if few wait.
const AWAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The time between two jobs that were put off.
const GAP: Duration = Duration::from_millis(2);

/// What to do with a due job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Move,
    /// Return it for so long.
    PutOff(Duration),
}

#[derive(Debug, Default)]
pub(crate) struct ClosedLanes(HashMap<Lane, Closed>);

#[derive(Debug)]
struct Closed {
    since: Instant,
    /// A trial is under way.
    on_trial: bool,
    next_trial: Instant,
    /// When the last job that was put off comes again.
    last_back: Instant,
}

impl ClosedLanes {
    /// What to do with a due job of this lane.
    pub(crate) fn way(&mut self, lane: &Lane, now: Instant) -> Way {
        let Some(closed) = self.0.get_mut(lane) else { return Way::Move };
        if !closed.on_trial && now >= closed.next_trial {
            closed.on_trial = true;
            return Way::Move;
        }
        Way::PutOff(closed.put_off(now))
    }

    /// The lane refused a job, or did not answer: says for how long that job is returned, and whether the lane was open
    /// before.
    pub(crate) fn refused(&mut self, lane: &Lane, now: Instant) -> (Duration, bool) {
        let is_new = !self.0.contains_key(lane);
        let new = Closed { since: now, on_trial: false, next_trial: now, last_back: now };
        let closed = self.0.entry(lane.clone()).or_insert(new);
        (closed.on_trial, closed.next_trial) = (false, now + TRIAL_EVERY);
        (closed.put_off(now), is_new)
    }

    /// The lane took a job: says whether it was closed before.
    pub(crate) fn took(&mut self, lane: &Lane) -> bool {
        self.0.remove(lane).is_some()
    }
}

impl Closed {
    fn put_off(&mut self, now: Instant) -> Duration {
        // A lane that has been closed for long is tried more rarely.
        let away = (now.duration_since(self.since) / 4).clamp(AWAY.0, AWAY.1);
        self.last_back = (now + away).max(self.last_back + GAP);
        self.last_back.duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::{Priority, Queue};

    #[test]
    fn a_closed_lane_is_tried_by_one_job_at_a_time_and_no_other_lane_by_fewer() {
        let start = Instant::now();
        let lane = |priority| Lane::new(&Queue::main(), Priority::new(priority).unwrap());
        let (full, open) = (lane(5), lane(1));
        let mut lanes = ClosedLanes::default();
        assert_eq!(lanes.way(&full, start), Way::Move);
        assert_eq!(lanes.refused(&full, start), (AWAY.0, true));
        assert_eq!(lanes.refused(&full, start), (AWAY.0 + GAP, false), "in their order");
        assert_eq!(lanes.way(&full, start), Way::PutOff(AWAY.0 + GAP * 2));
        assert_eq!(lanes.way(&open, start), Way::Move);

        let later = start + TRIAL_EVERY;
        assert_eq!(lanes.way(&full, later), Way::Move);
        assert!(matches!(lanes.way(&full, later), Way::PutOff(_)), "one trial at a time");
        assert!(lanes.took(&full) && !lanes.took(&full));
        assert_eq!(lanes.way(&full, later), Way::Move);
    }

    #[test]
    fn however_many_wait_they_come_as_a_trickle_and_few_come_soon() {
        let start = Instant::now();
        let lane = Lane::new(&Queue::main(), Priority::DEFAULT);
        let mut lanes = ClosedLanes::default();
        lanes.refused(&lane, start);
        let last = (0..100_000).map(|_| lanes.refused(&lane, start).0).last().unwrap();
        assert!(last >= GAP * 100_000);
        let mut few = ClosedLanes::default();
        few.refused(&lane, start);
        assert_eq!(few.refused(&lane, start + Duration::from_secs(3_600)).0, AWAY.1);
    }
}
