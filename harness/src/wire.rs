//! The wire contract of run records and events, parsed strictly where the contract is strict and loosely where it is
//! not.
//!
//! Written from the contract alone. Fields that the contract does not name are kept in `rest` and never inspected.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value};

/// The name of a lifecycle event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventName {
    /// Waits for its time.
    Scheduled,
    /// Waits in its lane; once a round.
    Enqueued,
    /// An attempt began.
    Started,
    /// A running attempt reported its progress.
    Progress,
    /// Its handler wrote a line into its log.
    Log,
    /// Its handler finished a step of its work.
    StepCompleted,
    /// Not started now, or snoozed by its handler: no attempt used.
    Deferred,
    /// Released by a draining node: the same attempt starts again.
    Released,
    /// An attempt failed.
    Failed,
    /// Ended successfully.
    Completed,
    /// Ended as a dead letter.
    Dlq,
    /// Ended by a client's cancel.
    Cancelled,
    /// Ended because it was not started in time.
    Expired,
    /// Ended because it repeats another run.
    Duplicate,
    /// A dead letter's next round began.
    Replayed,
    /// A dead letter was discarded.
    Discarded,
    /// A name that the contract does not know.
    #[serde(other)]
    Unknown,
}

impl EventName {
    /// Whether it ends a round.
    pub fn is_end(self) -> bool {
        use EventName::{Cancelled, Completed, Discarded, Dlq, Duplicate, Expired};
        matches!(self, Completed | Dlq | Cancelled | Expired | Duplicate | Discarded)
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StepCompleted => f.pad("step_completed"),
            other => f.pad(&format!("{other:?}").to_lowercase()),
        }
    }
}

/// One lifecycle event of one run.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Event {
    /// The same whenever the same event is published again.
    pub id: String,
    /// What happened.
    pub event: EventName,
    /// The run it happened to.
    pub run_id: String,
    /// The tenant of the run.
    pub tenant: String,
    /// The queue in which it waited.
    pub queue: String,
    /// 1 (most urgent) to 9.
    pub priority: u8,
    /// The job's type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// 1, plus 1 for each replay.
    #[serde(default)]
    pub round: u32,
    /// The last attempt started in this round; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// How many attempts a round may have.
    #[serde(default)]
    pub max_attempts: u32,
    /// When it happened, by the cluster's time as the node that published it has it.
    #[serde(deserialize_with = "time")]
    pub at: Timestamp,
    /// The node that published it.
    pub node: Option<String>,
    /// When a scheduled run is due.
    #[serde(default, deserialize_with = "time_if_any")]
    pub run_at: Option<Timestamp>,
    /// When the next attempt follows a failed one; absent if none follows.
    #[serde(default, deserialize_with = "time_if_any")]
    pub retry_at: Option<Timestamp>,
    /// What went wrong.
    pub error: Option<Failure>,
    /// Why a run was deferred.
    pub reason: Option<String>,
    /// The result of a completed run.
    pub result: Option<Value>,
    /// The run that this one repeats.
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
    /// For people; at most 4,096 bytes.
    #[serde(default)]
    pub message: String,
}

/// The record of a run, as it is stored in the bucket and as `runs.get` returns it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Record {
    /// Its id.
    pub run_id: String,
    /// The tenant it belongs to.
    pub tenant: String,
    /// The queue in which it waits or waited.
    #[serde(default)]
    pub queue: String,
    /// 1 (most urgent) to 9.
    #[serde(default)]
    pub priority: u8,
    /// The job's type.
    #[serde(rename = "type", default)]
    pub job_type: String,
    /// `scheduled`, `enqueued`, `running`, `retrying`, or one of the terminal states.
    pub state: String,
    /// 1, plus 1 for each replay.
    #[serde(default)]
    pub round: u32,
    /// The last attempt started in this round; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// How many attempts a round may have.
    #[serde(default)]
    pub max_attempts: u32,
    /// When it arrived in its lane.
    #[serde(default, deserialize_with = "time_if_any")]
    pub enqueued_at: Option<Timestamp>,
    /// When its last attempt began.
    #[serde(default, deserialize_with = "time_if_any")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "time_if_any")]
    pub ended_at: Option<Timestamp>,
    /// The earliest time at which it may start.
    #[serde(default, deserialize_with = "time_if_any")]
    pub run_at: Option<Timestamp>,
    /// The node of its last attempt.
    pub node: Option<String>,
    /// Its result, if that is JSON and not too large.
    pub result: Option<Value>,
    /// The error that ended it, or that failed its last attempt.
    pub error: Option<Failure>,
    /// Its attempts so far, over all rounds.
    #[serde(default)]
    pub attempts: Vec<Tried>,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The run that this one repeats.
    pub duplicate_of: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Record {
    /// Whether nothing more will happen to it unless a client asks for it.
    pub fn is_terminal(&self) -> bool {
        matches!(self.state.as_str(), "completed" | "dead" | "cancelled" | "expired" | "duplicate" | "discarded")
    }
}

/// One attempt in a record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Tried {
    /// The round it belongs to.
    #[serde(default = "first")]
    pub round: u32,
    /// Its number in the round.
    pub attempt: u32,
    /// When it began.
    #[serde(default, deserialize_with = "time_if_any")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "time_if_any")]
    pub ended_at: Option<Timestamp>,
    /// The node it ran on.
    pub node: Option<String>,
    /// How it failed, if it did.
    pub error: Option<Failure>,
    /// When the next attempt was due, if one was to follow.
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
