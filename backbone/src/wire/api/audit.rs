//! The audit: what operators and clients changed, other than by submitting jobs.

use longshore_domain::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use super::ApiError;

/// Which entries.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditRequest {
    /// Those written since then; from the beginning if absent.
    pub since: Option<Timestamp>,
    /// Entries per page: 100 by default, at most 500.
    pub limit: Option<u64>,
    /// Where the previous page ended.
    pub cursor: Option<String>,
}

/// Some entries, in the order in which they were stored.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct AuditPage {
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// Where the next page begins; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// An entry: an action was asked for, or was answered. Both have the same `id`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// The version of this form: 1.
    pub v: u32,
    /// Of the action.
    pub id: String,
    /// `asked`, before anything was done; then `done` or `refused`.
    pub stage: String,
    /// When this entry was written.
    pub at: Timestamp,
    /// The endpoint.
    pub endpoint: String,
    /// The tenant under which it was asked; `_all` for an operator.
    pub tenant: String,
    /// The node that answers.
    pub node: String,
    /// Who asks, as the caller says itself.
    pub by: Option<String>,
    /// Why, as the caller says.
    pub reason: Option<String>,
    /// The inbox to which the answer goes, without its last part.
    pub from: String,
    /// What was asked, without payloads and headers.
    pub request: Option<Box<RawValue>>,
    /// The counts in the answer.
    pub outcome: Option<Box<RawValue>>,
    /// Why it was refused.
    pub error: Option<ApiError>,
}
