//! What the wire contract says of run records and events, read strictly where it is strict and loosely where it is not.
//!
//! Written from the contract alone. Fields it does not name are kept in `rest`, never looked at.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value};

/// The name of a lifecycle event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventName {
    /// Waits for its time.
    Scheduled,
    /// Waits in its lane; once a round.
    Enqueued,
    /// An attempt began.
    Started,
    /// A running attempt told how far it is.
    Progress,
    /// Not started now, or snoozed by its handler: no attempt used.
    Deferred,
    /// Handed back by a draining node: the same attempt starts again.
    Released,
    /// An attempt failed.
    Failed,
    /// Ended well.
    Completed,
    /// Ended as a dead letter.
    Dlq,
    /// Ended by a client's wish.
    Cancelled,
    /// Ended since it was not started in time.
    Expired,
    /// Ended since it is another run over again.
    Duplicate,
    /// A dead letter's next round began.
    Replayed,
    /// A dead letter was thrown away.
    Discarded,
    /// A name that the contract does not know.
    #[serde(other)]
    Unknown,
}

impl EventName {
    /// Whether a round is over with it.
    pub fn is_end(self) -> bool {
        use EventName::{Cancelled, Completed, Discarded, Dlq, Duplicate, Expired};
        matches!(self, Completed | Dlq | Cancelled | Expired | Duplicate | Discarded)
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}").to_lowercase())
    }
}

/// One lifecycle event of one run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Event {
    /// The same whenever the same event is told again.
    pub id: String,
    /// What happened.
    pub event: EventName,
    /// To which run.
    pub run_id: String,
    /// Whose run it is.
    pub tenant: String,
    /// Where it waited.
    pub queue: String,
    /// 1 (most urgent) to 9.
    pub priority: u8,
    /// The job's type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// 1, and one more with each replay.
    #[serde(default)]
    pub round: u32,
    /// The last attempt started in this round; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// How many attempts a round may have.
    #[serde(default)]
    pub max_attempts: u32,
    /// When it happened, by the clock of who told it.
    #[serde(deserialize_with = "time")]
    pub at: Timestamp,
    /// Who told it.
    #[serde(default)]
    pub node: Option<String>,
    /// When a scheduled run is due.
    #[serde(default, deserialize_with = "time_if_any")]
    pub run_at: Option<Timestamp>,
    /// When a failed attempt will be followed by the next; absent if it will not.
    #[serde(default, deserialize_with = "time_if_any")]
    pub retry_at: Option<Timestamp>,
    /// What went wrong.
    #[serde(default)]
    pub error: Option<Failure>,
    /// Why a run was deferred.
    #[serde(default)]
    pub reason: Option<String>,
    /// What a completed run gave.
    #[serde(default)]
    pub result: Option<Value>,
    /// Which run this one is over again.
    #[serde(default)]
    pub duplicate_of: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What went wrong with an attempt or a run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Failure {
    /// `retryable`, `permanent`, `timeout`, `lease_expired`, `panic`, `no_handler`, `invalid` or `cancelled`.
    pub kind: String,
    /// For people; 4,096 bytes at most.
    #[serde(default)]
    pub message: String,
}

/// The record of a run, as it lies in the bucket and as `runs.get` answers it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Record {
    /// Its id.
    pub run_id: String,
    /// Whose it is.
    pub tenant: String,
    /// Where it waits or waited.
    #[serde(default)]
    pub queue: String,
    /// 1 (most urgent) to 9.
    #[serde(default)]
    pub priority: u8,
    /// The job's type.
    #[serde(rename = "type", default)]
    pub job_type: String,
    /// `scheduled`, `enqueued`, `running`, `retrying`, or one of the ends.
    pub state: String,
    /// 1, and one more with each replay.
    #[serde(default)]
    pub round: u32,
    /// The last attempt started in this round; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// How many attempts a round may have.
    #[serde(default)]
    pub max_attempts: u32,
    /// When it came into its lane.
    #[serde(default, deserialize_with = "time_if_any")]
    pub enqueued_at: Option<Timestamp>,
    /// When its last attempt began.
    #[serde(default, deserialize_with = "time_if_any")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "time_if_any")]
    pub ended_at: Option<Timestamp>,
    /// Not before then.
    #[serde(default, deserialize_with = "time_if_any")]
    pub run_at: Option<Timestamp>,
    /// Who ran its last attempt.
    #[serde(default)]
    pub node: Option<String>,
    /// What it gave, if that is JSON and not too large.
    #[serde(default)]
    pub result: Option<Value>,
    /// What ended it, or failed its last attempt.
    #[serde(default)]
    pub error: Option<Failure>,
    /// Its attempts so far, over all rounds.
    #[serde(default)]
    pub attempts: Vec<Tried>,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Which run this one is over again.
    #[serde(default)]
    pub duplicate_of: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Record {
    /// Whether nothing more will happen to it but by a client's wish.
    pub fn is_terminal(&self) -> bool {
        matches!(self.state.as_str(), "completed" | "dead" | "cancelled" | "expired" | "duplicate" | "discarded")
    }
}

/// One attempt in a record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Tried {
    /// In which round.
    #[serde(default = "first")]
    pub round: u32,
    /// Which attempt of it.
    pub attempt: u32,
    /// When it began.
    #[serde(default, deserialize_with = "time_if_any")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "time_if_any")]
    pub ended_at: Option<Timestamp>,
    /// Who ran it.
    #[serde(default)]
    pub node: Option<String>,
    /// How it failed, if it did.
    #[serde(default)]
    pub error: Option<Failure>,
    /// When the next one was due, if there was to be one.
    #[serde(default, deserialize_with = "time_if_any")]
    pub retry_at: Option<Timestamp>,
}

fn first() -> u32 {
    1
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn time_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_of_the_contract_is_read() {
        let event: Event = serde_json::from_value(json!({
            "v": 1, "id": "a/1/2/failed", "event": "failed", "run_id": "main-p5-7", "tenant": "acme", "queue": "main",
            "priority": 5, "type": "email.send", "round": 1, "attempt": 2, "max_attempts": 12, "node": "n1",
            "at": "2026-11-21T10:00:00.123Z", "retry_at": "2026-11-21T10:00:01.000Z", "duration_ms": 12,
            "error": {"kind": "retryable", "message": "no"},
        }))
        .unwrap();
        assert_eq!(event.event, EventName::Failed);
        assert_eq!(event.retry_at.unwrap().duration_since(event.at), jiff::SignedDuration::from_millis(877));
        assert_eq!(event.rest["duration_ms"], 12);
        assert_eq!(format!("{:>9}", event.event), "   failed");
    }

    #[test]
    fn a_name_that_the_contract_does_not_know_is_read_as_such() {
        assert_eq!(serde_json::from_value::<EventName>(json!("vanished")).unwrap(), EventName::Unknown);
    }

    #[test]
    fn a_record_needs_little_and_keeps_what_it_does_not_know() {
        let record: Record = serde_json::from_value(json!({
            "run_id": "a", "tenant": "default", "state": "dead", "attempts": [{"attempt": 1, "error": {"kind": "panic"}}],
            "result_bytes": 70000,
        }))
        .unwrap();
        assert!(record.is_terminal());
        assert_eq!(record.attempts[0].round, 1);
        assert_eq!(record.rest["result_bytes"], 70000);
    }
}
