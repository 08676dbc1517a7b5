//! Recurring schedules: which of their times become runs, and what comes next.
//!
//! The schedule's object stores how far it has come ([`Progress`]), and changes by compare-and-set only, so that two
//! nodes never disagree on the next time. The server keeps the clock: its *tick* says that a time has come, and this
//! module says what a node does about it ([`Progress::on_tick`]). The rules:
//!
//! * A firing is decided first and carried out then: `pending` is written together with the time that follows, and is
//!   taken away once its run exists. A node that reads a pending firing carries it out; its run's id is made of
//!   schedule and due time, so that this is done once however often it is begun.
//! * Nothing fires before the server's clock says so. How late a firing is, the cluster's time says.
//! * A firing that is late by no more than `misfire_after` is made up for, each by itself. Older ones are missed: as
//!   [`Misfire`] says, one run stands for all of them, or none.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fingerprint::fnv;
use crate::recurrence::Recurrence;
use crate::{NameError, RunId, ScheduleId, Timestamp};

/// Firings that are shown ahead.
pub const SHOWN_AHEAD: usize = 5;
/// The cluster's time, as two nodes have it, is far less apart than this.
const APART: Duration = Duration::from_secs(1);
/// A firing that is later than this is missed, unless the schedule says otherwise: an election among servers, which
/// takes 4 to 8 s, costs none.
pub const MISFIRE_AFTER: Duration = Duration::from_secs(10);

crate::named! {
    /// What happens to firings that no node could make in time.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Misfire {
        /// One run for all of them.
        #[default]
        One = "one",
        /// None.
        Skip = "skip",
    }
}

crate::named! {
    /// What happens if a firing comes while the run before it has not ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Overlap {
        /// Both run.
        #[default]
        Allow = "allow",
        /// The firing is left out.
        Skip = "skip",
    }
}

/// When a schedule fires, and under which conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// When it is due.
    pub recurrence: Recurrence,
    /// Each firing is delayed by up to this much, yet never beyond the next due time.
    pub jitter: Duration,
    /// The schedule is over after this.
    pub ends_at: Option<Timestamp>,
    /// What happens to missed firings.
    pub misfire: Misfire,
    /// A firing that is later than this is missed.
    pub misfire_after: Duration,
}

/// How far a schedule has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The due time of the next firing; `None`: it is paused or over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// The due time of the firing that is decided, and whose run may not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Timestamp>,
    /// The last firing that became a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Firing>,
    /// The last firing that did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Skipped>,
}

/// A firing that became a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Firing {
    /// When it was due.
    pub due_at: Timestamp,
    /// Its run.
    pub run_id: RunId,
}

/// A firing that became none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// When it was due.
    pub due_at: Timestamp,
    /// Why it was left out.
    pub reason: SkipReason,
    /// What the intake said, if it refused the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Why a firing was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The run before it had not ended.
    Overlap,
    /// It was missed, as were perhaps others after it.
    Missed,
    /// The job cannot be taken.
    Refused,
}

/// What a node does about a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TickAction {
    /// Make sure that the run of this firing exists, then take it from `pending`.
    CarryOut(Timestamp),
    /// Decide on this firing, which is due, unless the run before it speaks against it.
    Fire(Timestamp),
    /// Leave this firing out: it was missed.
    Miss(Timestamp),
    /// Nothing is due: make sure that a tick comes at this time.
    Wait(Timestamp),
    /// Nothing is due, and nothing will be.
    Rest,
}

/// The clocks at a tick.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    /// The server's, when the tick was stored: what is due by then has come.
    pub server: Timestamp,
    /// The cluster's time now: it says how late a firing is.
    pub now: Timestamp,
}

impl Timing {
    /// The first due time after `after`; `None`: the schedule is over by then.
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        let next = self.recurrence.next_after(after)?;
        self.ends_at.is_none_or(|end| next <= end).then_some(next)
    }

    /// The due times from `next` on.
    pub fn ahead(&self, next: Option<Timestamp>) -> impl Iterator<Item = Timestamp> {
        std::iter::successors(next, |last| self.next_after(*last))
    }

    /// When the firing due at `due` fires: the same for every node that asks, spread by schedule and due time, and
    /// before the next one is due.
    pub fn fires_at(&self, id: &ScheduleId, due: Timestamp) -> Timestamp {
        if self.jitter.is_zero() {
            return due;
        }
        let gap = self.recurrence.next_after(due).map_or(self.jitter, |next| next.since(due));
        let room = u64::try_from(self.jitter.min(gap).as_millis()).unwrap_or(u64::MAX).max(1);
        due.plus(Duration::from_millis(spread(id.as_str(), due) % room))
    }

    /// The due time that follows `due` and is not missed.
    fn next_in_time(&self, due: Timestamp, clocks: &Clocks) -> Option<Timestamp> {
        self.next_after(due.max(self.missed_until(clocks)))
    }

    /// Firings due at or before this time are missed.
    fn missed_until(&self, clocks: &Clocks) -> Timestamp {
        clocks.now.minus(self.misfire_after.saturating_add(self.jitter))
    }
}

