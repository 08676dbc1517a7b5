//! How much waits in the cluster, for monitoring: a bounded number of questions per queue, however many jobs wait.
//!
//! What is read here may be a moment old, and nothing is decided on it.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::stream::Info;
use longshore_domain::fairness::{FairBy, FairnessKey};
use longshore_domain::run::DeferReason;
use longshore_domain::{JobType, Lane, Queue, QueueLane, Tenant, Timestamp};
use serde::{Deserialize, Serialize};

use crate::cluster::control::oldest_in;
use crate::error::Error;
use crate::messages::request::{self, conditions};
use crate::messages::scan;
use crate::schedules::sweep::Standing;
use crate::wire::header;
use crate::{Backbone, clock};

/// The jobs of one lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneBacklog {
    /// Jobs in it: waiting, buffered by a node, or running.
    pub messages: u64,
    /// The last sequence that was delivered to a node.
    pub delivered: u64,
    /// When the oldest of them was stored.
    pub oldest: Option<Timestamp>,
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
    /// Another try to start the attempt; why, as far as that is known.
    Deferral(Option<DeferReason>),
}

/// A job that has a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct WaitingJob {
    pub tenant: Tenant,
    pub queue: Queue,
    pub job_type: JobType,
    pub waits_for: WaitsFor,
    /// It was put off because no handler was there.
    pub lacks_handler: bool,
    pub since: Timestamp,
}

/// Jobs that wait for the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Several {
    /// How many.
    pub count: u64,
    /// Since when the first of them waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

impl Several {
    fn add(&mut self, since: Timestamp) {
        self.count += 1;
        self.since = Some(self.since.map_or(since, |first| first.min(since)));
    }
}

/// The jobs of one queue that wait for a time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Those of a client's schedule.
    pub scheduled: Several,
    /// Those that failed.
    pub retrying: Several,
    /// Those that were put off.
    pub deferred: Several,
    /// How many of these for which reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, u64>,
}

impl Timed {
    fn count(&mut self, job: &WaitingJob) {
        match job.waits_for {
            WaitsFor::Schedule => self.scheduled.add(job.since),
            WaitsFor::Retry => self.retrying.add(job.since),
            WaitsFor::Deferral(reason) => {
                self.deferred.add(job.since);
                let reason = reason.map_or("unknown", DeferReason::as_str);
                *self.reasons.entry(reason.to_owned()).or_default() += 1;
            }
        }
    }
}

/// At most so many tenants have counts of their own, and so many types of jobs that lack a handler.
const MAX_TENANTS: usize = 500;
const MAX_TYPES: usize = 500;

/// Up to so many schedules of so many bytes together are counted when a client asks.
const FEW: u64 = scan::PAGE as u64;
const FEW_BYTES: u64 = 1 << 20;

/// What a node counted when it last read all schedules, by queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedCounts {
    /// The reading began at this time or after it: what has waited since before, and waits still, is counted.
    #[serde(default)]
    pub counted_from: Timestamp,
    /// By queue, all tenants' together.
    pub queues: BTreeMap<String, Timed>,
    /// By tenant and queue.
    #[serde(default)]
    pub tenants: BTreeMap<Tenant, BTreeMap<String, Timed>>,
    /// There are more tenants than have counts of their own.
    #[serde(default)]
    pub has_others: bool,
    /// By tenant and type: those that were put off because no handler was there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub without_handler: BTreeMap<Tenant, BTreeMap<JobType, u64>>,
}

impl TimedCounts {
    /// Nothing is counted yet: the reading begins after `now`.
    pub fn begun(now: Timestamp) -> Self {
        Self { counted_from: now, ..Self::default() }
    }

