//! Work that clients ask for: a job at a time.

use std::collections::BTreeMap;

use longshore_domain::{JobType, Priority, Queue, RunId, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use super::request;

/// Asks for a job.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NextRequest {
    /// The types that the asker does: 1 to 16.
    pub types: Vec<JobType>,
    /// Whose jobs, if the operator asks.
    pub tenant: Option<Tenant>,
    /// How long to wait for a job, in milliseconds: 30,000 by default, at most 600,000.
    pub wait_ms: Option<u64>,
    /// The attempt has failed if it neither ends nor gives a sign for so long, in milliseconds: 60,000 by default,
    /// 1,000 to 86,400,000.
    pub lease_ms: Option<u64>,
}

/// The answer to a request for work.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Next {
    /// The job; absent if none came in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Box<PulledJob>>,
}

/// A job that is handed out. Its attempt goes on until `runs.complete` or `runs.fail` ends it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PulledJob {
    /// Its run.
    pub run_id: RunId,
    /// The attempt's token, for `runs.complete`, `runs.fail` and `runs.progress`.
    pub token: String,
    /// Whose it is.
    pub tenant: Tenant,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Its queue.
    pub queue: Queue,
    /// Its priority.
    pub priority: Priority,
    /// 1, and one more with each replay of its run.
    pub round: u32,
    /// The attempt of this round.
    pub attempt: u32,
    /// Maximum number of attempts in a round.
    pub max_attempts: u32,
    /// Until when the attempt must end or give a sign.
    pub deadline: Timestamp,
    /// The client's own headers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Its payload, if that is JSON.
    #[serde(default, deserialize_with = "request::any_json", skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
    /// Its payload in base64, if that is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
}
