//! Batches and their members, in the bucket of checkpoints.
//!
//! A batch is one entry, written by compare-and-set; each member is one more, made as it joins and written again as it
//! ends. No member is counted: whether all have ended is read from their entries. Tenants do not begin with `_`, so
//! that no entry is a step's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use longshore_domain::{BatchId, QueueLane, RunId, RunState, Tenant, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::error::Error;
use crate::messages::get;
use crate::messages::request::{Over, conditions, won};
use crate::messages::scan::{self, Source};
use crate::wire::api::{BatchPayload, BatchStatus, SubmitRequest};
use crate::wire::header;

const BUCKET: &str = "checkpoints";
/// How long a batch may take from its creation, and what it is made of is stored.
pub const LASTS: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// A batch as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredBatch {
    /// What answers show of it, without its members.
    pub batch: BatchStatus,
    /// The job that completes it.
    pub on_complete: Box<SubmitRequest>,
    /// The payload of that job, once all members have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<BatchPayload>,
    /// It had failed, and a replay of what it failed for has completed.
    #[serde(default)]
    pub reopened: bool,
}

/// A member of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its run.
    pub run_id: RunId,
    /// When this was written.
    pub at: Timestamp,
    /// How it has ended; `None`: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

/// How a member ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// As its record says.
    As(RunState),
    /// Its record is gone.
    Gone,
    /// It was not taken: it is no member.
    Left,
}

impl Backbone {
    /// A batch, and the revision to write on: 0 if there is none.
    ///
    /// # Errors
    /// The bucket, or the batch, cannot be read.
    pub async fn batch(&self, tenant: &Tenant, id: &BatchId) -> Result<(Option<StoredBatch>, u64), Error> {
        let Some(raw) = self.entry(BUCKET, &entry_of(tenant, id)).await? else { return Ok((None, 0)) };
        let failed = |error| Error::Read { subject: raw.subject.clone(), source: Box::new(error) };
        let stored = (!raw.payload.is_empty()).then(|| serde_json::from_slice(&raw.payload)).transpose();
        Ok((stored.map_err(failed)?, raw.sequence))
    }

