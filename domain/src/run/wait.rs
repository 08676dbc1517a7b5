//! How a run waits: since when, until when at the latest, and why it waits although its time has come.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::{PutBack, Run, RunState, State, Wait};
use crate::{JobOptions, Timestamp};

crate::named! {
    /// Why a job was not started though it could have been. Its name stands on the wire and in metrics.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum DeferReason {
        /// Over its rate limit.
        RateLimited = "rate_limited",
        /// Its type's circuit breaker is open.
        BreakerOpen = "breaker_open",
        /// Too many of its kind are running.
        Concurrency = "concurrency",
        /// Its key or type is held everywhere.
        Held = "held",
        /// Its queue is paused.
        Paused = "paused",
        /// No remote handler is online.
        NoHandlerOnline = "no_handler_online",
        /// Its remote handlers have no capacity.
        Busy = "busy",
        /// Its handler snoozed it.
        Snoozed = "snoozed",
        /// Its attempt goes on elsewhere, and ends by a call of the API.
        Detached = "detached",
    }
}

impl DeferReason {
    /// What such a job waits for, in words; `of` names its type.
    #[must_use]
    pub fn awaited(self, of: &str) -> String {
        match self {
            Self::RateLimited => "its rate limit".to_owned(),
            Self::BreakerOpen => format!("the breaker of {of}"),
            Self::Concurrency => format!("its turn: as many of {of} or of its key run as may"),
            Self::Held => format!("the end of a hold: a handler holds {of} or its key"),
            Self::Paused => "the end of a pause".to_owned(),
            Self::NoHandlerOnline => format!("a handler of {of}"),
            Self::Busy => format!("a handler of {of} with room"),
            Self::Snoozed => "the time that its handler asked for".to_owned(),
            Self::Detached => "the end of its attempt, which goes on elsewhere".to_owned(),
        }
    }
}

/// The last deferral of a run, and since when the run is being deferred. It stays while the attempt runs, because the
/// sequence of deferrals continues if the attempt is requeued for the same reason. It also stays if the run ends while
/// it waits, because it is one of the run's events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferral {
    /// Why.
    pub reason: DeferReason,
    /// When the first of the consecutive deferrals happened.
    pub since: Timestamp,
    /// When the last one happened.
    pub at: Timestamp,
    /// How many consecutive deferrals there were.
    pub count: u32,
    /// The number of the wait in the round; 0 in records of versions that did not park jobs, where it is the last wait.
    #[serde(default)]
    pub nth: u32,
    /// Until when the job waits; `None` if that is not known, as of a parked one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The node that deferred it last; `None` until its record is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<SmolStr>,
}

impl Run {
    /// Its job waits elsewhere, and its rank counts from `since`. This is a separate wait, for which its message
    /// speaks. If it has a reason, it is a deferral as well.
    pub(super) fn park(&mut self, since: Timestamp, reason: Option<DeferReason>, now: Timestamp) {
        self.deferrals += 1;
        if let Some(reason) = reason {
            self.note_deferral(reason, None, now);
        }
        self.wait_elsewhere(Wait::Parked { since }, self.state == RunState::Retrying);
    }

    /// A retry that is deferred or parked stays a retry: its next attempt keeps its number either way.
    fn wait_elsewhere(&mut self, wait: Wait, is_retry: bool) {
        self.state = if is_retry { State::Retrying { wait } } else { State::Enqueued { wait: Some(wait) } };
    }

    /// Counts a wait that has just begun among the consecutive deferrals for one reason.
    fn note_deferral(&mut self, reason: DeferReason, run_at: Option<Timestamp>, now: Timestamp) {
        let before = self.deferral.take().filter(|before| before.reason == reason);
        self.deferral = Some(Deferral {
            reason,
            since: before.as_ref().map_or(now, |before| before.since),
            at: now,
            count: before.map_or(1, |before| before.count + 1),
            nth: self.deferrals,
            run_at,
            node: None,
        });
    }

    /// The time for which it waits is another one. Says whether it waits for a time that may be changed: one that a
    /// client chose, its back-off, or its handler's snooze. A job that was deferred for another reason or parked waits
    /// for something else.
    pub fn reschedule(&mut self, at: Timestamp) -> bool {
        let is_snoozed = self.waits_for() == Some(DeferReason::Snoozed);
        match &mut self.state {
            State::Scheduled { at: before } => *before = at,
            State::Retrying { wait: Wait::Until(before) } if self.deferral.is_none() => *before = at,
            State::Enqueued { wait: Some(Wait::Until(before)) } if is_snoozed => *before = at,
            _ => return false,
        }
        true
    }

    /// The reason of its last wait, if that was a deferral.
    pub fn waits_for(&self) -> Option<DeferReason> {
        self.deferral.as_ref().filter(|deferral| deferral.nth == self.deferrals).map(|deferral| deferral.reason)
    }

    pub(super) fn put_back(&mut self, why: PutBack, again_at: Option<Timestamp>, now: Timestamp) {
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none()) {
            attempt.ended_at = Some(now);
            attempt.retry_at = again_at;
            attempt.put_back = Some(why);
        }
    }

    pub(super) fn defer(&mut self, at: Timestamp, reason: DeferReason, put_back: Option<PutBack>, now: Timestamp) {
        let is_retry = match (&self.state, put_back) {
            (State::Running, Some(why)) => {
                self.put_back(why, Some(at), now);
                false
            }
            (State::Running, None) => self.take_back_start(now),
            (before, _) => *before == RunState::Retrying,
        };
        self.wait_until(at, reason, is_retry, now);
    }

    /// Its job waits for a time, for this reason.
    pub(super) fn wait_until(&mut self, at: Timestamp, reason: DeferReason, is_retry: bool, now: Timestamp) {
        self.deferrals += 1;
        self.note_deferral(reason, Some(at), now);
        self.wait_elsewhere(Wait::Until(at), is_retry);
    }

    /// The running attempt was claimed, but no handler could start it: it is as if it had never begun. Says whether the
    /// run waits for a retry again.
    pub(super) fn take_back_start(&mut self, now: Timestamp) -> bool {
        if self.attempts.last().is_some_and(|last| last.start > 1) {
            // It was started before and requeued; its entry keeps count of the starts.
            self.put_back(PutBack::NotStarted, None, now);
            return false;
        }
        self.attempts.pop();
        self.attempt = self.attempt.saturating_sub(1);
        if !self.has_started() {
            self.started_at = None;
        }
        self.has_started()
    }

    /// Whether no node has worked on it: the record has no attempt, and no message carries the run yet. It waits in its
    /// lane, or has just been started without a record.
    pub fn is_unseen(&self) -> bool {
        self.state == RunState::Enqueued && !self.has_started() && self.held_by.is_none()
    }

    /// Whether `submit` made its record, and no message of it is known to exist.
    pub fn is_only_noted(&self) -> bool {
        self.round == 1 && !self.published && !self.has_started() && self.held_by.is_none()
    }

    /// The consecutive deferrals for this reason, if the last deferral was one of them.
    pub fn deferred_for(&self, reason: DeferReason) -> Option<&Deferral> {
        self.deferral.as_ref().filter(|deferral| deferral.reason == reason)
    }

    /// Since when it waits for a worker; its job's time spans count from here.
    pub fn waits_since(&self) -> Timestamp {
        self.enqueued_at.unwrap_or(self.origin)
    }

    /// When the whole run must have ended, if its job asks for that.
    pub fn deadline(&self, options: Option<&JobOptions>) -> Option<Timestamp> {
        Some(options?.deadline?.from(self.waits_since()))
    }
}
