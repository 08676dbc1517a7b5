//! Reads that prove that something is not there.
//!
//! A leader that is cut off from the other servers goes on answering for up to 20 s, though they have elected another
//! and store what it will never have. That it has a message proves that the message was stored; that it has none proves
//! nothing. Before a client is answered that a run, a dead letter or a recurring schedule does not exist, it is read
//! here.

use std::time::Duration;

use bytes::Bytes;
use longshore_domain::{Lane, Run, RunId, State, Tenant};

use crate::Backbone;
use crate::error::Error;
use crate::messages::request::Stored;
use crate::messages::{request, scan};
use crate::runs::dead_letters::StoredDeadLetter;
use crate::runs::records::Found;
use crate::streams::info::{self, Peer, StreamState};

/// The key under which a message is stored in a bucket that shows how far a replica is. The keys of records and of
/// recurring schedules have two tokens.
pub const MARK: &str = "_mark";
/// How long that message is stored.
const MARK_KEPT: Duration = Duration::from_secs(60);
/// How often the replicas are asked until one answers that has it, and the wait between two of these.
const TRIES: usize = 20;
const AGAIN_AFTER: Duration = Duration::from_millis(50);
const LAGGING: &str = "every replica that answers lags behind";
/// A leader gets an answer from its followers every second. They elect another after four without a message of it.
const ACTIVE_WITHIN_NS: u64 = 3_000_000_000;