    /// Whether the other has the same counts, whenever they were taken.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let Self { counted_from: _, queues, tenants, has_others, without_handler } = self;
        (queues, tenants, has_others, without_handler)
            == (&other.queues, &other.tenants, &other.has_others, &other.without_handler)
    }

    /// Whether a job of this type may have waited for a handler or for another attempt: retries are not counted by
    /// type.
    pub fn may_have_tried(&self, tenant: &Tenant, job_type: &JobType) -> bool {
        let types: usize = self.without_handler.values().map(BTreeMap::len).sum();
        let of_tenant = self.tenants.get(tenant).or(self.has_others.then_some(&self.queues));
        let retrying = of_tenant.is_some_and(|queues| queues.values().any(|timed| timed.retrying.count > 0));
        retrying || types >= MAX_TYPES || self.without_handler(tenant, job_type) > 0
    }

    /// Counts a job.
    pub fn count(&mut self, job: &WaitingJob) {
        self.queues.entry(job.queue.to_string()).or_default().count(job);
        if job.lacks_handler {
            self.count_without_handler(job);
        }
        if self.tenants.len() >= MAX_TENANTS && !self.tenants.contains_key(&job.tenant) {
            self.has_others = true;
            return;
        }
        let of_tenant = self.tenants.entry(job.tenant.clone()).or_default();
        of_tenant.entry(job.queue.to_string()).or_default().count(job);
    }

    fn count_without_handler(&mut self, job: &WaitingJob) {
        let types: usize = self.without_handler.values().map(BTreeMap::len).sum();
        let is_known = self.without_handler.get(&job.tenant).is_some_and(|types| types.contains_key(&job.job_type));
        if is_known || types < MAX_TYPES {
            let of_tenant = self.without_handler.entry(job.tenant.clone()).or_default();
            *of_tenant.entry(job.job_type.clone()).or_default() += 1;
        }
    }

    /// How many jobs of a type were put off because no handler was there.
    pub fn without_handler(&self, tenant: &Tenant, job_type: &JobType) -> u64 {
        self.without_handler.get(tenant).and_then(|types| types.get(job_type)).copied().unwrap_or(0)
    }

    /// The counts of a queue, of one tenant or of all; `None`: that tenant has none of its own.
    pub fn of(&self, queue: &Queue, tenant: Option<&Tenant>) -> Option<Timed> {
        let Some(tenant) = tenant else { return Some(self.queues.get(queue.as_str()).cloned().unwrap_or_default()) };
        match self.tenants.get(tenant) {
            Some(queues) => Some(queues.get(queue.as_str()).cloned().unwrap_or_default()),
            None => (!self.has_others).then(Timed::default),
        }
    }
}

/// Under this key of the control bucket the counts of schedules stand.
const TIMED: &str = "timed";
const TIMED_KEPT: Duration = Duration::from_secs(3_600);

impl Backbone {
    /// The jobs of a lane, of one tenant or of all.
    ///
    /// # Errors
    /// The lane cannot be read.
    pub async fn lane_backlog(
        &self,
        queue: &Queue,
        lane: QueueLane,
        tenant: Option<&Tenant>,
    ) -> Result<LaneBacklog, Error> {
        let stream = self.names().lane_stream(queue, lane);
        // A lane that is missing has no jobs: it must not keep those of all others from being counted.
        let found = self.stream_info_if_any(&stream).await?.filter(|found| found.state.messages > 0);
        let Some(Info { state, .. }) = found else { return Ok(LaneBacklog::default()) };
        let filter = match (tenant, lane) {
            (None, _) => ">".to_owned(),
            (tenant, QueueLane::Of(priority)) => self.names().jobs_where(tenant, &Lane::new(queue, priority), None),
            (tenant, QueueLane::Returned) => self.names().returned_where(tenant, queue, None),
        };
        let (messages, oldest) = match tenant {
            None => (state.messages, oldest_in(&state)),
            Some(_) => {
                let subjects = self.subjects_in(&stream, Some(&filter)).await?.subjects;
                (subjects.values().sum(), self.first_after(&stream, 0, &filter).await?)
            }
        };
        if messages == 0 {
            return Ok(LaneBacklog::default());
        }
        let delivered = self.position_in(&stream).await?.unwrap_or(0);
        let oldest_undelivered = match () {
            () if delivered >= state.last_sequence => None,
            () if delivered < state.first_sequence => oldest,
            // The first jobs are running: the oldest that waits stands behind them.
            () => self.first_after(&stream, delivered, &filter).await?,
        };
        Ok(LaneBacklog { messages, delivered, oldest, oldest_undelivered })
    }

