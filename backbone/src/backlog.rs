//! How much waits in the cluster, for monitoring: a bounded number of questions per queue, however many jobs wait.
//!
//! What is read here may be a moment old, and nothing is decided on it.

use std::collections::BTreeMap;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::{Lane, Queue, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::control::oldest_in;
use crate::error::Error;
use crate::request;
use crate::sweep::Standing;
use crate::wire::header::{self, names};

/// The jobs of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneBacklog {
    /// Jobs in it: waiting, buffered by a node, or running.
    pub messages: u64,
    /// When the oldest job was stored that was delivered to no node yet.
    pub oldest_undelivered: Option<Timestamp>,
}

/// Jobs that are stored and have not ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredJobs {
    /// How many.
    pub jobs: u64,
    /// How many of each tenant, where that was asked for.
    pub by_tenant: BTreeMap<Tenant, u64>,
}

impl StoredJobs {
    /// These and others.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.jobs += others.jobs;
        for (tenant, jobs) in others.by_tenant {
            *self.by_tenant.entry(tenant).or_default() += jobs;
        }
        self
    }
}

/// Dead letters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeadLetters {
    /// How many there are.
    pub count: u64,
    /// How full their stream is; 1: full.
    pub fill: f64,
    /// When the oldest was written.
    pub oldest: Option<Timestamp>,
}

/// For what a job that has a schedule waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// The time that its client set.
    Schedule,
    /// Its next attempt.
    Retry,
    /// Another try to start the attempt.
    Deferral,
}

/// The jobs of one queue that wait for a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Those of a client's schedule.
    pub scheduled: u64,
    /// Those that failed.
    pub retrying: u64,
    /// Those that were put off.
    pub deferred: u64,
}

/// What a node counted when it last read all schedules, by queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedCounts {
    /// By queue.
    pub queues: BTreeMap<String, Timed>,
}

impl TimedCounts {
    /// Counts a schedule.
    pub fn count(&mut self, queue: &Queue, waits_for: WaitsFor) {
        let timed = self.queues.entry(queue.to_string()).or_default();
        match waits_for {
            WaitsFor::Schedule => timed.scheduled += 1,
            WaitsFor::Retry => timed.retrying += 1,
            WaitsFor::Deferral => timed.deferred += 1,
        }
    }
}

/// Under this key of the control bucket the counts of schedules stand.
const TIMED: &str = "timed";

impl Backbone {
    /// The jobs of a lane.
    ///
    /// # Errors
    /// The lane cannot be read.
    pub async fn lane_backlog(&self, queue: &Queue, lane: Lane) -> Result<LaneBacklog, Error> {
        let stream = self.names().lane_stream(queue, lane);
        let failed = |source| Error::Read { subject: stream.clone(), source };
        let found = self.jetstream().get_stream(&stream).await.map_err(|error| failed(Box::new(error)))?;
        let state = &found.cached_info().state;
        if state.messages == 0 {
            return Ok(LaneBacklog { messages: 0, oldest_undelivered: None });
        }
        let delivered = self.delivered_up_to(&stream).await?;
        let oldest_undelivered = match () {
            () if delivered >= state.last_sequence => None,
            () if delivered < state.first_sequence => oldest_in(state),
            // The first jobs are running: the oldest that waits stands behind them.
            () => {
                let query = format!(r#"{{"seq":{},"next_by_subj":">"}}"#, delivered + 1);
                let next = request::direct_get(self.control(), self.api(), &stream, query).await?;
                next.and_then(|next| Timestamp::parse(&next.at).ok())
            }
        };
        Ok(LaneBacklog { messages: state.messages, oldest_undelivered })
    }

    /// The jobs in a lane, running ones included; one question. By tenant, at most 100,000 pairs of tenant and type are
    /// known.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn stored_in_lane(&self, queue: &Queue, lane: Lane, by_tenant: bool) -> Result<StoredJobs, Error> {
        let (stream, filter) = (self.names().lane_stream(queue, lane), by_tenant.then_some(">"));
        let state = self.subjects_in(&stream, filter).await?;
        Ok(StoredJobs { jobs: state.messages, by_tenant: self.by_tenant(&state.subjects) })
    }

