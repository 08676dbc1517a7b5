//! How a run waits: since when, until when at most, and why though its time has come.

use serde::{Deserialize, Serialize};

use super::{Run, RunState};
use crate::{JobOptions, Timestamp};

/// Why a job was not started though it could have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeferReason {
    /// Over its rate limit.
    RateLimited,
    /// Its type's circuit breaker is open.
    BreakerOpen,
    /// Too many of its kind are running.
    Concurrency,
    /// Its key or type is held for everybody.
    Held,
    /// Its queue is paused.
    Paused,
    /// No remote handler is there.
    NoHandlerOnline,
    /// Its remote handlers have no room.
    Busy,
    /// Its handler put it back.
    Snoozed,
}

impl DeferReason {
    /// Its name on the wire and in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::BreakerOpen => "breaker_open",
            Self::Concurrency => "concurrency",
            Self::Held => "held",
            Self::Paused => "paused",
            Self::NoHandlerOnline => "no_handler_online",
            Self::Busy => "busy",
            Self::Snoozed => "snoozed",
        }
    }
}

/// The last deferral of a run, and since when it is being deferred. It stays while the attempt runs, as the row goes on
/// if that is put back for the same reason, and where the run ends while it waits, as it is part of the story.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deferral {
    /// Why.
    pub reason: DeferReason,
    /// The first of an unbroken row of deferrals.
    pub since: Timestamp,
    /// The last one.
    pub at: Timestamp,
    /// How many, in this row.
    pub count: u32,
}

impl Run {
    /// Whether no node has worked on it: no attempt is on record, and no message carries the run yet. It waits in its
    /// lane, or has just been started without a record.
    #[must_use]
    pub fn is_unseen(&self) -> bool {
        self.state == RunState::Enqueued && !self.has_started() && self.held_by.is_none()
    }

    /// The row of deferrals for this reason, if the last deferral was one.
    #[must_use]
    pub fn deferred_for(&self, reason: DeferReason) -> Option<&Deferral> {
        self.deferral.as_ref().filter(|deferral| deferral.reason == reason)
    }

    /// Since when it waits for a worker: what its job's spans count from.
    #[must_use]
    pub fn waits_since(&self) -> Timestamp {
        self.enqueued_at.unwrap_or(self.origin)
    }

    /// When the whole run must have ended, by what its job asks for.
    #[must_use]
    pub fn deadline(&self, options: Option<&JobOptions>) -> Option<Timestamp> {
        Some(options?.deadline?.from(self.waits_since()))
    }
}
