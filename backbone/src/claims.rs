//! Idempotency keys: one key, one run, within a window and per tenant.
//!
//! A claim is a record under a hash of the key (keys are any text, subjects are not), written by compare-and-set on
//! "nothing" and gone after the window. It comes before the job: a crash between the two leaves a claim whose run never
//! came, and whoever repeats the submit finds it and publishes the job again.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::{RunId, Tenant};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Backbone;
use crate::error::Error;
use crate::request::{self, WRITE_IN_FLIGHT, WRONG_SEQUENCE};
use crate::wire::header::names;

/// Who has a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The run.
    pub run_id: RunId,
    /// A hash of type and payload: the same key with another job is a mistake that is told.
    pub fingerprint: String,
}

/// A claim's outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The key is this run's.
    Mine,
    /// It is another's.
    Theirs(Claim),
}

/// The fingerprint of a job.
#[must_use]
pub fn fingerprint(job_type: &str, payload: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(job_type.as_bytes());
    hash.update([0]);
    hash.update(payload);
    hex(&hash.finalize()[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Backbone {
    /// Claims `key` for a run, for `window`.
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
        let hash = hex(&Sha256::digest(key.as_bytes())[..20]);
        let subject = self.names().key("idempotency", &format!("{tenant}.{hash}"));
        let bucket = self.names().bucket_stream("idempotency");
        let query = format!(r#"{{"last_by_subj":"{subject}"}}"#);
        let body = Bytes::from(serde_json::to_vec(claim).unwrap_or_default());
        let mut headers = HeaderMap::new();
        headers.insert(names::EXPECTED, "0");
        headers.insert(names::TTL, format!("{}s", window.as_secs().max(1)));
        loop {
            match request::publish(self.client(), subject.clone(), headers.clone(), body.clone()).await {
                Ok(_) => return Ok(Claimed::Mine),
                Err(Error::Refused { code: WRITE_IN_FLIGHT, .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => {
                    let stored = request::direct_get(self.client(), self.api(), &bucket, query.clone()).await?;
                    // It may expire between the two: then the next turn claims it.
                    if let Some(found) = stored.and_then(|stored| serde_json::from_slice::<Claim>(&stored.payload).ok())
                    {
                        let mine = found.run_id == claim.run_id;
                        return Ok(if mine { Claimed::Mine } else { Claimed::Theirs(found) });
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}