    /// When the first message after a sequence was stored.
    async fn first_after(&self, stream: &str, sequence: u64, filter: &str) -> Result<Option<Timestamp>, Error> {
        let query = format!(r#"{{"seq":{},"next_by_subj":"{filter}"}}"#, sequence + 1);
        let next = request::direct_get(self.control(), stream, query).await?;
        Ok(next.and_then(|next| Timestamp::parse(&next.at).ok()))
    }

    /// The jobs in a lane, running ones included; one question. By tenant, at most 100,000 pairs of tenant and type are
    /// known.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn stored_in_lane(&self, queue: &Queue, lane: QueueLane, by_tenant: bool) -> Result<StoredJobs, Error> {
        let (stream, filter) = (self.names().lane_stream(queue, lane), by_tenant.then_some(">"));
        let state = self.subjects_in(&stream, filter).await?;
        Ok(StoredJobs { jobs: state.messages, by_tenant: self.by_tenant(&state.subjects) })
    }

    /// How many jobs of each fairness key are in a lane, running ones included; one question. At most 100,000 pairs of
    /// tenant and type are known.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn keys_in_lane(
        &self,
        queue: &Queue,
        lane: QueueLane,
        by: FairBy,
    ) -> Result<BTreeMap<FairnessKey, u64>, Error> {
        let state = self.subjects_in(&self.names().lane_stream(queue, lane), Some(">")).await?;
        Ok(sums(&state.subjects, |subject| self.fairness_key(subject, by)))
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
        let tenant = |subject: &str| Tenant::parse(self.names().read_job(subject)?.tenant).ok();
        sums(subjects, tenant)
    }

    /// When the first parked job of a queue was enqueued or fell due.
    ///
    /// # Errors
    /// The stream of parked jobs cannot be read.
    pub async fn oldest_parked(&self, queue: &Queue, tenant: Option<&Tenant>) -> Result<Option<Timestamp>, Error> {
        let filter = self.names().parked_where(tenant, Some(queue), None);
        let query = format!(r#"{{"seq":1,"next_by_subj":"{filter}"}}"#);
        let first = request::direct_get(self.control(), &self.names().parked_stream(), query).await?;
        Ok(first.and_then(|first| header::read_job(&first.headers).ok()?.moved?.due_at))
    }

    /// The dead letters, all tenants' together.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub async fn dead_letter_backlog(&self) -> Result<DeadLetters, Error> {
        let info = self.stream_info(&self.names().dlq_stream()).await?;
        let room = u64::try_from(info.config.max_bytes).unwrap_or(0);
        let fill = if room == 0 { 0.0 } else { info.state.bytes as f64 / room as f64 };
        Ok(DeadLetters { count: info.state.messages, fill, oldest: oldest_in(&info.state) })
    }

    /// Publishes what was counted when all schedules were read, for all nodes.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn publish_timed(&self, counts: &TimedCounts) -> Result<(), Error> {
        self.put_entry("control", TIMED, counts, conditions(None, Some(TIMED_KEPT))).await.map(drop)
    }

    /// The jobs that wait for a time: as they are now if they are few, else as they were counted when a node last read
    /// all schedules; `None`: within the last hour none has.
    ///
    /// # Errors
    /// The stream of schedules or the control bucket cannot be read.
    pub async fn timed(&self) -> Result<Option<TimedCounts>, Error> {
        let mut counts = TimedCounts::begun(clock::now());
        let state = self.stream_info(&self.names().schedules_stream()).await?.state;
        if state.messages <= FEW && state.bytes <= FEW_BYTES {
            let page = self.standing_schedules(1).await?;
            if page.next.is_none() {
                page.found.iter().filter_map(|found| self.waits_for(found)).for_each(|job| counts.count(&job));
                return Ok(Some(counts));
            }
        }
        let query = format!(r#"{{"last_by_subj":"{}"}}"#, self.names().key("control", TIMED));
        let bucket = self.names().bucket_stream("control");
        let stored = request::direct_get(self.control(), &bucket, query).await?;
        Ok(stored.and_then(|stored| self.readable(&stored.subject, &stored.payload)))
    }

    /// The job of a schedule, and for what it waits.
    pub fn waits_for(&self, standing: &Standing) -> Option<WaitingJob> {
        let read = self.names().read_job(&standing.due)?;
        let (tenant, queue) = (Tenant::parse(read.tenant).ok()?, Queue::parse(read.queue).ok()?);
        let job_type = JobType::parse(read.job_type).ok()?;
        let since = Timestamp::parse(&standing.stored.at).unwrap_or_default();
        let retries = format!("{}.retries.", self.names().namespace());
        let (waits_for, reason) = match standing.stored.subject.starts_with(&retries) {
            false => (WaitsFor::Schedule, None),
            true => {
                let moved = header::read_job(&standing.stored.headers).ok()?.moved?;
                // A retry that was put off stays a retry.
                let is_retry = moved.attempt > 1;
                let reason = moved.deferred_for;
                (if is_retry { WaitsFor::Retry } else { WaitsFor::Deferral(reason) }, reason)
            }
        };
        let lacks_handler = reason == Some(DeferReason::NoHandlerOnline);
        Some(WaitingJob { tenant, queue, job_type, waits_for, lacks_handler, since })
    }
}