    /// The parked jobs of a queue; one question.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn stored_parked(&self, queue: &Queue) -> Result<StoredJobs, Error> {
        let filter = self.names().parked_where(None, Some(queue), None);
        let state = self.subjects_in(&self.names().parked_stream(), Some(&filter)).await?;
        Ok(StoredJobs { jobs: state.subjects.values().sum(), by_tenant: self.by_tenant(&state.subjects) })
    }

    fn by_tenant(&self, subjects: &BTreeMap<String, u64>) -> BTreeMap<Tenant, u64> {
        let mut tenants = BTreeMap::new();
        for (subject, jobs) in subjects {
            let tenant = self.names().read_job(subject).and_then(|read| Tenant::parse(read.tenant).ok());
            if let Some(tenant) = tenant {
                *tenants.entry(tenant).or_default() += jobs;
            }
        }
        tenants
    }

    /// When the first parked job of a queue was enqueued or fell due.
    ///
    /// # Errors
    /// The stream of parked jobs cannot be read.
    pub async fn oldest_parked(&self, queue: &Queue) -> Result<Option<Timestamp>, Error> {
        let filter = self.names().parked_where(None, Some(queue), None);
        let query = format!(r#"{{"seq":1,"next_by_subj":"{filter}"}}"#);
        let first = request::direct_get(self.control(), self.api(), &self.names().parked_stream(), query).await?;
        Ok(first.and_then(|first| header::read_job(&first.headers).ok()?.moved?.due_at))
    }

    /// The dead letters, all tenants' together.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub async fn dead_letter_backlog(&self) -> Result<DeadLetters, Error> {
        let name = self.names().dlq_stream();
        let failed = |source| Error::Read { subject: name.clone(), source };
        let stream = self.jetstream().get_stream(&name).await.map_err(|error| failed(Box::new(error)))?;
        let info = stream.cached_info();
        let room = u64::try_from(info.config.max_bytes).unwrap_or(0);
        let fill = if room == 0 { 0.0 } else { info.state.bytes as f64 / room as f64 };
        Ok(DeadLetters { count: info.state.messages, fill, oldest: oldest_in(&info.state) })
    }

    /// Publishes what was counted when all schedules were read, for all nodes.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn publish_timed(&self, counts: &TimedCounts) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        headers.insert(names::TTL, "3600s");
        let body = Bytes::from(serde_json::to_vec(counts).unwrap_or_default());
        request::publish(self.control(), self.names().key("control", TIMED), headers, body).await.map(|_| ())
    }

    /// What was counted when a node last read all schedules; `None`: within the last hour none has.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn timed(&self) -> Result<Option<TimedCounts>, Error> {
        let query = format!(r#"{{"last_by_subj":"{}"}}"#, self.names().key("control", TIMED));
        let bucket = self.names().bucket_stream("control");
        let stored = request::direct_get(self.control(), self.api(), &bucket, query).await?;
        Ok(stored.and_then(|stored| serde_json::from_slice(&stored.payload).ok()))
    }

    /// The queue of a schedule, and for what its job waits.
    #[must_use]
    pub fn waits_for(&self, standing: &Standing) -> Option<(Queue, WaitsFor)> {
        let queue = Queue::parse(self.names().read_job(&standing.due)?.queue).ok()?;
        let retries = format!("{}.retries.", self.names().namespace());
        let waits_for = match standing.stored.subject.starts_with(&retries) {
            false => WaitsFor::Schedule,
            true => {
                let moved = header::read_job(&standing.stored.headers).ok()?.moved?;
                // A retry that was put off stays a retry.
                if moved.attempt > 1 { WaitsFor::Retry } else { WaitsFor::Deferral }
            }
        };
        Some((queue, waits_for))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_counted_by_queue_and_reason() {
        let (mut counts, main) = (TimedCounts::default(), Queue::main());
        counts.count(&main, WaitsFor::Schedule);
        counts.count(&main, WaitsFor::Schedule);
        counts.count(&main, WaitsFor::Retry);
        counts.count(&Queue::parse("bulk").unwrap(), WaitsFor::Deferral);
        let written = serde_json::to_string(&counts).unwrap();
        assert_eq!(
            written,
            r#"{"queues":{"bulk":{"scheduled":0,"retrying":0,"deferred":1},"main":{"scheduled":2,"retrying":1,"deferred":0}}}"#
        );
        assert_eq!(serde_json::from_str::<TimedCounts>(&written).unwrap(), counts);
    }
}
