//! Submitting jobs: one, or a batch.

use std::collections::BTreeMap;

use longshore_domain::{JobType, Priority, Queue, RunId, RunState, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use super::{ApiError, Encoded, Word, request};

/// A job. All fields but the type may be left out; then the node's settings apply. Each field means the same as the
/// header of its name.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// Its type, such as `email.send`.
    #[serde(rename = "type")]
    #[schemars(with = "JobType")]
    pub job_type: String,
    /// Any JSON, `null` included, passed on byte for byte. There is no payload if neither this nor `payload_base64` is
    /// set.
    #[serde(default, deserialize_with = "request::any_json")]
    pub payload: Option<Box<RawValue>>,
    /// Any bytes in base64; excludes `payload`.
    pub payload_base64: Option<String>,
    /// Its queue: `main` by default.
    #[schemars(with = "Option<Queue>")]
    pub queue: Option<String>,
    /// 1, the most urgent, to 9; 5 by default.
    #[schemars(with = "Option<Priority>")]
    pub priority: Option<u64>,
    /// 1 to 512 bytes: within the window and per tenant, one key belongs to one run.
    pub idempotency_key: Option<String>,
    /// How long the key is kept, in milliseconds: above 0, at most 3,650 days.
    pub idempotency_window_ms: Option<u64>,
    /// When the key is free again: `window`, after its window; `queued`, once the job starts; `active`, once the run
    /// has ended.
    pub unique: Option<String>,
    /// What happens if another run has the key: `return` answers with that run, `reject` refuses the job, `replace`
    /// lets this job take the place of a run that has not started.
    pub on_conflict: Option<String>,
    /// Its key, and how long it waits for the next job of that key, which takes its place.
    #[serde(default, deserialize_with = "request::object")]
    pub debounce: Option<Debounce>,
    /// An id for the run that the client chooses: at most 96 characters, not in the form of a derived id.
    #[schemars(with = "Option<RunId>")]
    pub run_id: Option<String>,
    /// Not before this time (RFC 3339).
    #[schemars(with = "Option<Timestamp>")]
    pub run_at: Option<String>,
    /// Not before this many milliseconds have passed; excludes `run_at`.
    pub delay_ms: Option<u64>,
    /// No attempt is started after this time (RFC 3339).
    #[schemars(with = "Option<Timestamp>")]
    pub expires_at: Option<String>,
    /// The same, in milliseconds from when it is enqueued or falls due: above 0; excludes `expires_at`.
    pub expires_in_ms: Option<u64>,
    /// 1 to 1,000.
    pub max_attempts: Option<u64>,
    /// Name of a back-off preset of the node's settings.
    pub retry: Option<String>,
    /// Time limit of one attempt, in milliseconds: above 0.
    pub timeout_ms: Option<u64>,
    /// How long the record is kept once the run has finished, in milliseconds; at least two leases.
    pub keep_ms: Option<u64>,
    /// When the whole run must have finished: a time (RFC 3339) or a duration such as `7d`.
    pub deadline: Option<String>,
    /// 1 to 512 bytes: how many of its type run at once is counted per key.
    pub concurrency_key: Option<String>,
    /// 1 to 512 bytes: which bucket of its type's rate limit, or which breaker.
    pub limit_key: Option<String>,
    /// 1 to 1,000,000: how many tokens of a rate limit it takes.
    pub cost: Option<u64>,
    /// Which version of its type's schema its payload follows: 1 to 64 bytes; by default the version that the settings
    /// say.
    pub schema_version: Option<String>,
    /// At most 8, of at most 64 bytes each.
    pub tags: Option<Vec<String>>,
    /// The job that follows once this one's run has completed: with the result as its payload, unless it has a payload.
    /// It may have a `then` in turn; at most 16 follow one another. It has no `run_id`, key, `on_conflict` or
    /// `debounce`.
    #[serde(default, deserialize_with = "request::object")]
    pub then: Option<Box<SubmitRequest>>,
    /// The batch that it joins. The batch must have been created, and not have ended.
    pub batch_id: Option<String>,
    /// Headers that are passed on to the handler; none may begin with `Nats-` or `Longshore-`.
    pub headers: Option<BTreeMap<String, String>>,
}

/// How a job waits for others of its key. Each takes the place of the one before, so that the last runs, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Debounce {
    /// 1 to 512 bytes: the job's idempotency key, which is free again once it starts.
    pub key: String,
    /// The job starts if no other came for so long, in milliseconds: above 0.
    pub wait_ms: u64,
    /// It starts so long after the first at the latest, however many come: at least `wait_ms`; no bound by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<u64>,
}

/// The answer to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Submitted {
    /// Whether the run was there before, with the same idempotency key or run id.
    pub deduplicated: bool,
    /// The run.
    pub run_id: RunId,
    /// Its state; `enqueued` or `scheduled` if it is new.
    pub state: Word<RunState>,
}

/// Several jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// At most 1,000. They are read one by one, so that an invalid one does not affect the others.
    pub jobs: Vec<Encoded<SubmitRequest>>,
}

/// The answer to a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchAnswer {
    /// One for each job, in their order.
    pub jobs: Vec<BatchItem>,
}

/// The outcome for one job of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BatchItem {
    /// It was accepted.
    Accepted(Submitted),
    /// It was refused.
    Refused(ApiError),
}
