//! Queues: the jobs that wait and run in each.

use std::collections::BTreeMap;

use longshore_domain::Queue;
use serde::{Deserialize, Serialize};

use super::{ApiError, Endpoint, request};

/// `queues.list`: the declared queues; 404 if the requested queue is not declared.
#[derive(Debug)]
pub struct QueuesList;

impl Endpoint for QueuesList {
    const NAME: &'static str = "queues.list";
    type Request = QueuesRequest;
    type Answer = Queues;

    fn read(body: &[u8]) -> Result<QueuesRequest, ApiError> {
        request::read_or_default(body)
    }
}

/// Which queues.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueuesRequest {
    /// Only this queue; all by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
}

/// The queues, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queues {
    /// One entry for each queue.
    pub queues: Vec<QueueStatus>,
}

/// The state of one queue, over all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Jobs that its nodes run at once, at most.
    pub concurrency: u64,
    /// Jobs that wait or run.
    pub depth: u64,
    /// The same by priority, `p1` to `p9`.
    pub depths: BTreeMap<String, u64>,
    /// Age of the oldest of them in milliseconds; `null` if there is none.
    pub oldest_age_ms: Option<u64>,
    /// Whether it is paused: never in this version.
    pub paused: bool,
    /// Its name.
    pub queue: Queue,
    /// Jobs that run, on all nodes.
    pub running: u64,
    /// Whether a node that is not draining serves it.
    pub served: bool,
}
