//! Idempotency keys: one key belongs to one run, within a window and per tenant.
//!
//! A claim is a record under a hash of the key (a key may be any text, a subject may not). It is written by
//! compare-and-set on "nothing", and expires after the window. `submit` writes it before the job and marks it published
//! after: a crash between the two leaves a claim whose run may never have been published. A caller that repeats the
//! submit finds the claim and publishes the job again. A caller that publishes another job with the key takes the claim
//! over; the claim then names the first run until that run has finished.

use std::time::Duration;

use longshore_domain::job::Unique;
use longshore_domain::{RunId, Tenant, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Backbone;
use crate::clock::now;
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request::{self, Over, json, won};
use crate::runs::fingerprint::{Fingerprint, hex};

/// A run's claim on a key. Whether the run still has the key, its record says (`longshore_domain::key`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The run.
    pub run_id: RunId,
    /// Of which job it is: the same key with another job is a mistake that is reported.
    #[serde(flatten)]
    pub fingerprint: Fingerprint,
    /// How long the run has the key.
    #[serde(default, skip_serializing_if = "longshore_domain::is_default")]
    pub unique: Unique,
    /// Whether the run's job or schedule is durable. Until then another job with the key may take the claim over.
    #[serde(default)]
    pub published: bool,
    /// Runs that had the claim before, and are to finish as duplicates of this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken_from: Vec<RunId>,
}

/// A claim as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundClaim {
    /// The claim.
    pub claim: Claim,
    /// Its revision: a compare-and-set on the claim must name it.
    pub revision: u64,
    /// When it was written, by the server's clock.
    pub at: Timestamp,
}

/// The outcome of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The key is this run's, at this revision of the claim.
    Mine(u64),
    /// There is a claim already, perhaps of the same run.
    Found(FoundClaim),
}

impl Backbone {
    /// Claims `key` for a run, for `window`, if no run has it.
    ///
    /// # Errors
    /// The server did not answer in time.
    pub async fn claim_key(
        &self,
        tenant: &Tenant,
        key: &str,
        claim: &Claim,
        window: Duration,
    ) -> Result<Claimed, Error> {
        let mut expected = 0;
        loop {
            if let Some(revision) = self.write_claim(tenant, key, claim, Over { expected, lasts: window }).await? {
                return Ok(Claimed::Mine(revision));
            }
            expected = match self.stored_claim(tenant, key).await? {
                Some((Some(found), _)) => return Ok(Claimed::Found(found)),
                Some((None, revision)) => revision,
                // It has expired between the two calls: the next pass claims it.
                None => 0,
            };
        }
    }

    /// Writes a claim over the one that was read. `None`: another write came first.
    ///
    /// # Errors
    /// The server did not answer in time; the claim may have been written.
    pub async fn write_claim(
        &self,
        tenant: &Tenant,
        key: &str,
        claim: &Claim,
        over: Over,
    ) -> Result<Option<u64>, Error> {
        let subject = self.claim_subject(tenant, key);
        won(request::publish_until_decided(self.client(), subject, over.headers(), json(claim)).await)
    }

    /// The claim on a key, as the bucket's leader has it.
    ///
    /// # Errors
    /// The server did not answer in time, or it is not known whether the key is claimed.
    pub async fn read_claim(&self, tenant: &Tenant, key: &str) -> Result<Option<FoundClaim>, Error> {
        Ok(self.stored_claim(tenant, key).await?.and_then(|(found, _)| found))
    }

    /// What is stored under a key, and its revision; `None` for what claims nothing.
    ///
    /// Where nodes did not write what is there, they may have before: as long as a claim lasts, the key is nobody's, so
    /// that no second run gets it. A key that a person has emptied is free.
    async fn stored_claim(&self, tenant: &Tenant, key: &str) -> Result<Option<(Option<FoundClaim>, u64)>, Error> {
        let bucket = self.names().bucket_stream("idempotency");
        let subject = self.claim_subject(tenant, key);
        let stored = request::latest(self.client(), &bucket, &subject).await?;
        let Some(Raw { payload, sequence: revision, at, .. }) = stored else { return Ok(None) };
        match serde_json::from_slice(&payload) {
            Ok(claim) => Ok(Some((Some(FoundClaim { claim, revision, at }), revision))),
            Err(_) if payload.is_empty() => Ok(Some((None, revision))),
            Err(error) => {
                self.unreadable().met(&subject, &error);
                if now().since(at) >= self.storage().idempotency_window {
                    return Ok(Some((None, revision)));
                }
                Err(Error::Unreadable { subject, revision, value: payload, source: Box::new(error) })
            }
        }
    }

    /// The subject of a key's claim. It has a hash of the key, because a key may be any text and a subject may not.
    fn claim_subject(&self, tenant: &Tenant, key: &str) -> String {
        let hash = hex(&Sha256::digest(key.as_bytes())[..20]);
        self.names().key("idempotency", &format!("{tenant}.{hash}"))
    }
}
