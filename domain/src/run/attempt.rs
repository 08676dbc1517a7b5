//! One attempt, as the record keeps it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::Failure;
use crate::Timestamp;

/// One attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its round.
    pub round: u32,
    /// Its number within the round, from 1.
    pub attempt: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Which node ran it.
    pub node: SmolStr,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// When the next attempt was due, or this one once more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Why it was requeued without being used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_back: Option<PutBack>,
    /// Which start of this attempt it was: above 1 after the attempt was requeued.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub start: u32,
    /// Its handler has replied, and it goes on elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detached: Option<Box<Detached>>,
}

/// Since when an attempt goes on elsewhere, and until when its end was awaited at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detached {
    /// When its handler replied.
    pub at: Timestamp,
    /// Until when it was to end, unless it would report its progress.
    pub until: Timestamp,
}

fn first() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_first(start: &u32) -> bool {
    *start == 1
}

/// Why a started attempt was requeued without being used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PutBack {
    /// Its node was shut down.
    Released,
    /// Its handler asked for it.
    Snoozed,
    /// Its handler had no capacity after all.
    Busy,
    /// No handler could run it: it was claimed, but never started.
    NotStarted,
}
