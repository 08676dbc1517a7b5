//! Decides which events of a run are still to be published. No other code decides it.
//!
//! A record implies its events ([`events`](crate::events)). They are published after the record is written, so the node
//! that wrote it may have died in between. The node that continues from the record publishes the events that may be
//! missing: live, to clients that listen at the moment, and in the log, which must have every event in order. Events
//! are published again under the same ids: too many only cost, but one too few is lost.
//!
//! A run of 1,000 attempts must not publish its whole round again at each redelivery. The claim of the last attempt
//! proves that the log has the events before that attempt:
//!
//! * The message that brings attempt n + 1 (n ≥ 1) is a schedule, and a schedule is written once the log has all events
//!   of the wait that it ends. A node that holds a short retry locally claims it after the same confirmation.
//! * An attempt that was released starts again under the same message. Its node publishes the record's events and waits
//!   for the log before it claims.
//! * The first attempt of a round proves nothing: it may start without a record, and `submit` leaves `enqueued` to the
//!   node that takes up the job.
//!
//! So after any fault, nodes publish again the events of at most one attempt, with those of the wait or the end after
//! it.

use crate::events::{Event, EventKind, of_round};
use crate::run::EndLog;
use crate::{Run, RunState};

/// How many events of a run's round are published, counted from the first of the round: live, and in the log.
///
/// Within a round, events are only added at the end. So the events after these counts, in this version of the record or
/// a later one, are still to be published. There is one constructor per situation in which a node takes up a run, and
/// one method per step by which an attempt publishes more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    live: usize,
    log: usize,
}

/// An event that is still to be published, and where.
#[derive(Debug, Clone, Copy)]
pub struct Unpublished<'a, 'run> {
    /// The event.
    pub event: &'a Event<'run>,
    /// Whether it goes to clients that listen.
    pub live: bool,
    /// Whether it goes into the log.
    pub log: bool,
}

/// What is known of the message that brings a run on, when the run is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// Its schedule or its parked job stands, and was written only once the log had every event before.
    Stands,
    /// Nothing is known of it.
    MayCome,
    /// It is delivered to a node, now or when its time comes, and nobody deletes it before.
    Comes,
    /// The run was running, and its message is gone, as with a lane that was deleted: no node gets it again.
    Gone,
}

impl Carrier {
    /// Who puts the end of a run into the log that is cancelled in the state `before`.
    #[must_use]
    pub fn logs_end_of(self, before: &Run) -> EndLog {
        match self {
            Self::Comes => EndLog::ByMessage,
            Self::Stands | Self::MayCome if before.state == RunState::Running => EndLog::ByMessage,
            Self::Stands | Self::MayCome | Self::Gone => EndLog::ByCanceller,
        }
    }
}

impl Published {
    /// No event: no node has worked on the run. It has no record, or only the one that `submit` wrote.
    pub const fn nothing() -> Self {
        Self { live: 0, log: 0 }
    }

    /// The record of a waiting run, found by the message that allows its next attempt.
    ///
    /// The message proves that the log has the events that `found` implies, unless `submit` wrote the record: then no
    /// message carries it. The job of a replay is published once the log has the new round. A job that waited for its
    /// time was never `enqueued` before.
    pub fn at_arrival(found: &Run) -> Self {
        if found.state == RunState::Scheduled {
            return Self::nothing();
        }
        let is_submitted = found.held_by.is_none() && found.round == 1;
        if is_submitted { Self::nothing() } else { Self::held_locally(found) }
    }

    /// Before the next attempt of a retry that this node held locally: the retry waited until the log had every event
    /// of the record that the node wrote.
    pub fn held_locally(run: &Run) -> Self {
        let all = of_round(run).len();
        Self { live: all, log: all }
    }

    /// A claim that is stored although its answer was lost to the node that made it. The start is not published: the
    /// handler was not called.
    pub fn at_unclear_claim(run: &Run) -> Self {
        let events = of_round(run);
        Self { live: events.len().saturating_sub(1), log: proven(run, &events) }
    }

    /// A record that another node wrote, or this one before it died: redelivered, cancelled through the API, or running
    /// under a lease that was lost. The writer published its events live at once, but may have died before the log had
    /// them.
    pub fn at_redelivery(found: &Run) -> Self {
        let events = of_round(found);
        Self { live: events.len(), log: proven(found, &events) }
    }

    /// A run that was cancelled through the API before this node could write its own decision: the cancel is published
    /// live, and the log is left to the run's message, which this node has. `before_it` is what was published before
    /// the decision `decided`; it counts if that decision was about the same start that was cancelled.
    pub fn at_overtaken(before_it: Self, decided: &Run, cancelled: &Run) -> Self {
        let start = |run: &Run| (run.round, run.attempt, run.attempts.last().map(|last| last.start));
        let proven = Self::at_redelivery(cancelled);
        let log = if start(decided) == start(cancelled) { proven.log.max(before_it.log) } else { proven.log };
        Self { log, ..proven }
    }

