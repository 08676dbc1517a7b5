//! Why an attempt or a run failed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest error message that is kept, in bytes.
pub const MESSAGE_MAX: usize = 4_096;

/// Why an attempt or a run failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The handler failed; another attempt may help.
    Retryable,
    /// The handler failed for good.
    Permanent,
    /// The attempt took longer than its time limit.
    Timeout,
    /// Its node fell silent.
    LeaseExpired,
    /// The handler panicked.
    Panic,
    /// No handler serves the type.
    NoHandler,
    /// The job cannot be read.
    Invalid,
    /// The run was cancelled.
    Cancelled,
}

impl ErrorKind {
    /// The name of the kind in records, dead letters and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Permanent => "permanent",
            Self::Timeout => "timeout",
            Self::LeaseExpired => "lease_expired",
            Self::Panic => "panic",
            Self::NoHandler => "no_handler",
            Self::Invalid => "invalid",
            Self::Cancelled => "cancelled",
        }
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
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        Self { kind, message }
    }
}
