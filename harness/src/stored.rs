//! What streams store, as it is read: events of the log, and dead letters.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::wire::Event;

/// An event as it is stored in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// The sequence of the stored message that holds it, perhaps among others.
    pub sequence: u64,
    /// The event.
    pub event: Event,
}

/// A dead letter as it is stored in its stream.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// `longshore.dlq.<tenant>.<queue>.<type…>`.
    pub subject: String,
    /// Its headers; the first value where a name has several.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub payload: Bytes,
}

impl DeadLetter {
    /// The tenant of its run.
    pub fn tenant(&self) -> &str {
        self.subject.split('.').nth(2).unwrap_or("")
    }

    /// The id of its run: from its header, or from its body if that is an object with the id.
    pub fn run_id(&self) -> Option<String> {
        self.headers.get("Longshore-Run-Id").cloned().or_else(|| Some(self.body()?["run_id"].as_str()?.to_owned()))
    }

    /// The round of that run, if the dead letter names it.
    pub fn round(&self) -> Option<u32> {
        let header = self.headers.get("Longshore-Round").and_then(|round| round.parse().ok());
        header.or_else(|| u32::try_from(self.body()?["round"].as_u64()?).ok())
    }

    /// The kind of error that ended the run, by the record that the dead letter carries.
    pub fn error_kind(&self) -> Option<String> {
        let record: serde_json::Value = serde_json::from_str(self.headers.get("Longshore-Record")?).ok()?;
        Some(record["error"]["kind"].as_str()?.to_owned())
    }

    fn body(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.payload).ok()
    }
}