    /// A run that was cancelled through the API; `before` is its state until then. Only the cancel is new or, if no
    /// node has seen the run, all of its events. If the run was running, the log is left to its message, which comes
    /// again if its node does not log the end, unless it is gone; so it is if its message comes in any case. Were the
    /// log given the end here as well, it would have it twice.
    pub fn at_cancel(before: &Run, cancelled: &Run, carrier: Carrier) -> Self {
        let events = of_round(cancelled);
        let last = events.len().saturating_sub(1);
        // The node that replays a run publishes the replay live.
        let is_new = before.is_unseen() && before.round == 1;
        let live = if is_new { 0 } else { last };
        let published = Self { live, log: if carrier == Carrier::Stands { last } else { proven(cancelled, &events) } };
        if carrier.logs_end_of(before) == EndLog::ByMessage { published.for_live_only() } else { published }
    }

    /// A run that made way for another one with its key before it was started, known by its message, or by the schedule
    /// that is to bring it: of a job that waits in its lane nothing is published yet; a wait is published before its
    /// message is written.
    pub fn at_made_way(run: &Run) -> Self {
        let waited_in_its_lane = run.state.wait().is_none();
        let last = if waited_in_its_lane { 0 } else { of_round(run).len().saturating_sub(1) };
        Self { live: last, log: last }
    }

    /// A run whose dead letter of round `round` is replayed, discarded, or deleted because the run is past it. If a
    /// round was just opened, all of its events are new; if it has ended, only its end is. The dead letter was written
    /// once the log had the death that it reports.
    pub fn at_dead_letter(run: &Run, round: u32) -> Self {
        let events = of_round(run);
        let last = events.len().saturating_sub(1);
        let live = if run.state.is_terminal() { last } else { 0 };
        let is_discarded = run.state == RunState::Discarded && run.round == round;
        Self { live, log: if is_discarded { last } else { proven(run, &events) } }
    }

    /// When attempt `attempt` of `waiting` starts. The new start replaces a released one in the record, and hides a
    /// deferral for as long as the attempt runs: they are published, but no longer among the round's events.
    #[must_use]
    pub fn at_start(self, waiting: &Run, attempt: u32) -> Self {
        if self == Self::nothing() {
            return self;
        }
        let before = before_attempt(&of_round(waiting), attempt);
        Self { live: self.live.min(before), log: self.log.min(before) }
    }

    /// When `waiting` begins another wait without a start between the two: a deferral takes the place of the one before
    /// it in the record, so the earlier one, which is published, is no longer among the round's events.
    #[must_use]
    pub fn at_new_wait(self, waiting: &Run) -> Self {
        let events = of_round(waiting);
        let is_wait = |event: &Event<'_>| event.kind == EventKind::Deferred && event.of.is_none();
        let before = events.iter().position(is_wait).unwrap_or(events.len());
        Self { live: self.live.min(before), log: self.log.min(before) }
    }

    /// After `events` more events were published live. If the run is stored, the log gets them in the same step;
    /// otherwise, the record comes first.
    #[must_use]
    pub const fn after_live(self, events: usize, on_record: bool) -> Self {
        let live = self.live + events;
        Self { live, log: if on_record { live } else { self.log } }
    }

    /// After the log also gets every event that was published live.
    #[must_use]
    pub const fn log_as_live(self) -> Self {
        Self { log: self.live, ..self }
    }

    /// After the log gets all events of `run`.
    #[must_use]
    pub fn all_logged(self, run: &Run) -> Self {
        Self { log: of_round(run).len(), ..self }
    }

    /// Only the log still gets events.
    #[must_use]
    pub const fn for_log_only(self) -> Self {
        Self { live: usize::MAX, ..self }
    }

    /// The log gets no events, now or later: the run leaves no trace there, or its record is not written yet.
    #[must_use]
    pub const fn for_live_only(self) -> Self {
        Self { log: usize::MAX, ..self }
    }

    /// The round's events that are still to be published, in order. The log always gets the last of them.
    pub fn unpublished<'a, 'run>(self, events: &'a [Event<'run>]) -> impl Iterator<Item = Unpublished<'a, 'run>> {
        let Self { live, log } = self;
        let numbered = events.iter().enumerate().skip(live.min(log));
        numbered.map(move |(number, event)| Unpublished { event, live: number >= live, log: number >= log })
    }
}

/// How many events the log certainly has, as the record proves: those before its last attempt, or all of a cancelled
/// run's.
fn proven(run: &Run, events: &[Event<'_>]) -> usize {
    match run.attempts.last() {
        _ if run.state.end_log() == EndLog::Done => events.len(),
        Some(last) if last.round == run.round && last.attempt > 1 => before_attempt(events, last.attempt),
        _ => 0,
    }
}

/// How many events come before those of attempt `attempt`, and of the wait for it.
fn before_attempt(events: &[Event<'_>], attempt: u32) -> usize {
    events.iter().position(|event| event.attempt >= attempt).unwrap_or(events.len())
}

#[cfg(test)]
mod tests;