impl Progress {
    /// What is to be done about a tick. Repeat it until it says [`TickAction::Wait`] or [`TickAction::Rest`].
    pub fn on_tick(&self, id: &ScheduleId, timing: &Timing, clocks: &Clocks) -> TickAction {
        if let Some(due) = self.pending {
            return TickAction::CarryOut(due);
        }
        let Some(due) = self.next else { return TickAction::Rest };
        let fires_at = timing.fires_at(id, due);
        match fires_at <= clocks.server {
            false => TickAction::Wait(fires_at),
            true if due <= timing.missed_until(clocks) && timing.misfire == Misfire::Skip => TickAction::Miss(due),
            true => TickAction::Fire(due),
        }
    }

    /// The firing due at `due` becomes a run: it is pending from now on, and the next time is set.
    #[must_use]
    pub fn fired(&self, id: &ScheduleId, timing: &Timing, due: Timestamp, clocks: &Clocks) -> Self {
        let last_run = Some(Firing { due_at: due, run_id: run_id(id, due) });
        let next = timing.next_in_time(due, clocks);
        Self { next, pending: Some(due), last_run, last_skipped: self.last_skipped.clone() }
    }

    /// The firing due at `due` is left out, and the next time is set.
    #[must_use]
    pub fn skipped(&self, timing: &Timing, due: Timestamp, reason: SkipReason, clocks: &Clocks) -> Self {
        let last_skipped = Some(Skipped { due_at: due, reason, error: None });
        Self { next: timing.next_in_time(due, clocks), last_skipped, ..self.clone() }
    }

    /// A run at `now` beside the schedule's times.
    #[must_use]
    pub fn run_now(&self, id: &ScheduleId, now: Timestamp) -> Self {
        let last_run = Some(Firing { due_at: now, run_id: run_id(id, now) });
        Self { pending: Some(now), last_run, ..self.clone() }
    }

    /// The run of the pending firing exists.
    #[must_use]
    pub fn carried_out(&self) -> Self {
        Self { pending: None, ..self.clone() }
    }

    /// The job of the pending firing was refused for good.
    #[must_use]
    pub fn refused(&self, due: Timestamp, error: String) -> Self {
        let last_skipped = Some(Skipped { due_at: due, reason: SkipReason::Refused, error: Some(error) });
        let last_run = self.last_run.clone().filter(|run| run.due_at != due);
        Self { pending: None, last_run, last_skipped, ..self.clone() }
    }

    /// The schedule is made or changed at `now`, or resumed: what was due before is not made up for. A changed job
    /// alone leaves the next time as it is.
    #[must_use]
    pub fn planned(&self, timing: &Timing, now: Timestamp) -> Self {
        let past = self.last_run.as_ref().map_or(now, |run| now.max(run.due_at));
        Self { next: timing.next_after(past), ..self.clone() }
    }

    /// The schedule with its next time brought back; `None`: it is right. It lies further ahead than the rule says if
    /// it was written by a clock that was wrong: the server's, or that of a node of an older version.
    #[must_use]
    pub fn brought_back(&self, timing: &Timing, now: Timestamp) -> Option<Self> {
        let next = timing.next_after(now.plus(APART))?;
        self.next.is_some_and(|found| found > next).then(|| Self { next: Some(next), ..self.clone() })
    }

    /// The schedule is paused: nothing falls due.
    #[must_use]
    pub fn paused(&self) -> Self {
        Self { next: None, ..self.clone() }
    }
}

/// The id of a firing's run.
pub fn run_id(id: &ScheduleId, due: Timestamp) -> RunId {
    // A schedule's id is checked so that this is an id which a client may choose.
    RunId::parse(&format!("{id}-{}", due.millis())).unwrap_or_else(|_| RunId::unreadable())
}

/// Whether a schedule may have this id: its runs' ids must not end like a derived one.
///
/// # Errors
/// Says what is wrong with the id.
pub fn check_id(id: &ScheduleId) -> Result<(), NameError> {
    RunId::parse_chosen(&format!("{id}-{}", Timestamp::default().millis())).map(|_| ()).map_err(|_| {
        let reason = "ends like the queue and priority of a derived run id (`-p5`), so its runs would look like those";
        NameError::new("id", id.as_str(), reason)
    })
}

