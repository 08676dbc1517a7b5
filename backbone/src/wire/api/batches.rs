//! Batches: jobs that belong together, and a job that runs once when all of them have ended.

use longshore_domain::{BatchId, RunId, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{SubmitRequest, Word, request};

/// A batch that is created. If there is one of that id, made by the same request, the answer is that one.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBatchRequest {
    /// Its id, unique within its tenant: at most 64 characters.
    pub id: BatchId,
    /// Whose it is, if the operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// The job that runs once all members have ended, under the run id `<id>-done`. Its payload is the batch's own; it
    /// has no `run_id`, key, `on_conflict`, `debounce` or `batch_id`.
    #[serde(deserialize_with = "request::object")]
    pub on_complete: Option<Box<SubmitRequest>>,
    /// What a member that is a dead letter means: `wait` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// A time: a batch that has not completed by then has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// What a member that is a dead letter means for its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// It has not ended: the batch waits until it is replayed and completes, or is discarded.
    #[default]
    Wait,
    /// The batch has failed, and its job does not run.
    Fail,
    /// It has ended, and is listed among those that failed.
    Ignore,
}

/// How far a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// It does not complete before it is sealed.
    Open,
    /// It completes once all members have ended.
    Sealed,
    /// All have ended, and its job is being submitted.
    Completing,
    /// Its job is submitted.
    Completed,
    /// A member is a dead letter, or its deadline is over.
    Failed,
    /// It was cancelled, and with it the members that had not ended.
    Cancelled,
}

/// Which batch is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OneBatchRequest {
    /// Its id.
    pub id: BatchId,
    /// Whose it is, if the operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
}

/// Whose batches are listed.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchesRequest {
    /// The tenant, if the operator asks for one.
    pub tenant: Option<Tenant>,
    /// Entries per page: 100 by default, at most 500.
    pub limit: Option<u64>,
    /// Where the previous page ended.
    pub cursor: Option<String>,
}

/// Some batches, by tenant and id, without their members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Batches {
    /// The batches.
    pub batches: Vec<BatchStatus>,
    /// Where the next page begins; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A batch as answers show it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchStatus {
    /// Members that have not ended, at most 100; with those that are dead letters, if it waits for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaits: Vec<RunId>,
    /// Why it has failed.
    pub because: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// The time by which it must have completed.
    pub deadline: Option<Timestamp>,
    /// When it completed, failed or was cancelled.
    pub ended_at: Option<Timestamp>,
    /// Members that did not complete, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedMember>,
    /// Its id.
    pub id: BatchId,
    /// Members by how they have ended, and those that have not.
    pub members: Option<BatchCounts>,
    /// What a member that is a dead letter means.
    pub on_failure: Word<OnFailure>,
    /// The run of its job, once that is submitted.
    pub run_id: Option<RunId>,
    /// When it was sealed.
    pub sealed_at: Option<Timestamp>,
    /// How far it is.
    pub state: Word<BatchState>,
    /// Whose it is.
    pub tenant: Tenant,
}

/// How many members a batch has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchCounts {
    /// All of them.
    pub all: u64,
    /// Those that completed.
    pub completed: u64,
    /// Those that ended otherwise: dead, cancelled, expired, duplicate, discarded or erased.
    pub failed: u64,
}

/// A member that did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedMember {
    /// Its run.
    pub run_id: RunId,
    /// How it ended; `gone`: its record is gone.
    pub state: String,
}

/// The payload of the job that completes a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPayload {
    /// The batch.
    pub batch: BatchId,
    /// How many members completed.
    pub completed: u64,
    /// Members that did not, at most 100.
    pub failed: Vec<FailedMember>,
}
