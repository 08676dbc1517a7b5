//! Run records: read, and written by compare-and-set.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::protocol::was_mine;
use longshore_domain::{Run, RunId, State, Tenant};

use crate::Backbone;
use crate::error::Error;
use crate::messages::refusal::{WRITE_IN_FLIGHT, WRONG_SEQUENCE};
use crate::messages::request;
use crate::wire::record;

/// A record as it was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The record.
    pub run: Run,
    /// Its revision: a compare-and-set on the record must name it.
    pub revision: u64,
}

/// The outcome of a compare-and-set.
#[derive(Debug)]
pub enum Written {
    /// The record is stored, at this revision.
    Won(u64),
    /// Another write came first; this is the record as it is stored now.
    Lost(Option<Box<Found>>),
}

/// The wait before a write is repeated that was refused undecided: a replicated stream refuses a write while it applies
/// another write of the same run.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// A write without an answer is repeated this often before the node gives up; by then the lease is over in any case.
const TRIES: usize = 12;
/// The same for a client, which waits for the answer and may ask again: an election of the server fits in.
const TRIES_FOR_CLIENT: usize = 1;

/// How often, every 100 ms, it is looked whether a removed record is gone. One that the server is slow to remove goes
/// all the same.
const GONE_WITHIN: usize = 30;

/// Completed records are kept for at least this many leases, however full the bucket is: a caller that waits for a
/// run's end must see it.
const MIN_LEASES: u32 = 2;

/// The record of a run that made way is kept for so long while its message may still come.
const MESSAGE_COMES_WITHIN: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A replica that does not answer within this time is not waited for: the leader is asked.
const REPLICA_WITHIN: Duration = Duration::from_secs(1);

