//! The records of rate limits, and the holds, in the control bucket. Records are written by compare-and-set; a hold is
//! written as it is, and every node listens for it.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::limit::{LimitId, Record};
use longshore_domain::{SmolStr, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::raw;
use crate::messages::refusal::{WRITE_IN_FLIGHT, WRONG_SEQUENCE};
use crate::messages::request::{self, Over};
use crate::wire::header::names;

/// A hold: until then, no job of its scope starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// What is held, as tokens of a subject.
    pub what: SmolStr,
    /// Until when.
    pub until: Timestamp,
}

/// The holds, as they are written.
#[derive(Debug)]
pub struct Holds(Subscription);

impl Holds {
    /// The next one; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Hold> {
        loop {
            let message = self.0.next().await?;
            if let Ok(hold) = serde_json::from_slice(&message.payload) {
                return Some(hold);
            }
        }
    }
}

impl Backbone {
    fn limit_key(&self, id: &LimitId) -> String {
        self.names().key("control", &format!("limits.{id}"))
    }

    /// What was taken of a limit, and the revision of its record, as the bucket's leader has it.
    ///
    /// # Errors
    /// The control bucket cannot be read. A record of another version counts as none.
    pub async fn read_limit(&self, id: &LimitId) -> Result<(Option<Record>, u64), Error> {
        let bucket = self.names().bucket_stream("control");
        let stored = request::latest(self.control(), self.api(), &bucket, &self.limit_key(id)).await?;
        let read = |stored: raw::Raw| (self.readable(&stored.subject, &stored.payload), stored.sequence);
        Ok(stored.map_or((None, 0), read))
    }

    /// Writes what was taken of a limit, for as long as that matters, if its record is still at `expected`. Says
    /// whether it was.
    ///
    /// # Errors
    /// The server did not answer, so that the record may be written or not, or refused for another reason.
    pub async fn write_limit(
        &self,
        id: &LimitId,
        record: &Record,
        expected: u64,
        matters_for: Duration,
    ) -> Result<bool, Error> {
        let body = Bytes::from(serde_json::to_vec(record).unwrap_or_default());
        let (space, lasts) = (&self.0.control_space, matters_for + Duration::from_secs(1));
        match self.write_entry(space, self.limit_key(id), body, Over { expected, lasts }).await {
            Ok(_) => Ok(true),
            Err(Error::Refused { code: WRONG_SEQUENCE | WRITE_IN_FLIGHT, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Announces a hold to every node, for as long as it lasts.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn write_hold(&self, hold: &Hold, lasts: Duration) -> Result<(), Error> {
        let subject = self.names().key("control", &format!("holds.{}", hold.what));
        let mut headers = HeaderMap::new();
        headers.insert(names::TTL, format!("{}s", lasts.as_secs() + 1));
        let body = Bytes::from(serde_json::to_vec(hold).unwrap_or_default());
        request::publish(self.control(), subject, headers, body).await.map(|_| ())
    }

    /// Listens for holds.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn listen_for_holds(&self) -> Result<Holds, Error> {
        Ok(Holds(self.control().subscribe(self.names().key("control", "holds.>")).await?))
    }

    /// Every hold, as the bucket's leader has them.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn holds(&self) -> Result<Vec<Hold>, Error> {
        let bucket = self.names().bucket_stream("control");
        let all = self.names().key("control", "holds.>");
        let stored = raw::all(self.control(), self.api(), &bucket, &all, 1).await?;
        Ok(stored.iter().filter_map(|stored| self.readable(&stored.subject, &stored.payload)).collect())
    }
}
