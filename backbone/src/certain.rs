//! Reads that prove that something is not there.
//!
//! A leader that is cut off from the other servers goes on answering for up to 20 s, though they have elected another and
//! store what it will never have. That it has a message proves that the message was stored; that it has none proves
//! nothing. Before anybody is told that a run does not exist, it is read here.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::{Priority, Queue, RunId, Tenant};
use serde::Deserialize;

use crate::Backbone;
use crate::error::Error;
use crate::records::Found;
use crate::request::{self, Refusal};
use crate::scan;
use crate::wire::header::names;
use crate::wire::record;

/// The key under which a message is stored in the bucket of records that shows how far a replica is. Records have two
/// tokens.
const MARK: &str = "_mark";
/// How long that message is stored.
const MARK_KEPT: &str = "60s";
/// How often the replicas are asked until one answers that has it, and the wait between two of these.
const TRIES: usize = 20;
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// A leader hears from its followers every second. They elect another when they have not heard of it for four.
const HEARD_WITHIN_NS: u64 = 3_000_000_000;

impl Backbone {
    /// The record of a run as it stands at some moment after this was called, whoever leads the bucket then.
    ///
    /// A mark is stored, for which a majority is needed, and the record read together with it: whichever replica answers,
    /// the mark, or a later one, shows that it has all that was stored before.
    ///
    /// # Errors
    /// The bucket has no leader, or no replica that has all was reached.
    pub async fn read_record_for_certain(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, Error> {
        if self.has_one_server() {
            return self.read_record(tenant, run).await;
        }
        let (stream, mark) = (self.names().bucket_stream("runs"), self.names().key("runs", MARK));
        let subject = self.names().record(tenant, run);
        let mut headers = HeaderMap::new();
        // As a key that is deleted, for readers of the bucket.
        headers.insert("KV-Operation", "DEL");
        headers.insert(names::TTL, MARK_KEPT);
        let stored = request::publish(self.client(), mark.clone(), headers, Bytes::new()).await?.seq;
        let query = format!(r#""multi_last":["{mark}","{subject}"]"#);
        for _ in 0..TRIES {
            let page = scan::batch(self.service(), self.api(), &stream, &query).await?;
            if page.messages.iter().any(|message| message.subject == mark && message.sequence >= stored) {
                let found = page.messages.into_iter().find(|message| message.subject == subject);
                let Some(found) = found.filter(|found| !found.payload.is_empty()) else { return Ok(None) };
                let run = record::read(&found.payload);
                let run = run.map_err(|error| Error::Read { subject: subject.clone(), source: Box::new(error) })?;
                return Ok(Some(Found { run, revision: found.sequence }));
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Err(Error::Read { subject, source: "every replica that answers lags behind".into() })
    }

    /// Makes sure that a message of a lane that cannot be found is gone, or never was: the lane has assigned its sequence,
    /// or its leader has just heard from a majority, and has not. A lane that does not exist has no message.
    ///
    /// # Errors
    /// The lane's leader may be a former one, or does not answer.
    pub async fn is_certainly_gone(&self, queue: &Queue, priority: Priority, sequence: u64) -> Result<(), Error> {
        let stream = self.names().lane_stream(queue, priority);
        let subject = format!("{}.STREAM.INFO.{stream}", self.api());
        let failed = |source| Error::Read { subject: stream.clone(), source };
        let info: Info = request::ask(self.service(), subject, Bytes::new()).await?;
        match info {
            Info { error: Some(refusal), .. } if refusal.err_code == request::NO_STREAM => Ok(()),
            Info { error: Some(refusal), .. } => Err(failed(refusal.description.into())),
            Info { state: Some(state), .. } if state.last_seq >= sequence => Ok(()),
            Info { cluster, .. } if cluster.as_ref().is_none_or(Group::hears_a_majority) => Ok(()),
            _ => Err(failed("its leader hears of too few others".into())),
        }
    }
}

/// What a stream's leader says of it.
#[derive(Deserialize)]
struct Info {
    state: Option<State>,
    cluster: Option<Group>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    last_seq: u64,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    replicas: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    /// Nanoseconds since the leader last heard from it.
    #[serde(default)]
    active: u64,
    #[serde(default)]
    offline: bool,
}

impl Group {
    /// The leader itself is one of them.
    fn hears_a_majority(&self) -> bool {
        let heard = self.replicas.iter().filter(|peer| !peer.offline && peer.active <= HEARD_WITHIN_NS).count();
        2 * (heard + 1) > self.replicas.len() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(active_s: &[u64]) -> Group {
        let peer = |seconds: &u64| Peer { active: seconds * 1_000_000_000, offline: false };
        Group { replicas: active_s.iter().map(peer).collect() }
    }

    #[test]
    fn a_leader_that_hears_too_few_may_be_a_former_one() {
        assert!(group(&[]).hears_a_majority());
        assert!(group(&[1, 9]).hears_a_majority());
        assert!(!group(&[4, 9]).hears_a_majority());
        assert!(group(&[0, 1, 9, 9]).hears_a_majority());
        assert!(!group(&[1, 4, 9, 9]).hears_a_majority());
    }
}
