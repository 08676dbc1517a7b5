//! The durable list of runs that are being cancelled.
//!
//! A job that waits in its lane is started without reading its record. So a node must know of its run's end before it
//! gets the job, even a node that starts after the one that cancelled has died. A note stays in the list from before
//! the record says `cancelled` until the job's message is gone; so the list is short.

use std::time::Duration;

use longshore_domain::{RunId, Tenant};
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request::conditions;

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
        let headers = conditions(None, Some(kept));
        self.put_entry("control", &entry_of(tenant, run_id), &note, headers).await.map(drop)
    }

    /// Removes a note: no message of the run is left that could be delivered.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn forget_cancel(&self, tenant: &Tenant, run_id: &RunId) -> Result<(), Error> {
        self.remove_entry("control", &entry_of(tenant, run_id), Duration::from_secs(1)).await
    }

    /// Every run that is being cancelled, as the bucket's leader has it.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn noted_cancels(&self) -> Result<Vec<(Tenant, RunId)>, Error> {
        let notes = self.entries_after("control", "cancels.>", 0).await?;
        let read = |stored: &Raw| self.readable::<Note>(&stored.subject, &stored.payload);
        Ok(notes.iter().filter_map(read).map(|note| (note.tenant, note.run_id)).collect())
    }
}

/// The key in the bucket.
fn entry_of(tenant: &Tenant, run_id: &RunId) -> String {
    format!("cancels.{tenant}.{run_id}")
}
