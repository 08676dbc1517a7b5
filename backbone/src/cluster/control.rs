//! The control bucket: what a node says of itself, and from which sequence on a lane's delivery counts can be trusted.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_domain::{JobType, Priority, Queue, QueueLane, SmolStr, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::error::Error;
use crate::messages::refusal::WRONG_SEQUENCE;
use crate::messages::request::{self, conditions, json};

/// What a node publishes about itself, every [`PRESENCE_EVERY`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// Its name.
    pub node: String,
    /// Its version.
    pub version: String,
    /// When it started.
    pub started_at: Timestamp,
    /// When it last published this. It is written by the machine's own clock, so that `doctor` can compare that with
    /// the server's; nodes that read it get the time at which the server stored it.
    pub seen_at: Timestamp,
    /// `running` or `draining`.
    pub state: String,
    /// The queues it serves: concurrency and running jobs.
    pub queues: BTreeMap<String, QueueLoad>,
    /// Jobs that it runs of tenants whose waiting jobs are bounded. Absent from nodes of older versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub running_of: BTreeMap<Tenant, usize>,
    /// The types for which it finds no handler, at most [`MAX_MISSING`]. Absent from nodes of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_handlers: Vec<MissingHandler>,
}

impl Presence {
    /// Whether the node takes jobs of this queue.
    pub fn serves(&self, queue: &Queue) -> bool {
        self.state == "running" && self.queues.get(queue.as_str()).is_some_and(|load| load.concurrency > 0)
    }
}

/// How busy a node is with a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueLoad {
    /// Jobs it runs at once, at most; 0: it takes no more, and ends those that run.
    pub concurrency: usize,
    /// Jobs it runs now.
    pub running: usize,
    /// Those of them whose attempt has begun, by priority, the most urgent first. Absent from nodes of older versions.
    #[serde(default)]
    pub by_priority: [usize; Priority::COUNT],
    /// Since when the job has waited that has waited longest of those that it has pulled and not started.
    #[serde(default)]
    pub oldest_buffered: Option<Timestamp>,
    /// Jobs whose attempt has begun, by tenant and priority, of at most [`MAX_TENANTS`] tenants.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_tenant: BTreeMap<Tenant, [usize; Priority::COUNT]>,
}

/// At most so many tenants' running jobs are published of a queue.
pub const MAX_TENANTS: usize = 128;

/// A type for which a node finds no handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingHandler {
    /// The tenant whose jobs it looked for a handler for.
    pub tenant: Tenant,
    /// The type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Since when it has found none.
    pub since: Timestamp,
    /// When it last looked.
    pub looked_at: Timestamp,
}

/// At most so many types without handler are published.
pub const MAX_MISSING: usize = 64;

/// How often a node says that it is there.
pub const PRESENCE_EVERY: Duration = Duration::from_secs(2);
/// A node that was not seen for this long counts as gone.
pub const GONE_AFTER: Duration = Duration::from_secs(10);

/// High-water marks: the sequence of each lane up to which a delivery count of 1 proves nothing.
///
/// A server writes a consumer's state late. If it is killed, it delivers jobs that were delivered before, or even
/// acknowledged, as if for the first time. So the first node that meets a server process stores the last sequence of
/// each lane. For a job at or below that high-water mark, a node reads the record before it starts work.
pub type Marks = BTreeMap<String, u64>;

/// Server processes come and go; one that outlives its high-water marks gets new ones, which costs a few reads.
const MARKS_KEPT: Duration = Duration::from_secs(30 * 86_400);

impl Backbone {
    /// Whether delivery counts depend on the one server process this node is connected to, so that high-water marks may
    /// be shared. In a cluster a consumer's leader may be any server, and may change without notice to this node.
    pub fn has_one_server(&self) -> bool {
        self.storage().replicas == 1 && self.client().server_info().cluster.is_none()
    }

    /// The high-water marks of the only server's process; this node creates them if it is the first to meet it.
    ///
    /// # Errors
    /// The control bucket or a lane cannot be read.
    pub async fn marks(&self, queue: &Queue) -> Result<Marks, Error> {
        let key = format!("servers.{}.{queue}", self.client().server_info().server_id);
        let subject = self.names().key("control", &key);
        let bucket = self.names().bucket_stream("control");
        let query = format!(r#"{{"last_by_subj":"{subject}"}}"#);
        let read = async || {
            let stored = request::direct_get(self.client(), &bucket, query.clone()).await?;
            Ok::<_, Error>(stored.and_then(|stored| self.readable::<Marks>(&stored.subject, &stored.payload)))
        };
        if let Some(marks) = read().await? {
            return Ok(marks);
        }
        // At once: a lane without a leader answers late or not at all.
        let lanes = Priority::all().map(|priority| self.lane_of(queue, priority));
        let lanes = futures_util::future::try_join_all(lanes).await?.into_iter();
        let marks: Marks = lanes.map(|lane| (lane.stream.to_string(), lane.last_sequence)).collect();
        match request::publish(self.client(), subject, conditions(Some(0), Some(MARKS_KEPT)), json(&marks)).await {
            Ok(_) => Ok(marks),
            // Another node met the server first: its marks hold for all.
            Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => Ok(read().await?.unwrap_or(marks)),
            Err(error) => Err(error),
        }
    }

    /// The state of one lane.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn lane_of(&self, queue: &Queue, lane: impl Into<QueueLane>) -> Result<LaneState, Error> {
        let name = self.names().lane_stream(queue, lane);
        let state = self.stream_info(&name).await?.state;
        Ok(LaneState {
            stream: SmolStr::from(name),
            messages: state.messages,
            last_sequence: state.last_sequence,
            oldest: oldest_in(&state),
        })
    }
}

/// When the oldest message of a stream was stored.
pub(crate) fn oldest_in(state: &async_nats::jetstream::stream::State) -> Option<Timestamp> {
    let at = state.first_timestamp.unix_timestamp_nanos() / 1_000_000;
    (state.messages > 0).then(|| Timestamp::from_millis(i64::try_from(at).unwrap_or(0)))
}

/// The state of a lane.
#[derive(Debug, Clone)]
pub struct LaneState {
    /// Its stream.
    pub stream: SmolStr,
    /// Jobs in it: waiting, buffered by a node, or running.
    pub messages: u64,
    /// The last sequence it assigned.
    pub last_sequence: u64,
    /// When its oldest job was stored.
    pub oldest: Option<Timestamp>,
}
