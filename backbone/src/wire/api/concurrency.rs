//! Concurrency limits: who has which slots of them, and operators' orders to free some.

use longshore_domain::{JobType, RunId, SmolStr, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Which limits. An empty request lists all.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConcurrencyRequest {
    /// The keys of this tenant; under `_all` of all tenants by default.
    pub tenant: Option<Tenant>,
    /// Of this type.
    #[serde(rename = "type")]
    pub job_type: Option<JobType>,
    /// Entries per page: 100 by default, at most 500.
    pub limit: Option<u64>,
    /// Where the previous page ended.
    pub cursor: Option<String>,
}

/// Whose slots of which limit are freed. Without a key: of the type's own limit.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FreeRequest {
    /// The type.
    #[serde(rename = "type", deserialize_with = "super::request::job_type")]
    pub job_type: JobType,
    /// The tenant of the key.
    pub tenant: Option<Tenant>,
    /// The key, as jobs name it.
    pub concurrency_key: Option<String>,
    /// In its place its hash, as the list has it.
    pub key_hash: Option<SmolStr>,
    /// The slots of this node only.
    pub node: Option<SmolStr>,
    /// The slots of this session only.
    pub session: Option<SmolStr>,
}

/// Some limits, by type, tenant and key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConcurrencyLimits {
    /// Where the next page begins; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The limits.
    pub limits: Vec<ConcurrencyStatus>,
}

/// What was freed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Freed {
    /// How many slots.
    pub freed: u32,
    /// The limit as it is now.
    pub limit: ConcurrencyStatus,
}

/// A concurrency limit as an answer shows it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConcurrencyStatus {
    /// Who has slots of it.
    pub holders: Vec<SlotHolder>,
    /// The hash of the key; absent: it is the limit of the type.
    pub key_hash: Option<SmolStr>,
    /// How many slots there are.
    pub max: u32,
    /// The tenant of the key.
    pub tenant: Option<Tenant>,
    /// The type.
    #[serde(rename = "type")]
    pub job_type: JobType,
}

/// A node that has slots of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlotHolder {
    /// The node.
    pub node: SmolStr,
    /// The runs of the asking tenant that work with them, as the node says; absent: it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<Vec<SlotRun>>,
    /// The session under which the node has them.
    pub session: SmolStr,
    /// How many it has; some may be without work for a moment.
    pub slots: u32,
    /// When they come back if the node gives no sign any more.
    pub until: Timestamp,
}

/// A run that works with a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlotRun {
    /// Its id.
    pub run_id: RunId,
    /// Its tenant.
    pub tenant: Tenant,
}