impl Backbone {
    /// How full the bucket of records is (1: full), by number or bytes, whichever is nearer to full. This also sets how
    /// long the records of runs that complete from now on are kept.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn measure_records(&self) -> Result<f64, Error> {
        let info = self.stream_info(&self.names().bucket_stream("runs")).await?;
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let bytes = share(info.state.bytes, u64::try_from(info.config.max_bytes).unwrap_or(0));
        let fill = bytes.max(share(info.state.messages, self.storage().runs_max_records));
        let (age, least) = (self.storage().completed_max_age, self.storage().lease * MIN_LEASES);
        let kept = longshore_domain::retention::kept(fill, age, least);
        self.0.completed_kept.store(longshore_domain::run::whole_millis(kept), Ordering::Relaxed);
        Ok(fill)
    }

    /// How long the record of a run that completes now is kept at most.
    pub fn completed_kept(&self) -> Duration {
        Duration::from_millis(self.0.completed_kept.load(Ordering::Relaxed))
    }

    /// The record of a run, as the bucket's leader has it: a replica may be seconds behind, and the record that is read
    /// here decides the end of messages.
    ///
    /// # Errors
    /// The record could not be read. [`Error::Unreadable`]: what is stored is no record that this version knows.
    pub async fn read_record(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, Error> {
        let stream = self.names().bucket_stream("runs");
        let subject = self.names().record(tenant, run);
        let stored = request::latest(self.client(), &stream, &subject).await?;
        stored.map(|stored| self.read_stored(&subject, stored.payload, stored.sequence)).transpose()
    }

    /// The record of a run as any replica has it, which may be seconds behind: half of what the leader's costs. `None`:
    /// there is none, or it could not be read at once.
    pub async fn read_replica(&self, tenant: &Tenant, run: &RunId) -> Option<Found> {
        let stream = self.names().bucket_stream("runs");
        let query = format!(r#"{{"last_by_subj":"{}"}}"#, self.names().record(tenant, run));
        let read = request::direct_get(self.client(), &stream, query);
        let stored = tokio::time::timeout(REPLICA_WITHIN, read).await.ok()?.ok()??;
        Some(Found { run: record::read(&stored.payload).ok()?, revision: stored.sequence })
    }

    /// Reads what is stored under a run's key. Nothing is no record either, and stands there while one is removed: an
    /// expired record leaves no message.
    ///
    /// # Errors
    /// It is no record that this version knows.
    pub fn read_stored(&self, subject: &str, value: Bytes, revision: u64) -> Result<Found, Error> {
        match record::read(&value) {
            Ok(run) => Ok(Found { run, revision }),
            Err(error) => {
                self.unreadable().met(subject, &error);
                let subject = subject.to_owned();
                Err(Error::Unreadable { subject, revision, value, source: Box::new(error) })
            }
        }
    }

    /// Removes what is stored under a run's key if its revision is still `revision`; waits until it is gone.
    ///
    /// The bucket, as every key-value bucket, lets nobody delete a message. So nothing is written over it, which the
    /// server removes a second later.
    ///
    /// # Errors
    /// The server did not confirm it, or refused because the revision is another by now.
    pub async fn remove_record(&self, tenant: &Tenant, run: &RunId, revision: u64) -> Result<(), Error> {
        let (stream, subject) = (self.names().bucket_stream("runs"), self.names().record(tenant, run));
        let headers = request::removal(Some(revision), Some(Duration::from_secs(1)));
        let removed = request::publish(self.client(), subject.clone(), headers, Bytes::new()).await?.seq;
        for _ in 0..GONE_WITHIN {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let stored = request::latest(self.client(), &stream, &subject).await?;
            if stored.is_none_or(|stored| stored.sequence != removed) {
                break;
            }
        }
        Ok(())
    }

    /// Writes a record if its revision is still `expected` (0: no record is stored), and waits for the outcome.
    ///
    /// The record's token must be its writer's own: if an answer is lost, the token shows whose write is stored.
    ///
    /// # Errors
    /// The server repeatedly did not answer in time, or refused for another reason.
    pub async fn write_record(&self, run: &Run, expected: u64) -> Result<Written, Error> {
        self.write_in(TRIES, run, expected).await
    }

    /// The same for a client that waits: it gives up long before a node that has a lease does.
    ///
    /// # Errors
    /// As [`Backbone::write_record`].
    pub async fn write_for_client(&self, run: &Run, expected: u64) -> Result<Written, Error> {
        self.write_in(TRIES_FOR_CLIENT, run, expected).await
    }

    async fn write_in(&self, tries: usize, run: &Run, expected: u64) -> Result<Written, Error> {
        let subject = self.names().record(&run.tenant, &run.run_id);
        let headers = self.record_headers(run, expected);
        let mut body = Vec::new();
        record::append_within(run, || self.max_in_record(), &mut body);
        let body = Bytes::from(body);
        let mut unclear = None;
        for turn in 0.. {
            match request::publish(self.client(), subject.clone(), headers.clone(), body.clone()).await {
                Ok(ack) => return Ok(Written::Won(ack.seq)),
                Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => {
                    let found = self.read_record(&run.tenant, &run.run_id).await?;
                    let mine = was_mine(found.as_ref().map(|found| &found.run), &run.token);
                    return Ok(match found {
                        Some(found) if mine => Written::Won(found.revision),
                        found => Written::Lost(found.map(Box::new)),
                    });
                }
                Err(Error::Refused { code: WRITE_IN_FLIGHT, .. }) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
                // An earlier try may be stored all the same.
                Err(error @ Error::Refused { .. }) => return Err(unclear.unwrap_or(error)),
                Err(error) if turn >= tries => return Err(error),
                Err(error) => {
                    tracing::debug!(run_id = %run.run_id, tenant = %run.tenant, attempt = run.attempt, trace_id = run.trace_id.map(tracing::field::display), "no answer to a record's write, asking again: {error}");
                    unclear = Some(error);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        unreachable!("the loop only ends by returning")
    }

    /// The headers of a record's write: the compare-and-set, and how long the record is kept.
    pub fn record_headers(&self, run: &Run, expected: u64) -> HeaderMap {
        request::conditions(Some(expected), self.kept(run))
    }

    /// How long a record is kept; `None`: until it changes.
    fn kept(&self, run: &Run) -> Option<Duration> {
        // A record is the fence against redelivery of its own message, so it outlasts the lease whatever was asked for.
        let least = self.storage().lease * MIN_LEASES;
        let asked = run.keep_ms.map(|ms| Duration::from_millis(ms).max(least));
        // A record is kept as long as its key is claimed; only completed records may expire before that.
        let claimed = run.key_claimed_ms.map_or(Duration::ZERO, Duration::from_millis);
        let mut other_ends = asked.unwrap_or(self.storage().failed_max_age).max(claimed);
        if was_cancelled_as_it_waited(run) {
            // Its job may still wait, and would run once the record is gone.
            other_ends = other_ends.max(self.storage().failed_max_age);
        }
        if its_message_comes(run) {
            // Without the record nothing would prove that message to be the run's.
            other_ends = other_ends.max(MESSAGE_COMES_WITHIN);
        }
        match &run.state {
            // `submit` wrote it before its job or schedule: if that never follows, the record expires by itself.
            State::Enqueued { .. } | State::Scheduled { .. } if run.is_only_noted() => {
                let waits = run.state.run_at().map_or(Duration::ZERO, |at| at.since(run.origin));
                Some(self.storage().idempotency_window.saturating_add(waits))
            }
            State::Enqueued { .. } | State::Scheduled { .. } | State::Running | State::Retrying { .. } => None,
            State::Completed { .. } => {
                let (set, now) = (self.storage().completed_max_age, self.completed_kept());
                let wanted = asked.unwrap_or(set);
                // The shortened time decides only where storage runs short: a job may ask for longer than others have.
                Some(if now < set { wanted.min(now) } else { wanted })
            }
            State::Cancelled { ended_at, left, .. } | State::Duplicate { ended_at, left, .. } => {
                let waits = left.map_or(Duration::ZERO, |left| left.run_at().since(*ended_at));
                Some(other_ends.saturating_add(waits))
            }
            _ => Some(other_ends),
        }
    }
}

/// Whether a run was cancelled while it was not at work.
fn was_cancelled_as_it_waited(run: &Run) -> bool {
    let was_at_work = |at| run.attempts.last().is_some_and(|last| last.ended_at == Some(at));
    matches!(run.state, State::Cancelled { ended_at, .. } if !was_at_work(ended_at))
}

/// Whether a run made way for another while its message waited in its lane, or was parked, and that has not come since.
/// The schedule of one that waited for its time was deleted.
fn its_message_comes(run: &Run) -> bool {
    match &run.state {
        State::Duplicate { left: None, .. } => run.held_by.is_none(),
        State::Duplicate { ended_at, left: Some(wait), .. } => wait.run_at() <= *ended_at,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::Timestamp;
    use longshore_domain::run::{Holding, MessageId};
    use longshore_domain::settlement::Settlement;

    use super::*;

    #[test]
    fn only_a_run_that_was_cancelled_at_work_leaves_no_job_that_waits() {
        let at = Timestamp::from_millis;
        let waits = Run::new(&crate::tests::job("t", "r"), 3, at(1));
        let mut runs = waits.clone();
        runs.begin(1, &"n".into(), at(2));
        let mut put_back = runs.clone();
        put_back.settle(Settlement::Release, at(3));
        for (mut run, as_it_waited) in [(waits, true), (runs, false), (put_back, true)] {
            assert!(!was_cancelled_as_it_waited(&run));
            run.settle(Settlement::Cancel, at(4));
            assert_eq!(was_cancelled_as_it_waited(&run), as_it_waited, "{run:?}");
        }
    }

    #[test]
    fn the_record_of_a_run_that_made_way_waits_for_its_message() {
        let at = Timestamp::from_millis;
        let message = MessageId { stream: "LANE".into(), sequence: 7, at: at(1) };
        let in_its_lane = Run::new(&crate::tests::job("t", "r"), 3, at(1));
        let came = Run { held_by: Some(Holding { message, delivery: 1 }), ..in_its_lane.clone() };
        let after = |settlement, run: &Run| {
            let mut run = run.clone();
            run.settle(settlement, at(2));
            run
        };
        let parked = after(Settlement::Park { since: at(1), reason: None }, &came);
        let is_due = after(Settlement::Schedule(at(3)), &in_its_lane);
        let waits_for_its_time = after(Settlement::Schedule(at(9)), &in_its_lane);
        let rows = [(in_its_lane, true), (came, false), (parked, true), (is_due, true), (waits_for_its_time, false)];
        for (mut run, comes) in rows {
            assert!(!its_message_comes(&run));
            run.make_way(run.run_id.then(), at(4));
            assert_eq!(its_message_comes(&run), comes, "{run:?}");
        }
    }
}
