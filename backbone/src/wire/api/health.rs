//! Health of the node that answers, or of another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiError;
use super::request::read;

/// Reads the request of `health`: one that is not an object asks for nothing in particular.
pub(super) fn read_any(body: &[u8]) -> Result<HealthRequest, ApiError> {
    if body.trim_ascii_start().starts_with(b"{") { read(body) } else { Ok(HealthRequest::default()) }
}

/// Which node's health.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthRequest {
    /// The node of this name; any node if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Rare events that a node counts from its start on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Counters {
    /// Connections to NATS that were made anew.
    pub connections_rebuilt: u64,
    /// Jobs whose schedule had not fired, and that were moved into their lanes all the same.
    pub overdue_restored: u64,
    /// Messages that no client can read and that became dead letters.
    pub poison_removed: u64,
    /// Runs that nothing can bring on; the node's log names them.
    pub runs_stranded: u64,
    /// Records that were older than the job that came.
    pub stale_reads: u64,
}

/// The health of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthStatus {
    /// What has happened to it since it started. Absent from nodes of older versions.
    #[serde(default)]
    pub counters: Counters,
    /// The faults on purpose that its attempts meet, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Whether it can work at all.
    pub live: bool,
    /// Its name.
    pub node: String,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// Whether it takes work.
    pub ready: bool,
    /// Why it takes no work; empty if it does.
    pub reasons: Vec<String>,
    /// Its version.
    pub version: String,
    /// Problems that do not keep it from work: lanes that are full, types without handler.
    pub warnings: Vec<String>,
}
