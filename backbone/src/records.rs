//! Run records: read, and written by compare-and-set.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_TTL};
use longshore_domain::{Run, RunId, RunState, Tenant};

use crate::Backbone;
use crate::error::Error;
use crate::request::{self, WRITE_IN_FLIGHT, WRONG_SEQUENCE};
use crate::wire::record;

/// A record as it was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The record.
    pub run: Run,
    /// Its revision: what a compare-and-set on it must name.
    pub revision: u64,
}

/// How a compare-and-set came out.
#[derive(Debug)]
pub enum Written {
    /// It is on record, at this revision.
    Won(u64),
    /// Another write was first; this is what is on record now.
    Lost(Option<Box<Found>>),
}

/// While another write of the same run is being applied by a replicated stream, ours is refused, undecided.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// A write without an answer is repeated this often before it is given up; by then the lease is over in any case.
const TRIES: usize = 12;

impl Backbone {
    /// What is on record of a run.
    ///
    /// # Errors
    /// The record could not be read, or is none.
    pub async fn read_record(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, Error> {
        let stream = self.names().bucket_stream("runs");
        let subject = self.names().record(tenant, run);
        let query = format!(r#"{{"last_by_subj":"{subject}"}}"#);
        let stored = match request::direct_get(self.client(), self.api(), &stream, query).await? {
            Some(stored) if !stored.payload.is_empty() => stored,
            _ => return Ok(None),
        };
        let run = record::read(&stored.payload).map_err(|error| Error::Read { subject, source: Box::new(error) })?;
        Ok(Some(Found { run, revision: stored.sequence }))
    }

    /// Writes a record if its revision is still `expected` (0: none is on record), and waits for the verdict.
    ///
    /// The record's token must be its writer's own: an answer that was lost is cleared up by it.
    ///
    /// # Errors
    /// The server did not answer in time, again and again, or refused for another reason.
    pub async fn write_record(&self, run: &Run, expected: u64) -> Result<Written, Error> {
        let subject = self.names().record(&run.tenant, &run.run_id);
        let headers = self.record_headers(run, expected);
        let body = record::write(run);
        for turn in 0.. {
            match request::publish(self.client(), subject.clone(), headers.clone(), body.clone()).await {
                Ok(ack) => return Ok(Written::Won(ack.seq)),
                Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => {
                    return Ok(match self.read_record(&run.tenant, &run.run_id).await? {
                        Some(found) if found.run.token == run.token => Written::Won(found.revision),
                        found => Written::Lost(found.map(Box::new)),
                    });
                }
                Err(Error::Refused { code: WRITE_IN_FLIGHT, .. }) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
                Err(error @ Error::Refused { .. }) => return Err(error),
                Err(error) if turn >= TRIES => return Err(error),
                Err(error) => {
                    tracing::debug!(run_id = %run.run_id, "no answer to a record's write, asking again: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        unreachable!("the loop only ends by returning")
    }

    /// The headers of a record's write: the compare-and-set, and how long it is kept.
    #[must_use]
    pub fn record_headers(&self, run: &Run, expected: u64) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
        if let Some(kept) = self.kept(run) {
            headers.insert(NATS_MESSAGE_TTL, format!("{}s", kept.as_secs().max(1)));
        }
        headers
    }

    /// How long a record is kept; `None`: until it changes.
    fn kept(&self, run: &Run) -> Option<Duration> {
        match run.state {
            // Written by `submit` before its job: should the job never follow, the record goes by itself. Should the
            // job wait for longer, its run is then decided on "no record".
            RunState::Enqueued if run.round == 1 && !run.has_started() && run.deferral.is_none() => {
                Some(self.storage().idempotency_window)
            }
            RunState::Enqueued | RunState::Scheduled | RunState::Running | RunState::Retrying => None,
            RunState::Completed => Some(self.storage().completed_max_age),
            _ => Some(self.storage().failed_max_age),
        }
    }
}
