//! The records of circuit breakers, in the control bucket: read, written by compare-and-set, and watched.
//!
//! The server republishes each version of a record once it is stored, so that every node knows of it at once. A
//! republished message may be lost with a connection; so nodes also read all records from time to time.

use longshore_domain::Tenant;
use longshore_domain::breaker::record::{Breaker, BreakerKey};
use sha2::{Digest as _, Sha256};

use crate::clock::now;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::messages::request::{Over, Stored, revision_of, won};
use crate::runs::fingerprint::hex;
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

pub use crate::messages::request::Written as WrittenBreaker;

/// The versions of all breakers' records, as they are stored.
#[derive(Debug)]
pub struct BreakerChanges(Subscription);

impl BreakerChanges {
    /// The next one; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<FoundBreaker> {
        loop {
            let message = self.0.next().await?;
            if let (Some(revision), Ok(breaker)) = (revision_of(&message), serde_json::from_slice(&message.payload)) {
                return Some(FoundBreaker { breaker, revision });
            }
        }
    }
}

way! {
    /// A node's way to the records of breakers.
    BreakerRecords, breakers
}

impl BreakerRecords {
    /// Listens for changes; returns once the server knows of that.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn changes(&self) -> Result<BreakerChanges, Error> {
        let changes = self.0.control().subscribe(changes(self.0.names())).await?;
        self.0.is_listening().await;
        Ok(BreakerChanges(changes))
    }

    /// Writes a breaker's record if its revision is still `expected` (0: no record is stored).
    ///
    /// # Errors
    /// The server did not answer in time, so that the record may have been written; or it refused for another reason.
    pub async fn write(&self, breaker: &Breaker, expected: u64) -> Result<WrittenBreaker, Error> {
        let headers = Over { expected, lasts: breaker.kept() }.headers();
        Ok(won(self.0.put_entry("control", &entry_of(&breaker.of), breaker, headers).await)?.into())
    }

    /// A breaker's record, as the bucket's leader has it; `None` if there is none.
    ///
    /// # Errors
    /// The record cannot be read.
    pub async fn read(&self, of: &BreakerKey) -> Result<Option<FoundBreaker>, Error> {
        let Some(stored) = self.0.entry("control", &entry_of(of)).await? else { return Ok(None) };
        // Where somebody wrote over it, the breaker begins anew: the nodes go on counting.
        let read = self.0.readable(&stored.subject, &stored.payload);
        let breaker = read.unwrap_or_else(|| Breaker::new(of.clone(), now()));
        Ok(Some(FoundBreaker { breaker, revision: stored.sequence }))
    }

    /// The records of all breakers, or of those of one tenant. A replica may answer, which may be a little behind.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn all(&self, tenant: Option<&Tenant>) -> Result<Vec<FoundBreaker>, Error> {
        let keys = format!("breakers.{}.>", tenant.map_or("*", Tenant::as_str));
        let read = |stored: Stored| {
            let breaker = self.0.readable(&stored.subject, &stored.payload)?;
            Some(FoundBreaker { breaker, revision: stored.sequence })
        };
        self.0.entries_by_pages("control", &keys, read).await
    }
}

/// The key of a breaker's record in the bucket. A limit key may be any text, so its hash stands there.
fn entry_of(of: &BreakerKey) -> String {
    let key = of.key.as_ref().map_or_else(|| "_".to_owned(), |key| hex(&Sha256::digest(key.as_bytes())[..16]));
    format!("breakers.{}.{key}.{}", of.tenant, of.job_type)
}
