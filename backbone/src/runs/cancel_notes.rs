//! The durable list of runs that are being cancelled.
//!
//! A job that waits in its lane is started without reading its record. So a node must know of its run's end before it
//! gets the job, even a node that starts after the one that cancelled has died. A note stays in the list from before
//! the record says `cancelled` until the job's message is gone; so the list is short.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::{RunId, Tenant};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::error::Error;
use crate::messages::raw;
use crate::messages::request;
use crate::wire::header::{self, names};

/// A note in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    tenant: Tenant,
    run_id: RunId,
}

impl Backbone {
    /// Adds a note that a run is being cancelled, at most for `kept`.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn note_cancel(&self, tenant: &Tenant, run_id: &RunId, kept: Duration) -> Result<(), Error> {
        let note = Note { tenant: tenant.clone(), run_id: run_id.clone() };
        let mut headers = HeaderMap::new();
        headers.insert(names::TTL, header::ttl(kept));
        let body = Bytes::from(serde_json::to_vec(&note).unwrap_or_default());
        request::publish(self.control(), self.cancel_note(tenant, run_id), headers, body).await.map(|_| ())
    }

    /// Removes a note: no message of the run is left that could be delivered.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn forget_cancel(&self, tenant: &Tenant, run_id: &RunId) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        headers.insert("KV-Operation", "DEL");
        headers.insert(names::TTL, "1s");
        request::publish(self.control(), self.cancel_note(tenant, run_id), headers, Bytes::new()).await.map(|_| ())
    }

    /// Every run that is being cancelled, as the bucket's leader has it.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn noted_cancels(&self) -> Result<Vec<(Tenant, RunId)>, Error> {
        let bucket = self.names().bucket_stream("control");
        let all = self.names().key("control", "cancels.>");
        let notes = raw::all(self.control(), self.api(), &bucket, &all, 1).await?;
        let read = |stored: &raw::Raw| self.readable::<Note>(&stored.subject, &stored.payload);
        Ok(notes.iter().filter_map(read).map(|note| (note.tenant, note.run_id)).collect())
    }

    fn cancel_note(&self, tenant: &Tenant, run_id: &RunId) -> String {
        self.names().key("control", &format!("cancels.{tenant}.{run_id}"))
    }
}
