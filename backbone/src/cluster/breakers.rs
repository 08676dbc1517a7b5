//! The records of circuit breakers, in the control bucket: read, written by compare-and-set, and watched.
//!
//! The server republishes each version of a record once it is stored, so that every node knows of it at once. A
//! republished message may be lost with a connection; so nodes also read all records from time to time.

use bytes::Bytes;
use longshore_domain::Tenant;
use longshore_domain::breaker::record::{Breaker, BreakerKey};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::Backbone;
use crate::clock::now;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::refusal::{WRITE_IN_FLIGHT, WRONG_SEQUENCE};
use crate::messages::request::{self, Over};
use crate::messages::scan;
use crate::runs::claims::hex;
use crate::wire::subject::Names;

/// The subjects on which the server republishes the records.
pub(crate) fn changes(names: &Names) -> String {
    names.node("_sys.breakers.>")
}

/// A breaker's record as it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundBreaker {
    /// The record.
    pub breaker: Breaker,
    /// Its revision: a compare-and-set on the record must name it.
    pub revision: u64,
}

/// The outcome of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenBreaker {
    /// The record is stored, at this revision.
    Won(u64),
    /// Another write came first.
    Lost,
    /// Another write is in flight, and nothing is decided.
    Undecided,
}

/// The versions of all breakers' records, as they are stored.
#[derive(Debug)]
pub struct BreakerChanges(Subscription);

impl BreakerChanges {
    /// The next one; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<FoundBreaker> {
        loop {
            let message = self.0.next().await?;
            let sequence = message.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence"));
            let revision = sequence.and_then(|sequence| sequence.as_str().parse().ok());
            if let (Some(revision), Ok(breaker)) = (revision, serde_json::from_slice(&message.payload)) {
                return Some(FoundBreaker { breaker, revision });
            }
        }
    }
}

/// A node's way to the records of breakers. Who has only this reaches no job. Cheap to clone.
#[derive(Debug, Clone)]
pub struct BreakerRecords(Backbone);

impl Backbone {
    /// This node's way to the records of breakers.
    #[must_use]
    pub fn breakers(&self) -> BreakerRecords {
        BreakerRecords(self.clone())
    }
}

impl BreakerRecords {
    /// Listens for changes; returns once the server knows of that.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn changes(&self) -> Result<BreakerChanges, Error> {
        let changes = self.0.control().subscribe(changes(self.0.names())).await?;
        // A failure means that the connection was just lost; the subscription comes back with it.
        let _ = self.0.control().settled().await;
        Ok(BreakerChanges(changes))
    }

    /// Changes whenever the connection has been re-established: what was republished meanwhile did not come.
    #[must_use]
    pub fn connected(&self) -> watch::Receiver<u64> {
        self.0.control().connected()
    }

    /// Writes a breaker's record if its revision is still `expected` (0: no record is stored).
    ///
    /// # Errors
    /// The server did not answer in time, so that the record may have been written; or it refused for another reason.
    pub async fn write(&self, breaker: &Breaker, expected: u64) -> Result<WrittenBreaker, Error> {
        let headers = Over { expected, lasts: breaker.kept() }.headers();
        let body = Bytes::from(serde_json::to_vec(breaker).unwrap_or_default());
        match request::publish(self.0.control(), self.subject(&breaker.of), headers, body).await {
            Ok(ack) => Ok(WrittenBreaker::Won(ack.seq)),
            Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => Ok(WrittenBreaker::Lost),
            Err(Error::Refused { code: WRITE_IN_FLIGHT, .. }) => Ok(WrittenBreaker::Undecided),
            Err(error) => Err(error),
        }
    }

    /// A breaker's record, as the bucket's leader has it; `None` if there is none.
    ///
    /// # Errors
    /// The record cannot be read.
    pub async fn read(&self, of: &BreakerKey) -> Result<Option<FoundBreaker>, Error> {
        let bucket = self.0.names().bucket_stream("control");
        let subject = self.subject(of);
        let Some(stored) = request::latest(self.0.control(), self.0.api(), &bucket, &subject).await? else {
            return Ok(None);
        };
        // Where somebody wrote over it, the breaker begins anew: the nodes go on counting.
        let read = self.0.readable(&subject, &stored.payload);
        let breaker = read.unwrap_or_else(|| Breaker::new(of.clone(), now()));
        Ok(Some(FoundBreaker { breaker, revision: stored.sequence }))
    }

    /// The records of all breakers, or of those of one tenant. A replica may answer, which may be a little behind.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn all(&self, tenant: Option<&Tenant>) -> Result<Vec<FoundBreaker>, Error> {
        let bucket = self.0.names().bucket_stream("control");
        let subject = self.0.names().key("control", &format!("breakers.{}.>", tenant.map_or("*", Tenant::as_str)));
        let (mut all, mut from) = (Vec::new(), Some(1));
        while let Some(first) = from {
            let page =
                scan::page(self.0.control(), self.0.api(), &bucket, &subject, &format!(r#""seq":{first}"#)).await?;
            let read = page.messages.iter().filter_map(|stored| {
                let breaker = self.0.readable(&stored.subject, &stored.payload)?;
                Some(FoundBreaker { breaker, revision: stored.sequence })
            });
            all.extend(read);
            from = page.next;
        }
        Ok(all)
    }

    /// The subject of a breaker's record. A limit key may be any text, so its hash stands there.
    fn subject(&self, of: &BreakerKey) -> String {
        let key = of.key.as_ref().map_or_else(|| "_".to_owned(), |key| hex(&Sha256::digest(key.as_bytes())[..16]));
        self.0.names().key("control", &format!("breakers.{}.{key}.{}", of.tenant, of.job_type))
    }
}
