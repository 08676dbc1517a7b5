//! Queues: the jobs that wait and run in each, their pauses, and queues that are put.

use std::collections::BTreeMap;

use longshore_domain::duration::MAX_DURATION;
use longshore_domain::fairness::{FairBy, FairnessKey};
use longshore_domain::policy::QueuePolicy;
use longshore_domain::run::whole_millis;
use longshore_domain::setting::PutQueue;
use longshore_domain::{JobType, Queue, SmolStr, Tenant, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::ApiError;

/// A queue, and how it is to be served.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutQueueRequest {
    /// The queue.
    pub queue: Queue,
    /// Jobs that run at once on each node, 1 to 10,000; 64 by default.
    pub concurrency: Option<usize>,
    /// How much later a job of the next more urgent priority may come and still overtake, in milliseconds, at most
    /// 3,650 days; 30,000 by default, 0 for strict priorities.
    pub aging_ms: Option<u64>,
    /// The nodes that serve it, also those that are still to be started; every node by default, none if empty.
    pub nodes: Option<Vec<SmolStr>>,
    /// Between whom its starts are shared out: `tenant`, the default, or `type`.
    #[serde(default, skip_serializing_if = "longshore_domain::is_default")]
    pub fair_by: FairBy,
}

impl PutQueueRequest {
    /// How the queue is to be served.
    ///
    /// # Errors
    /// 400: names the field that is wrong, and its bounds.
    pub fn setting(&self) -> Result<PutQueue, ApiError> {
        let default = QueuePolicy::default();
        let concurrency = self.concurrency.unwrap_or(default.concurrency);
        if !(1..=QueuePolicy::MAX_CONCURRENCY).contains(&concurrency) {
            let max = QueuePolicy::MAX_CONCURRENCY;
            return Err(ApiError::malformed(format!("concurrency: {concurrency} is out of bounds; 1 to {max}")));
        }
        let aging_ms = self.aging_ms.unwrap_or(whole_millis(default.aging));
        let max = whole_millis(MAX_DURATION);
        if aging_ms > max {
            return Err(ApiError::malformed(format!("aging_ms: {aging_ms} is out of bounds; 0 to {max}")));
        }
        let mut nodes = self.nodes.clone();
        for node in nodes.iter().flatten() {
            // A node's name is a token, as a tenant is.
            Tenant::parse(node).map_err(|error| ApiError::malformed(format!("nodes: {node:?} {}", error.reason)))?;
        }
        if let Some(nodes) = &mut nodes {
            nodes.sort();
            nodes.dedup();
            if nodes.len() > MAX_NAMED {
                return Err(ApiError::malformed(format!("nodes: {} are too many; {MAX_NAMED} at most", nodes.len())));
            }
        }
        Ok(PutQueue { concurrency, aging_ms, nodes, fair_by: self.fair_by })
    }
}

/// At most so many nodes are named of one queue.
const MAX_NAMED: usize = 1_000;

/// A queue that was put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueuePut {
    /// How much later a job of the next more urgent priority may come and still overtake, in milliseconds.
    pub aging_ms: u64,
    /// Jobs that run at once on each node, unless that node's configuration says otherwise.
    pub concurrency: usize,
    /// Between whom its starts are shared out.
    #[serde(default)]
    pub fair_by: FairBy,
    /// The nodes that serve it, if not every node does; those whose configuration names it do so in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<SmolStr>>,
    /// The queue.
    pub queue: Queue,
    /// The nodes that serve it now.
    pub served_by: Vec<String>,
    /// Nodes that are there and are to serve it, and have not said within three seconds that they do.
    pub unconfirmed: Vec<String>,
}

/// Whose shares of a queue are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharesRequest {
    /// The queue.
    pub queue: Queue,
}

/// How the starts of a queue are shared out between those who have jobs in its lanes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueShares {
    /// Between whom they are.
    pub fair_by: FairBy,
    /// How many have jobs in it and are not in the list.
    pub left_out: u64,
    /// For how long deliveries were counted, in milliseconds.
    pub over_ms: u64,
    /// The queue.
    pub queue: Queue,
    /// Those with the most jobs first, at most 100.
    pub shares: Vec<QueueShare>,
}

