//! Nodes: which are there, and how busy they are.

use std::collections::BTreeMap;

use longshore_domain::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ApiError, Endpoint, Nothing, request};

/// `nodes.list`: the nodes that were seen within the last 10 s. For operators.
#[derive(Debug)]
pub struct NodesList;

impl Endpoint for NodesList {
    const NAME: &'static str = "nodes.list";
    const FOR_OPERATORS: bool = true;
    type Request = Nothing;
    type Answer = Nodes;

    fn read(body: &[u8]) -> Result<Nothing, ApiError> {
        request::read_or_default(body)
    }
}

/// `nodes.log_level`: which lines a node's log has from now on. For operators.
#[derive(Debug)]
pub struct NodesLogLevel;

impl Endpoint for NodesLogLevel {
    const NAME: &'static str = "nodes.log_level";
    const FOR_OPERATORS: bool = true;
    type Request = LogLevelRequest;
    type Answer = LogLevel;
}

/// Which node, and what its log is to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevelRequest {
    /// The node's name.
    pub node: String,
    /// `error`, `warn`, `info`, `debug`, `trace` or `off`; or a filter such as `info,longshore_actors=debug`.
    pub level: String,
}

/// What a node's log has, until the node ends or is asked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevel {
    /// The filter that holds now.
    pub level: String,
    /// The node.
    pub node: String,
}

/// The nodes, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nodes {
    /// One entry for each node.
    pub nodes: Vec<NodeStatus>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeQueue {
    /// Jobs it runs at once, at most.
    pub concurrency: usize,
    /// Jobs it runs now.
    pub running: usize,
}
