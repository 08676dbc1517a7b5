//! Which message carries a run.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::Timestamp;

/// Identifies a stored message, so that no later one can be taken for it: a stream that is created again begins at
/// sequence 1 again, but not at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageId {
    /// Its stream.
    pub stream: SmolStr,
    /// Its sequence.
    pub sequence: u64,
    /// When the server stored it.
    pub at: Timestamp,
}

/// Which message carries the run, and which delivery of it was claimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// The message.
    #[serde(flatten)]
    pub message: MessageId,
    /// The server's delivery count when it was claimed.
    pub delivery: u64,
}
