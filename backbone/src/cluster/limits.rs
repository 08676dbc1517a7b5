//! The records of rate limits, and the holds, in the control bucket. Records are written by compare-and-set; a hold is
//! written as it is, and every node listens for it.

use std::time::Duration;

use longshore_domain::limit::{LimitId, Record};
use longshore_domain::{SmolStr, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request::{self, Over, conditions, json, won};

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
    /// What was taken of a limit, and the revision of its record, as the bucket's leader has it.
    ///
    /// # Errors
    /// The control bucket cannot be read. A record of another version counts as none.
    pub async fn read_limit(&self, id: &LimitId) -> Result<(Option<Record>, u64), Error> {
        let stored = self.entry("control", &format!("limits.{id}")).await?;
        let read = |stored: Raw| (self.readable(&stored.subject, &stored.payload), stored.sequence);
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
        let subject = self.names().key("control", &format!("limits.{id}"));
        let over = Over { expected, lasts: matters_for + Duration::from_secs(1) };
        Ok(won(self.write_entry(&self.0.control_space, subject, record, over).await)?.is_some())
    }

    /// Announces a hold to every node, for as long as it lasts.
    ///
    /// # Errors
    /// The server did not confirm it, or there is no room for it.
    pub async fn write_hold(&self, hold: &Hold, lasts: Duration) -> Result<(), Error> {
        let (subject, body) = (self.names().key("control", &format!("holds.{}", hold.what)), json(hold));
        // As one that is written over is not known here, each counts as new until the bucket is looked at.
        self.0.control_space.count(&subject, &body)?;
        let headers = conditions(None, Some(lasts.saturating_add(Duration::from_secs(1))));
        request::publish(self.control(), subject, headers, body).await.map(drop)
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
        let stored = self.entries_after("control", "holds.>", 0).await?;
        Ok(stored.iter().filter_map(|stored| self.readable(&stored.subject, &stored.payload)).collect())
    }
}