impl Backbone {
    /// The record of a run as it stands at some moment after this was called, whichever server leads the bucket then.
    ///
    /// # Errors
    /// The bucket has no leader, or no replica that has all was reached.
    pub async fn read_record_for_certain(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, Error> {
        if self.has_one_server() {
            return self.read_record(tenant, run).await;
        }
        let subject = self.names().record(tenant, run);
        let stored = self.latest_for_certain("runs", &subject).await?;
        stored.map(|stored| self.read_stored(&subject, stored.payload, stored.sequence)).transpose()
    }

    /// The last message of a subject in a bucket of several servers, as it stands at some moment after this was called,
    /// whichever server leads the bucket then.
    ///
    /// A mark is stored, for which a majority is needed, and the subject read together with it: whichever replica
    /// answers, the mark, or a later one, shows that it has all that was stored before. An error: the bucket has no
    /// leader, or no replica that has all was reached.
    pub(crate) async fn latest_for_certain(&self, bucket: &str, subject: &str) -> Result<Option<Stored>, Error> {
        let (stream, mark) = (self.names().bucket_stream(bucket), self.names().key(bucket, MARK));
        // As a key that is deleted, for readers of the bucket.
        let headers = request::removal(None, Some(MARK_KEPT));
        let stored = request::publish(self.client(), mark.clone(), headers, Bytes::new()).await?.seq;
        let query = format!(r#""multi_last":["{mark}","{subject}"]"#);
        for _ in 0..TRIES {
            let page = scan::batch(self.service(), &stream, &query).await?;
            if page.messages.iter().any(|message| message.subject == mark && message.sequence >= stored) {
                return Ok(page.messages.into_iter().find(|message| message.subject == subject));
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Err(Error::Read { subject: subject.to_owned(), source: LAGGING.into() })
    }

    /// The dead letter of a run as `find_dead_letter` finds it, but that there is none is certain: whichever server
    /// leads the stream, none had been stored when this was called, and none is still to be written for this record.
    ///
    /// A record says that its run is dead before the dead letter is written, and the message that carries the run is
    /// acknowledged after that. So while that message is there, the dead letter may still come.
    ///
    /// # Errors
    /// The dead letters cannot be read, their leader may be a former one, no replica that has all was reached, or the
    /// dead letter is still to be written.
    pub async fn find_dead_letter_for_certain(
        &self,
        tenant: &Tenant,
        run_id: &RunId,
        dead: Option<&Run>,
    ) -> Result<Option<StoredDeadLetter>, Error> {
        let dead = dead.filter(|run| matches!(run.state, State::Dead { .. }));
        let found = self.find_stored_dead_letter(tenant, run_id, dead).await?;
        let is_there = |run: &&Run| found.as_ref().is_some_and(|found| found.is_of(run));
        let carried = dead.filter(|run| run.held_by.is_some());
        let Some(run) = carried.filter(|run| !is_there(run)) else { return Ok(found) };
        // The dead letters are not read again meanwhile: there may be many.
        for _ in 0..TRIES {
            if self.has_no_message(run).await? {
                // Now the dead letter is stored, perhaps since it was looked for.
                return self.find_stored_dead_letter(tenant, run_id, dead).await;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        let subject = self.names().dead_letters_where(Some(tenant), None, None);
        Err(Error::Read { subject, source: format!("the dead letter of {run_id} is still to be written").into() })
    }

    /// The dead letter of a run; that none had been stored when this was called is certain.
    ///
    /// The leader, which has just had an answer from a majority, says which dead letter of the tenant is the last. A
    /// replica that shows this one has all before it, and a stream is read in its order: so nothing was missed.
    async fn find_stored_dead_letter(
        &self,
        tenant: &Tenant,
        run_id: &RunId,
        dead: Option<&Run>,
    ) -> Result<Option<StoredDeadLetter>, Error> {
        let found = self.find_dead_letter(tenant, run_id, dead).await?;
        let is_own = |found: &StoredDeadLetter| dead.is_none_or(|run| found.is_of(run));
        if found.as_ref().is_some_and(is_own) || self.has_one_server() {
            return Ok(found);
        }
        let (stream, all) = (self.names().dlq_stream(), self.names().dead_letters_where(Some(tenant), None, None));
        for _ in 0..TRIES {
            let last = request::latest(self.service(), &stream, &all).await?.map_or(0, |last| last.sequence);
            self.leader_is_certain(&stream, |_| false).await?;
            let (its_own, read_to) = self.dead_letter_among_all(tenant, run_id, dead).await?;
            if its_own.is_some() || read_to >= last {
                return Ok(its_own.or(found));
            }
            // A replica lags, or the last dead letter has just been removed.
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Err(Error::Read { subject: all, source: LAGGING.into() })
    }

    /// Makes sure that the leader of a stream, if the stream exists, has just had an answer from a majority, unless its
    /// state is `enough` by itself.
    async fn leader_is_certain(&self, name: &str, enough: impl FnOnce(&StreamState) -> bool) -> Result<(), Error> {
        let failed = |source| Error::Read { subject: name.to_owned(), source };
        let found = info::stream(self.service(), name).await.map_err(|error| failed(error.into()))?;
        let Some(servers) = found.filter(|stream| !enough(&stream.state)).and_then(|stream| stream.cluster) else {
            return Ok(());
        };
        if reaches_a_majority(&servers.replicas) {
            return Ok(());
        }
        Err(failed("its leader reaches too few others".into()))
    }

    /// Makes sure that a message of a lane that cannot be found is gone, or never was: the lane has assigned its
    /// sequence, or its leader has just had an answer from a majority, and has not. A lane that does not exist has no
    /// message.
    ///
    /// # Errors
    /// The lane's leader may be a former one, or does not answer.
    pub async fn is_certainly_gone(&self, lane: &Lane, sequence: u64) -> Result<(), Error> {
        let name = self.names().lane_stream(&lane.queue, lane.priority);
        self.leader_is_certain(&name, |state| state.last_seq >= sequence).await
    }
}

/// Whether a leader that has these followers has just had an answer from a majority, itself being one of it.
fn reaches_a_majority(followers: &[Peer]) -> bool {
    let active = followers.iter().filter(|peer| !peer.offline && peer.active <= ACTIVE_WITHIN_NS).count();
    2 * (active + 1) > followers.len() + 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn peers(active_s: &[u64]) -> Vec<Peer> {
        let peer = |seconds: &u64| json!({"name": "s", "active": seconds * 1_000_000_000});
        active_s.iter().map(|seconds| serde_json::from_value(peer(seconds)).unwrap()).collect()
    }

    #[test]
    fn a_leader_that_reaches_too_few_may_be_a_former_one() {
        for (active_s, reaches) in [(vec![], true), (vec![1, 9], true), (vec![4, 9], false), (vec![0, 1, 9, 9], true)] {
            assert_eq!(reaches_a_majority(&peers(&active_s)), reaches, "{active_s:?}");
        }
        assert!(!reaches_a_majority(&peers(&[1, 4, 9, 9])));
    }
}
