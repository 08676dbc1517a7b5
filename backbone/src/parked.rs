//! Parked jobs: those that wait for what all of their kind wait for, out of the way of the jobs behind them.
//!
//! A parked job is an ordinary message on a subject of its tenant, queue, priority and type, in a stream without
//! consumers. Taking it back is a publish into its queue's lane of returned jobs, under an id of run and wait, and then its
//! deletion: repeated by another node, or after a crash, it is there once, and the record decides besides.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::{JobType, Priority, Queue, Run, Tenant, Timestamp};
use serde::Deserialize;

use crate::Backbone;
use crate::error::Error;
use crate::request::{self, PubAck, Refusal, STREAM_FULL};
use crate::wire::header;

/// Jobs of one kind that are parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedKind {
    /// Whose.
    pub tenant: Tenant,
    /// Of which queue.
    pub queue: Queue,
    /// How urgent.
    pub priority: Priority,
    /// What is to be done.
    pub job_type: JobType,
    /// How many.
    pub jobs: u64,
}

#[derive(Deserialize)]
struct Info {
    state: Option<State>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    subjects: BTreeMap<String, u64>,
}

impl Backbone {
    /// Parks the run's job. `since` is what its rank counts from.
    ///
    /// # Errors
    /// The stream is full, or the server did not confirm it.
    pub async fn park(
        &self,
        run: &Run,
        since: Timestamp,
        original: Option<&HeaderMap>,
        payload: Bytes,
    ) -> Result<PubAck, Error> {
        let headers = header::carry_on(original, run, run.next_attempt(), Some(since));
        let subject = self.names().parked(&run.tenant, &run.queue, run.priority, &run.job_type);
        let parked = request::publish(self.client(), subject, headers, payload).await;
        let is_full = matches!(&parked, Err(Error::Refused { code, .. }) if STREAM_FULL.contains(code));
        self.0.parked_full.store(is_full, Ordering::Relaxed);
        parked
    }

    /// Whether the stream of parked jobs had no room for the last one.
    #[must_use]
    pub fn parked_is_full(&self) -> bool {
        self.0.parked_full.load(Ordering::Relaxed)
    }

    /// The kinds of jobs of a queue that are parked, by the word of the stream's leader. Up to 100,000 kinds are known.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn parked_kinds(&self, queue: &Queue) -> Result<Vec<ParkedKind>, Error> {
        let subject = format!("{}.STREAM.INFO.{}", self.api(), self.names().parked_stream());
        let filter = self.names().parked_where(None, Some(queue), None);
        // One page: the client library's own listing asks for a second one to find that there is none.
        let body = Bytes::from(format!(r#"{{"subjects_filter":"{filter}"}}"#));
        let info: Info = request::ask(self.control(), subject.clone(), body).await?;
        if let Some(Refusal { err_code, description }) = info.error {
            return Err(Error::Refused { subject, code: err_code, description });
        }
        let subjects = info.state.map(|state| state.subjects).unwrap_or_default();
        Ok(subjects.into_iter().filter_map(|(subject, jobs)| self.read_kind(&subject, jobs)).collect())
    }

    fn read_kind(&self, subject: &str, jobs: u64) -> Option<ParkedKind> {
        let read = self.names().read_job(subject)?;
        Some(ParkedKind {
            tenant: Tenant::parse(read.tenant).ok()?,
            queue: Queue::parse(read.queue).ok()?,
            priority: Priority::parse(read.priority).ok()?,
            job_type: JobType::parse(read.job_type).ok()?,
            jobs,
        })
    }
}