    /// The batches of a tenant, or of all, that were written after a revision, each with its own.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn batches(&self, tenant: Option<&Tenant>, after: u64) -> Result<Vec<(StoredBatch, u64)>, Error> {
        self.entries(&format!("_batches.{}.*", tenant.map_or("*", Tenant::as_str)), after + 1).await
    }

    /// How many batches of a tenant have not ended: counted up to `most`, and as any replica has them.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn unfinished_batches(&self, tenant: &Tenant, most: usize) -> Result<usize, Error> {
        let bucket = self.names().bucket_stream(BUCKET);
        let subject = self.names().key(BUCKET, &format!("_batches.{tenant}.*"));
        let (mut unfinished, mut from) = (BTreeSet::new(), Some(1));
        while let Some(first) = from.filter(|_| unfinished.len() < most) {
            let page = scan::page(self.control(), &bucket, &subject, first).await?;
            from = page.next;
            for stored in page.messages {
                let batch: Option<StoredBatch> = self.readable(&stored.subject, &stored.payload);
                match batch {
                    Some(stored_batch) if stored_batch.batch.ended_at.is_none() => unfinished.insert(stored.subject),
                    // It was written again while this counts.
                    _ => unfinished.remove(&stored.subject),
                };
            }
        }
        Ok(unfinished.len())
    }

    /// Writes a batch on the revision that was read; `None`: another write came first. One that has ended is kept as
    /// long as other checkpoints.
    ///
    /// # Errors
    /// The server did not answer in time, so that it may be written; or it refused.
    pub async fn write_batch(&self, stored: &StoredBatch, revision: u64) -> Result<Option<u64>, Error> {
        let lasts = if stored.batch.ended_at.is_some() { self.checkpoints_kept() } else { 2 * LASTS };
        let headers = Over { expected: revision, lasts }.headers();
        won(self.put_entry(BUCKET, &entry_of(&stored.batch.tenant, &stored.batch.id), stored, headers).await)
    }

    /// Writes a member as it joins (then only if it is not there yet, or had left or was gone), or as it has ended.
    ///
    /// # Errors
    /// The server did not answer in time, so that it may be written; or it refused.
    pub async fn write_member(&self, tenant: &Tenant, batch: &BatchId, member: &Member) -> Result<(), Error> {
        let key = format!("{}.{}", entry_of(tenant, batch), member.run_id);
        let mut expected = member.ended.is_none().then_some(0);
        loop {
            let headers = conditions(expected, Some(2 * LASTS));
            let written = won(self.put_entry(BUCKET, &key, member, headers).await)?;
            if written.is_some() || expected.is_none() {
                return Ok(());
            }
            let Some(raw) = self.entry(BUCKET, &key).await? else { return Ok(()) };
            let found: Option<Member> = serde_json::from_slice(&raw.payload).ok();
            let counts = !matches!(found, Some(Member { ended: Some(Ended::Left | Ended::Gone), .. }));
            if counts {
                return Ok(());
            }
            // A later run of the id joins.
            expected = Some(raw.sequence);
        }
    }

    /// The members of a batch, each as it was last written.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn members(&self, tenant: &Tenant, batch: &BatchId) -> Result<Vec<Member>, Error> {
        let members = self.entries(&format!("{}.*", entry_of(tenant, batch)), 1).await?;
        Ok(members.into_iter().map(|(member, _)| member).collect())
    }

    /// What stands under keys, which may have wildcards, and was written from a sequence on: the last write of
    /// each key, by key, with its revision. The leader says whether there is more, as a replica that lags behind may
    /// lack the last; any replica answers for the pages.
    async fn entries<T: DeserializeOwned>(&self, keys: &str, mut from: u64) -> Result<Vec<(T, u64)>, Error> {
        let (bucket, subject) = (self.names().bucket_stream(BUCKET), self.names().key(BUCKET, keys));
        let mut last = BTreeMap::new();
        while let Some(next) = get::next(self.control(), &bucket, &subject, from).await? {
            from = next.sequence + 1;
            last.insert(next.subject, (next.payload, next.sequence));
            let mut more = true;
            while more {
                let page = scan::page(self.control(), &bucket, &subject, from).await?;
                more = page.next.is_some();
                for stored in page.messages {
                    from = stored.sequence + 1;
                    last.insert(stored.subject, (stored.payload, stored.sequence));
                }
            }
        }
        let last = last.into_iter();
        Ok(last.filter_map(|(of, (value, revision))| Some((self.readable(&of, &value)?, revision))).collect())
    }

    /// Deletes every member of a batch.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn forget_members(&self, tenant: &Tenant, batch: &BatchId) -> Result<(), Error> {
        self.purge_checkpoints_under(&format!("{}.>", entry_of(tenant, batch))).await
    }

    /// The last sequence of each lane that has jobs of a tenant: those that were published before now.
    ///
    /// # Errors
    /// A server did not answer.
    pub async fn stand_in_lanes(&self, tenant: &Tenant) -> Result<Vec<(Source, u64)>, Error> {
        let mut stand = Vec::new();
        for queue in self.declared_queues().await? {
            for lane in QueueLane::all().filter(|lane| *lane != QueueLane::Returned) {
                let place = Source::Lane(queue.clone(), lane);
                if self.next_of(&place, &self.names().jobs_of(tenant), 1).await?.is_some() {
                    let (_, last) = self.sequences(&place).await?;
                    stand.push((place, last));
                }
            }
        }
        Ok(stand)
    }

    /// The first job that a client published into a batch among those of a lane from `from` up to `last`: where it
    /// stands. Reads a page; the second number says how far it has read.
    ///
    /// # Errors
    /// A server did not answer.
    pub async fn first_of_batch(
        &self,
        tenant: &Tenant,
        batch: &BatchId,
        place: &Source,
        sequences: RangeInclusive<u64>,
    ) -> Result<(bool, u64), Error> {
        let subject = self.names().jobs_of(tenant);
        let (mut read, last) = sequences.into_inner();
        let page = self.page(place, &subject, read).await?;
        for stored in page.messages.iter().take_while(|stored| stored.sequence <= last) {
            if header::value_of(&stored.headers, BATCH) == Some(batch.as_str()) {
                return Ok((true, stored.sequence));
            }
            read = stored.sequence + 1;
        }
        // A replica that shows a later one has shown all before it.
        if page.messages.last().is_some_and(|stored| stored.sequence > last) {
            return Ok((false, last + 1));
        }
        if !page.messages.is_empty() && page.next.is_some() {
            return Ok((false, read));
        }
        // A replica that lags behind may lack the last ones.
        match self.next_of(place, &subject, read).await? {
            Some(more) if more.sequence <= last => Ok((false, more.sequence)),
            _ => Ok((false, last + 1)),
        }
    }
}

fn entry_of(tenant: &Tenant, id: &BatchId) -> String {
    format!("_batches.{tenant}.{id}")
}

const BATCH: &str = "Longshore-Batch-Id";