/// The part of one tenant, or of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueShare {
    /// How many of its jobs nodes were delivered in that time, from the lanes of all priorities.
    pub delivered: u64,
    /// Its jobs in the lanes, running ones included.
    pub jobs: u64,
    /// Its weight, divided by the weights of all who have jobs: 0 to 1.
    pub share: f64,
    /// Its weight, as this node is set.
    pub weight: u32,
    /// The tenant, or the type.
    #[serde(flatten)]
    pub whose: FairnessKey,
}

/// Which queue is purged.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PurgeRequest {
    /// The queue.
    pub queue: Queue,
    /// Its name once more, unless `dry_run` is set.
    pub confirm: Option<Queue>,
    /// Cancels at most so many; all by default.
    pub limit: Option<u64>,
    /// Only count them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Which jobs are paused: those of a queue, of a type, or of a type in one queue.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// The queue.
    pub queue: Option<Queue>,
    /// The type.
    #[serde(rename = "type", default)]
    pub job_type: Option<JobType>,
    /// When the pause ends by itself; if absent, it has no end.
    pub until: Option<Timestamp>,
}

/// Which pause is ended: exactly one that was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// The queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// The type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub job_type: Option<JobType>,
}

/// Whether jobs are paused.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PauseStatus {
    /// Whether they are.
    pub paused: bool,
    /// Their queue, if it is about one.
    pub queue: Option<Queue>,
    /// Since when they are, or were until now; absent if they were not.
    pub since: Option<Timestamp>,
    /// Their type, if it is about one.
    #[serde(rename = "type", default)]
    pub job_type: Option<JobType>,
    /// When the pause ends by itself.
    pub until: Option<Timestamp>,
    /// What may not be as it was meant: no handler of the type was ever online.
    pub warning: Option<String>,
}

/// Which queues, and whose jobs in them.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QueuesRequest {
    /// Only this queue; all by default.
    pub queue: Option<String>,
    /// Under `_all`: only this tenant's jobs; by default those of all.
    pub tenant: Option<Tenant>,
}

/// A type whose jobs are paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PausedType {
    /// The type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// When the pause ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The queues, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queues {
    /// Types for which a node finds no handler, the one first that has been missing for longest.
    #[serde(default)]
    pub no_handler: Vec<NoHandler>,
    /// One entry for each queue.
    pub queues: Vec<QueueStatus>,
}

/// A type without handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NoHandler {
    /// The served type that may be meant, if none was ever online.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub did_you_mean: Option<JobType>,
    /// How many of its jobs wait out of the way of others, in the listed queues.
    pub jobs: u64,
    /// When a node last looked for a handler.
    pub looked_at: Timestamp,
    /// Whether it is certain that none was ever online.
    #[serde(default)]
    pub never_served: bool,
    /// Since when none has been found.
    pub since: Timestamp,
    /// The subject on which a handler would listen.
    pub subject: String,
    /// The tenant of its jobs.
    pub tenant: Tenant,
    /// The type.
    #[serde(rename = "type")]
    pub job_type: JobType,
}

/// The state of one queue: of all tenants' jobs in it, or of one tenant's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueStatus {
    /// Jobs that its nodes run at once, at most.
    pub concurrency: u64,
    /// Jobs that could not start and wait for another try, by reason; absent until all schedules were read once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferred: Option<BTreeMap<String, u64>>,
    /// Jobs that wait or run.
    pub depth: u64,
    /// The same by priority, `p1` to `p9`.
    pub depths: BTreeMap<String, u64>,
    /// Age of the oldest of them in milliseconds; `null` if there is none.
    pub oldest_age_ms: Option<u64>,
    /// Age of the oldest in each state in milliseconds, where there is one.
    #[serde(default)]
    pub oldest_ms: BTreeMap<String, u64>,
    /// Whether it is paused.
    pub paused: bool,
    /// The types whose jobs are paused in it.
    #[serde(default)]
    pub paused_types: Vec<PausedType>,
    /// When its own pause ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
    /// Its name.
    pub queue: Queue,
    /// Jobs that wait for their next attempt; absent until all schedules were read once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retrying: Option<u64>,
    /// Jobs that run, on all nodes.
    pub running: u64,
    /// Jobs that wait for the time that their client set; absent until all schedules were read once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<u64>,
    /// Whether a node that is not draining serves it.
    pub served: bool,
    /// The nodes that do.
    #[serde(default)]
    pub served_by: Vec<String>,
    /// Jobs that wait for a worker, by priority, `p1` to `p9`.
    #[serde(default)]
    pub waiting: BTreeMap<String, u64>,
}