/// The jobs of subjects that have the same key together; a subject without a key is left out.
fn sums<K: Ord>(subjects: &BTreeMap<String, u64>, key: impl Fn(&str) -> Option<K>) -> BTreeMap<K, u64> {
    let mut sums = BTreeMap::new();
    for (subject, jobs) in subjects {
        if let Some(key) = key(subject) {
            *sums.entry(key).or_default() += jobs;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_counted_by_queue_tenant_and_reason() {
        let mut counts = TimedCounts::default();
        let mut count = |tenant: &str, queue: &str, waits_for, since| {
            let (tenant, queue) = (Tenant::parse(tenant).unwrap(), Queue::parse(queue).unwrap());
            let (job_type, since) = (JobType::parse("mail").unwrap(), Timestamp::from_millis(since));
            let lacks_handler = waits_for == WaitsFor::Deferral(Some(DeferReason::NoHandlerOnline));
            counts.count(&WaitingJob { tenant, queue, job_type, waits_for, lacks_handler, since });
        };
        count("a", "main", WaitsFor::Schedule, 7_000);
        count("b", "main", WaitsFor::Schedule, 5_000);
        count("a", "main", WaitsFor::Retry, 9_000);
        count("a", "bulk", WaitsFor::Deferral(Some(DeferReason::Busy)), 8_000);
        count("a", "bulk", WaitsFor::Deferral(None), 8_500);
        count("b", "bulk", WaitsFor::Deferral(Some(DeferReason::NoHandlerOnline)), 8_600);
        let written = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<TimedCounts>(&written).unwrap(), counts);
        let [mail, call] = ["mail", "call"].map(|name| JobType::parse(name).unwrap());
        let [with_retry, lacking, none] = ["a", "b", "c"].map(|name| Tenant::parse(name).unwrap());
        assert!(counts.may_have_tried(&with_retry, &call), "it may be the one that waits for a retry");
        assert!(counts.may_have_tried(&lacking, &mail) && !counts.may_have_tried(&lacking, &call));
        assert!(!counts.may_have_tried(&none, &mail));
        let others = TimedCounts { has_others: true, ..counts.clone() };
        assert!(others.may_have_tried(&none, &mail), "a tenant that is not counted by itself");
        let later = TimedCounts { counted_from: Timestamp::from_millis(1), ..counts.clone() };
        assert!(later.says_the_same(&counts) && !later.says_the_same(&others));
        let (main, bulk) = (Queue::main(), Queue::parse("bulk").unwrap());
        let (a, c) = (Tenant::parse("a").unwrap(), Tenant::parse("c").unwrap());
        let all = counts.of(&main, None).unwrap();
        assert_eq!((all.scheduled.count, all.retrying.count, all.deferred.count), (2, 1, 0));
        assert_eq!(all.scheduled.since, Some(Timestamp::from_millis(5_000)));
        assert_eq!(counts.of(&main, Some(&a)).unwrap().scheduled.since, Some(Timestamp::from_millis(7_000)));
        let reasons = counts.of(&bulk, Some(&a)).unwrap().reasons;
        assert_eq!(reasons, [("busy".to_owned(), 1), ("unknown".to_owned(), 1)].into());
        assert_eq!(counts.of(&bulk, Some(&c)), Some(Timed::default()));
        let without_handler = ["a", "b"]
            .map(|tenant| counts.without_handler(&Tenant::parse(tenant).unwrap(), &JobType::parse("mail").unwrap()));
        assert_eq!(without_handler, [0, 1]);
        counts.has_others = true;
        assert_eq!(counts.of(&bulk, Some(&c)), None, "it may be one of those that are not counted");
    }
}
