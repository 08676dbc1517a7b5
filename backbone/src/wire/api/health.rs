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

/// A part of a node's supervision tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartStatus {
    /// Its name.
    pub part: String,
    /// Whether there is one for each queue: then the rest is of all of them together.
    pub per_queue: bool,
    /// How often it died and was started again, since the node started.
    pub restarts: u64,
    /// Messages that wait for it; absent if it takes none, or none that are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
}

/// An endpoint of a remote handler that has answered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct HandlerStatus {
    /// The subject it listens on.
    pub subject: String,
    /// The name and id of its service.
    pub service: String,
    /// How many jobs it takes at once, if it announces that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
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
    /// The remote handlers that have answered it, by subject, 200 at most. Only for operators who name the node; absent
    /// if it has not asked any within the last 15 s, as without jobs for them: it does so once it was asked for this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handlers: Option<Vec<HandlerStatus>>,
    /// Whether it can work at all.
    pub live: bool,
    /// Its name.
    pub node: String,
    /// The parts of its supervision tree, by name. Only for operators who name the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartStatus>,
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
