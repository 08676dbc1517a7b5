//! Why an attempt or a run failed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest error message that is kept, in bytes.
pub const MESSAGE_MAX: usize = 4_096;

crate::named! {
    /// Why an attempt or a run failed. Its name stands in records, dead letters and metrics.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum ErrorKind {
        /// The handler failed; another attempt may help.
        Retryable = "retryable",
        /// The handler failed for good.
        Permanent = "permanent",
        /// The attempt took longer than its time limit.
        Timeout = "timeout",
        /// Its node fell silent.
        LeaseExpired = "lease_expired",
        /// The handler panicked.
        Panic = "panic",
        /// No handler serves the type.
        NoHandler = "no_handler",
        /// The job cannot be read.
        Invalid = "invalid",
        /// The run was cancelled.
        Cancelled = "cancelled",
    }
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its kind.
    pub kind: ErrorKind,
    /// In words, at most [`MESSAGE_MAX`] bytes.
    pub message: String,
}

impl Failure {
    /// A failure; a longer message is cut, on a character.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        Self { kind, message }
    }
}