/// A number that is the same for the same schedule and due time, and evenly spread otherwise: a hash, then the finish
/// of splitmix64, which lets every bit change every other.
fn spread(id: &str, due: Timestamp) -> u64 {
    let mut hash = fnv(id.bytes().chain(due.millis().to_le_bytes()));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id() -> ScheduleId {
        ScheduleId::parse("nightly").unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn every(seconds: u64, misfire: Misfire) -> Timing {
        let recurrence = Recurrence::every(Duration::from_secs(seconds)).unwrap();
        let misfire_after = Duration::from_secs(60);
        Timing { recurrence, jitter: Duration::ZERO, ends_at: None, misfire, misfire_after }
    }

    fn clocks(seconds: i64) -> Clocks {
        Clocks { server: at(seconds), now: at(seconds) }
    }

    /// Carries ticks out until nothing is due: the due times that became runs, and the progress then.
    fn play(progress: Progress, timing: &Timing, clocks: &Clocks) -> (Vec<i64>, Progress) {
        let (mut progress, mut runs) = (progress, Vec::new());
        for _ in 0..10_000 {
            progress = match progress.on_tick(&id(), timing, clocks) {
                TickAction::CarryOut(due) => {
                    runs.push(due.millis() / 1_000);
                    progress.carried_out()
                }
                TickAction::Fire(due) => progress.fired(&id(), timing, due, clocks),
                TickAction::Miss(due) => progress.skipped(timing, due, SkipReason::Missed, clocks),
                TickAction::Wait(_) | TickAction::Rest => return (runs, progress),
            };
        }
        panic!("a tick is never done");
    }

    #[test]
    fn a_firing_is_made_at_its_time_and_not_before() {
        let timing = every(10, Misfire::One);
        let planned = Progress::default().planned(&timing, at(95));
        assert_eq!(planned.on_tick(&id(), &timing, &clocks(99)), TickAction::Wait(at(100)));
        // The node's clock is ahead: it cannot make a firing come early.
        let ahead = Clocks { now: at(130), ..clocks(99) };
        assert_eq!(planned.on_tick(&id(), &timing, &ahead), TickAction::Wait(at(100)));
        let (runs, after) = play(planned, &timing, &clocks(100));
        assert_eq!(
            (runs, after.next, after.last_run.unwrap().run_id.as_str()),
            (vec![100], Some(at(110)), "nightly-100000")
        );
    }

    /// Ticks of every minute: an hour that the clocks leave out has no firing, one that they repeat has two.
    #[test]
    fn firings_follow_the_clocks_of_their_zone() {
        let recurrence = Recurrence::cron("0 30 2 * * *", Some("Europe/Berlin")).unwrap();
        let timing = Timing { recurrence, ..every(1, Misfire::Skip) };
        let time = |text: &str| Timestamp::parse(text).unwrap();
        let spring = ["2027-03-27T01:30:00Z", "2027-03-29T00:30:00Z", "2027-03-30T00:30:00Z"];
        let autumn = ["2027-10-30T00:30:00Z", "2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-11-01T01:30:00Z"];
        for (from, expected) in [("2027-03-27T00:00:00Z", &spring[..]), ("2027-10-30T00:00:00Z", &autumn)] {
            let mut progress = Progress::default().planned(&timing, time(from));
            let mut fired = Vec::new();
            for minute in 0..=3 * 24 * 60 + 60 {
                let (runs, after) = play(progress, &timing, &clocks(time(from).millis() / 1_000 + minute * 60));
                fired.extend(runs.into_iter().map(at));
                progress = after;
            }
            assert_eq!(fired, expected.iter().map(|due| time(due)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_late_by_little_is_made_up_for_one_by_one() {
        let timing = every(10, Misfire::Skip);
        let planned = Progress::default().planned(&timing, at(95));
        assert_eq!(play(planned, &timing, &clocks(145)).0, [100, 110, 120, 130, 140]);
    }

    #[test]
    fn what_is_later_is_missed_and_becomes_one_run_or_none() {
        for (misfire, expected) in [
            (Misfire::One, vec![100, 950, 960, 970, 980, 990, 1_000]),
            (Misfire::Skip, vec![950, 960, 970, 980, 990, 1_000]),
        ] {
            let timing = every(10, misfire);
            let planned = Progress::default().planned(&timing, at(95));
            let (runs, after) = play(planned, &timing, &clocks(1_005));
            assert_eq!((runs, after.next), (expected, Some(at(1_010))), "{misfire:?}");
            let skipped = after.last_skipped.map(|skipped| (skipped.due_at, skipped.reason));
            assert_eq!(skipped, (misfire == Misfire::Skip).then_some((at(100), SkipReason::Missed)));
        }
    }

    #[test]
    fn a_pending_firing_is_carried_out_whatever_became_of_the_schedule() {
        let timing = every(10, Misfire::One);
        let fired = Progress::default().planned(&timing, at(95)).fired(&id(), &timing, at(100), &clocks(100));
        for later in [fired.clone(), fired.paused(), fired.planned(&every(7, Misfire::One), at(101))] {
            assert_eq!(later.on_tick(&id(), &timing, &clocks(101)), TickAction::CarryOut(at(100)));
        }
        let refused = fired.refused(at(100), "no".to_owned());
        assert_eq!((refused.pending, refused.last_run, refused.next), (None, None, Some(at(110))));
    }

    #[test]
    fn a_schedule_ends_and_a_paused_one_rests() {
        let timing = Timing { ends_at: Some(at(115)), ..every(10, Misfire::One) };
        let (runs, after) = play(Progress::default().planned(&timing, at(95)), &timing, &clocks(140));
        assert_eq!((runs, after.next), (vec![100, 110], None));
        assert_eq!(after.on_tick(&id(), &timing, &clocks(200)), TickAction::Rest);
        assert_eq!(Progress::default().planned(&timing, at(95)).paused().next, None);
        assert_eq!(timing.ahead(Some(at(100))).collect::<Vec<_>>(), [at(100), at(110)]);
    }

    #[test]
    fn a_firing_that_was_made_is_not_planned_again() {
        let timing = every(10, Misfire::One);
        let (_, after) = play(Progress::default().planned(&timing, at(95)), &timing, &clocks(100));
        // The clock of the node that changes the schedule is behind.
        assert_eq!(after.planned(&timing, at(93)).next, Some(at(110)));
    }

    #[test]
    fn a_next_time_that_lies_too_far_ahead_is_brought_back() {
        let timing = every(10, Misfire::One);
        let at_next = |next: Option<i64>| Progress { next: next.map(at), ..Progress::default() };
        let brought = |next, now| at_next(next).brought_back(&timing, at(now)).map(|back| back.next.unwrap());
        assert_eq!(brought(Some(3_700), 101), Some(at(110)), "a clock was an hour ahead");
        assert_eq!((brought(Some(110), 101), brought(Some(100), 101)), (None, None));
        // Another node has just made the firing of 100 by a clock that is a little ahead of this one.
        assert_eq!((brought(Some(110), 99), brought(Some(120), 109)), (None, None));
        assert_eq!(brought(None, 101), None, "it is paused or over");
        let ends = Timing { ends_at: Some(at(105)), ..timing };
        assert_eq!(at_next(Some(100)).brought_back(&ends, at(101)), None);
    }

    #[test]
    fn runs_are_named_by_schedule_and_due_time_and_no_id_looks_like_a_derived_one() {
        assert_eq!(run_id(&id(), Timestamp::from_millis(1_769_851_800_123)).as_str(), "nightly-1769851800123");
        check_id(&id()).unwrap();
        check_id(&ScheduleId::parse(&"x".repeat(64)).unwrap()).unwrap();
        assert!(check_id(&ScheduleId::parse("main-p5").unwrap()).unwrap_err().to_string().contains("derived"));
    }

    proptest! {
        /// However far apart ticks are, however late, and whichever are lost: no due time fires twice, none before its
        /// time, all in order.
        #[test]
        fn no_due_time_fires_twice_or_early(
            every_s in 1u64..100,
            jitter in 0u64..200,
            steps in proptest::collection::vec((0i64..150, -30i64..30), 1..40),
        ) {
            let timing = Timing { jitter: Duration::from_secs(jitter), ..every(every_s, Misfire::One) };
            let mut progress = Progress::default().planned(&timing, at(1_000));
            let (mut server, mut all) = (1_000, Vec::new());
            for (further, skew) in steps {
                server += further;
                let clocks = Clocks { server: at(server), now: at(server + skew) };
                let (runs, after) = play(progress, &timing, &clocks);
                for due in &runs {
                    prop_assert!(timing.fires_at(&id(), at(*due)) <= clocks.server, "early");
                }
                all.extend(runs);
                progress = after;
            }
            prop_assert!(all.windows(2).all(|two| two[0] < two[1]), "{all:?}");
        }

        #[test]
        fn jitter_keeps_the_order_and_its_bound(every_s in 1u64..5_000, jitter in 0u64..10_000, due in 1i64..1_000_000) {
            let timing = Timing { jitter: Duration::from_secs(jitter), ..every(every_s, Misfire::One) };
            let due = timing.next_after(at(due)).unwrap();
            let fires_at = timing.fires_at(&id(), due);
            prop_assert!(fires_at >= due && fires_at < timing.next_after(due).unwrap());
            prop_assert!(fires_at.since(due) <= timing.jitter);
        }
    }
}
