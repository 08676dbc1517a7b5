//! Nodes: which are there, and how busy they are.

use std::collections::BTreeMap;

use longshore_domain::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Which node, and what its log is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLevelRequest {
    /// The node's name.
    pub node: String,
    /// `error`, `warn`, `info`, `debug`, `trace` or `off`; or a filter such as `info,longshore_actors=debug`.
    pub level: String,
}

/// What a node's log has, until the node ends or is asked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLevel {
    /// The filter that holds now.
    pub level: String,
    /// The node.
    pub node: String,
}

/// What nodes have counted in the last hour, since they started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// How long each point lasts, in milliseconds.
    pub every_ms: u64,
    /// The nodes that have answered.
    pub nodes: Vec<String>,
    /// The oldest first.
    pub points: Vec<StatsPoint>,
}

/// What all nodes together have counted in a while.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatsPoint {
    /// When it began.
    pub at: Timestamp,
    /// Jobs enqueued.
    pub enqueued: u64,
    /// Runs that have ended.
    pub ended: u64,
    /// Attempts that have failed.
    pub failed: u64,
    /// How long jobs waited, from enqueued or due to started; absent if none started.
    pub wait: Option<Quantiles>,
    /// How long attempts took; absent if none ended.
    pub run: Option<Quantiles>,
}

/// Times of which so many are shorter: edges of the histograms of the metrics, or 600,001 above the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Half, in milliseconds.
    pub p50_ms: u64,
    /// 99 of 100, in milliseconds.
    pub p99_ms: u64,
}

/// Which node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsRequest {
    /// The node's name.
    pub node: String,
}

/// A node's settings, in the order of its file. Of a type there are those that it has of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSettings {
    /// The node.
    pub node: String,
    /// Its settings.
    pub settings: Vec<InForce>,
}

/// A setting in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InForce {
    /// Its section, such as `node` or `types."email.send"`; empty at the top of the file.
    pub section: String,
    /// Its name.
    pub name: String,
    /// Its value as TOML, without secrets; absent: it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where it was set: a file and its line, a variable, or `default`.
    pub from: String,
}

/// The nodes, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Nodes {
    /// One entry for each node.
    pub nodes: Vec<NodeStatus>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// The queues it serves, by name.
    pub queues: BTreeMap<String, NodeQueue>,
    /// When it last published its presence.
    pub seen_at: Timestamp,
    /// When it started.
    pub started_at: Timestamp,
    /// `running`, `draining` or `silent`.
    pub state: String,
    /// Its version.
    pub version: String,
}

/// How busy a node is with a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeQueue {
    /// Jobs it runs at once, at most.
    pub concurrency: usize,
    /// Jobs it runs now.
    pub running: usize,
}
