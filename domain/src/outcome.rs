//! How an attempt ended; what follows from it is [settled](crate::settlement).

use std::time::Duration;

use smol_str::SmolStr;

use crate::run::{DeferReason, RunResult};
use crate::{ErrorKind, Failure};

/// How an attempt ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The handler succeeded.
    Completed(RunResult),
    /// The attempt failed; the handler may have asked for `retry_after`.
    Failed {
        /// The kind of error and its message.
        failure: Failure,
        /// The next attempt starts no sooner than after this delay.
        retry_after: Option<Duration>,
    },
    /// The handler wants to see the job again later; the attempt is not used up.
    Snoozed(Duration),
    /// The handler has replied, and the attempt ends later, by a call of the API.
    Detached {
        /// Proves that a caller knows the attempt.
        token: SmolStr,
        /// How long it may take from now, and from each report of its progress.
        lasts: Duration,
    },
    /// The handler had no capacity; the attempt is not used up, however often that happens.
    Busy {
        /// The attempt's start was published before the handler said so.
        started: bool,
    },
    /// No handler serves the type; the attempt did not start.
    NoHandler,
    /// Its tokens or slots were no longer good when it was to start; the attempt did not start.
    OverLimit(DeferReason),
    /// Its queue or type was paused when it was to start; the attempt did not start.
    Paused,
    /// The node shuts down; the attempt is not used up.
    Released,
    /// The run was cancelled.
    Cancelled,
}

impl Outcome {
    /// A failure after which nobody asked for a delay.
    pub fn failed(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed { failure: Failure::new(kind, message), retry_after: None }
    }
}
