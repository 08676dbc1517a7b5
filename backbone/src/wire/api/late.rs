//! Attempts that end later than their handlers reply: completed, failed, or reported on by calls with their tokens.

use longshore_domain::{RunId, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use super::request;

/// An attempt that was detached has succeeded.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    /// Its run.
    pub run_id: RunId,
    /// Whose it is, if the operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// The attempt's `Longshore-Attempt-Token`.
    pub token: String,
    /// The run's result: any JSON of at most 64 KiB.
    #[serde(default, deserialize_with = "request::any_json", skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

/// An attempt that was detached has failed.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FailRequest {
    /// Its run.
    pub run_id: RunId,
    /// Whose it is, if the operator asks.
    pub tenant: Option<Tenant>,
    /// The attempt's `Longshore-Attempt-Token`.
    pub token: String,
    /// What went wrong; 4,096 bytes are kept.
    pub error: String,
    /// Whether another attempt may help: `true` by default.
    pub retryable: Option<bool>,
    /// The delay before the next attempt, in milliseconds, in place of the back-off.
    pub retry_after_ms: Option<u64>,
}

/// An attempt that was detached goes on.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProgressRequest {
    /// Its run.
    pub run_id: RunId,
    /// Whose it is, if the operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
    /// The attempt's `Longshore-Attempt-Token`.
    pub token: String,
    /// How far it is: any JSON of at most 4,096 bytes; absent: a heartbeat.
    #[serde(default, deserialize_with = "request::any_json", skip_serializing_if = "Option::is_none")]
    pub progress: Option<Box<RawValue>>,
}

/// The answer to a sign of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Goes {
    /// The run was cancelled: nobody waits for the end any more.
    pub cancelled: bool,
    /// Until when the attempt must end or give its next sign; absent if it was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}
