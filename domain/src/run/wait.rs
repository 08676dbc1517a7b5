//! Why a run waits though its time has come.

use serde::{Deserialize, Serialize};

use crate::Timestamp;

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
    /// Which wait of the round it is; 0 in records of versions that did not park jobs, where it is the last one.
    #[serde(default)]
    pub nth: u32,
}
