//! Parked jobs: they wait for what all jobs of their kind wait for, out of the way of the jobs behind them.
//!
//! A parked job is an ordinary message on a subject of its tenant, queue, priority, key and type, in a stream without
//! consumers. To take it back, a node publishes it into its queue's lane of returned jobs, under an id of run and wait,
//! and then deletes it. If another node repeats this, or a node repeats it after a crash, the lane has the job once;
//! the record decides besides.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use longshore_domain::{JobType, Priority, Queue, QueueLane, Run, Tenant, Timestamp};
use serde::Deserialize;
use tokio::time::Instant;

use crate::Backbone;
use crate::error::Error;
use crate::messages::refusal::Refusal;
use crate::messages::request::{self, Stored};
use crate::messages::scan::Source;
use crate::streams::info::StreamState;
use crate::wire::header;
use crate::wire::kind_key::KindKey;
use crate::wire::subject::Names;

/// How long the stream counts as full after it has refused a job. The next one shows whether it still is: the refused
/// one may have gone to another node.
pub const FULL_FOR: Duration = Duration::from_secs(10);

/// Whether the stream of parked jobs was full when the last job was parked; clones share it.
#[derive(Debug, Clone, Default)]
pub struct ParkedSpace(Arc<Mutex<Option<Instant>>>);

impl ParkedSpace {
    /// Whether it was.
    pub fn is_full(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|refused| refused.elapsed() < FULL_FOR)
    }

    /// A job was parked, or refused because the stream is full.
    pub fn learned(&self, is_full: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = is_full.then(Instant::now);
    }
}

/// Jobs of one kind that are parked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ParkedKind {
    pub tenant: Tenant,
    pub queue: Queue,
    pub priority: Priority,
    pub job_type: JobType,
    /// What they differ by beyond that.
    pub key: KindKey,
    /// How many there are.
    pub jobs: u64,
}

#[derive(Deserialize)]
struct Info {
    state: Option<StreamState>,
    error: Option<Refusal>,
}

impl Backbone {
    /// Parks the run's job. Its rank counts from `since`.
    ///
    /// # Errors
    /// The stream is full, or the server did not confirm it.
    pub async fn park(
        &self,
        run: &Run,
        since: Timestamp,
        original: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<(), Error> {
        let mut headers = header::carry_on(original, run, run.next_attempt(), Some(since));
        let payload = self.fitting(&mut headers, payload);
        let key = header::kind_key(original);
        let subject = self.names().parked(&run.tenant, &run.lane(), &run.job_type, &key);
        let parked = request::publish(self.client(), subject, headers, payload).await;
        self.0.parked_space.learned(parked.as_ref().is_err_and(Error::is_stream_full));
        parked.map(drop)
    }

    /// Publishes the run's job into its queue's lane of returned jobs, where its rank counts from `since`: as if it had
    /// been parked and taken back.
    ///
    /// # Errors
    /// The lane is full, or the server did not confirm it.
    pub async fn return_to_queue(
        &self,
        run: &Run,
        since: Timestamp,
        original: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<(), Error> {
        let headers = header::carry_on(original, run, run.next_attempt(), Some(since));
        let subject = self.names().returned(&run.tenant, &run.lane(), &run.job_type);
        let Run { tenant, run_id, seal, round, deferrals, .. } = run;
        let id = format!("{tenant}/{run_id}/{seal}/{round}/{}/{deferrals}/forward", run.next_attempt());
        self.move_to_lane(subject, headers, payload, &id).await.map(drop)
    }

    /// Removes the message of a parked run that has ended, if it is among the first of its kind. If it stays, it finds
    /// out when it is taken back.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn take_out_parked(&self, run: &Run, key: &KindKey) -> Result<(), Error> {
        let subject = self.names().parked(&run.tenant, &run.lane(), &run.job_type, key);
        for stored in self.first_parked_of(run, &subject).await? {
            self.take_out(&Source::Parked, stored.sequence).await?;
        }
        Ok(())
    }

    /// The keys of a parked run, if it is among the first of its type that are parked in its queue.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn parked_key(&self, run: &Run) -> Result<Option<KindKey>, Error> {
        let subject = self.names().parked_where(Some(&run.tenant), Some(&run.queue), Some(&run.job_type));
        let own = self.first_parked_of(run, &subject).await?;
        Ok(own.first().map(|stored| header::kind_key(Some(&stored.headers))))
    }

    /// The messages of a run among the first that are parked under a subject.
    async fn first_parked_of(&self, run: &Run, subject: &str) -> Result<Vec<Stored>, Error> {
        let mut first = self.page(&Source::Parked, subject, 1).await?.messages;
        let is_its_own = |id: &HeaderValue| id.as_str() == run.run_id.as_str();
        first.retain(|stored| stored.headers.get(header::names::RUN_ID).is_some_and(is_its_own));
        Ok(first)
    }

    /// Whether the stream of parked jobs was full when the last job was parked.
    pub fn parked_space(&self) -> ParkedSpace {
        self.0.parked_space.clone()
    }

    /// The kinds of a queue's parked jobs, as the stream's leader has them. At most 100,000 kinds are known.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn parked_kinds(&self, queue: &Queue, tenant: Option<&Tenant>) -> Result<Vec<ParkedKind>, Error> {
        self.kinds_in(&self.names().parked_stream(), &self.names().parked_where(tenant, Some(queue), None)).await
    }

    /// The jobs that were parked and are in the queue's lane of returned jobs, by tenant, priority and type: their
    /// subjects do not have the key of their kind, so it is returned as the empty one.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn returned_kinds(&self, queue: &Queue, tenant: Option<&Tenant>) -> Result<Vec<ParkedKind>, Error> {
        let stream = self.names().lane_stream(queue, QueueLane::Returned);
        self.kinds_in(&stream, &self.names().returned_where(tenant, queue, None)).await
    }

    async fn kinds_in(&self, stream: &str, filter: &str) -> Result<Vec<ParkedKind>, Error> {
        let subjects = self.subjects_in(stream, Some(filter)).await?.subjects;
        Ok(subjects.into_iter().filter_map(|(subject, jobs)| read_kind(self.names(), &subject, jobs)).collect())
    }

    /// How many messages a stream has, and how many on each of the subjects that the filter takes, as its leader has
    /// them. At most 100,000 subjects are returned.
    pub(crate) async fn subjects_in(&self, stream: &str, filter: Option<&str>) -> Result<StreamState, Error> {
        let subject = format!("{}.STREAM.INFO.{stream}", self.api());
        // One page: the client library's own listing requests a second one, only to find that there is none.
        let body = filter.map(|filter| Bytes::from(format!(r#"{{"subjects_filter":"{filter}"}}"#)));
        let body = body.unwrap_or_default();
        let info: Info = request::ask(self.control(), subject.clone(), body).await?;
        match info.error {
            Some(refusal) => Err(refusal.of(subject)),
            None => Ok(info.state.unwrap_or_default()),
        }
    }
}

/// What a subject says of parked or returned jobs; `None`: it is neither's.
fn read_kind(names: &Names, subject: &str, jobs: u64) -> Option<ParkedKind> {
    let read = names.read_job(subject)?;
    Some(ParkedKind {
        tenant: Tenant::parse(read.tenant).ok()?,
        queue: Queue::parse(read.queue).ok()?,
        priority: Priority::parse(read.priority).ok()?,
        job_type: JobType::parse(read.job_type).ok()?,
        key: if names.is_returned(subject) { KindKey::default() } else { names.read_parked_key(subject)? },
        jobs,
    })
}

#[cfg(test)]
mod tests {
    use longshore_domain::Lane;

    use super::*;

    #[test]
    fn the_kind_of_a_parked_and_of_a_returned_job_is_read_from_its_subject() {
        let names = Names::new("longshore");
        let (tenant, queue) = (Tenant::parse("acme").unwrap(), Queue::main());
        let (priority, job_type) = (Priority::DEFAULT, JobType::parse("report.render").unwrap());
        let kind = ParkedKind { tenant, queue, priority, job_type, key: KindKey::default(), jobs: 7 };
        let ParkedKind { tenant, queue, job_type, key, .. } = kind.clone();
        let lane = Lane::new(&queue, priority);
        let parked = names.parked(&tenant, &lane, &job_type, &key);
        let returned = names.returned(&tenant, &lane, &job_type);
        assert_eq!(read_kind(&names, &parked, 7), Some(kind.clone()));
        assert_eq!(read_kind(&names, &returned, 7), Some(kind));
        assert_eq!(read_kind(&names, "longshore.jobs.acme.main.p5.report.render", 7), None);
    }
}
