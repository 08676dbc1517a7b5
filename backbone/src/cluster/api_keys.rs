//! API keys and sessions in the control bucket: who has one, and its hash. The text of neither is stored anywhere.

use async_nats::HeaderMap;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::error::Error;
use crate::messages::{raw, request};
use crate::wire::api::KeyStatus;
use crate::wire::header::names;

/// How long the server keeps the note that a key was revoked.
const REVOKED_KEPT: &str = "86400s";
/// How long a session counts; then the server forgets it.
pub const SESSION_SECONDS: u64 = 12 * 60 * 60;

/// A key, or a session, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredKey {
    /// Who has it.
    pub key: KeyStatus,
    /// SHA-256 of its text.
    pub sha256: [u8; 32],
    /// The id of the key by which this session was opened. It counts as long as that key does, and is no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_of: Option<String>,
    /// The revision that it was read at; 0: it is new.
    #[serde(skip)]
    pub revision: u64,
}

/// A node's way to the keys. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ApiKeys(Backbone);

impl Backbone {
    /// This node's way to the API keys.
    #[must_use]
    pub fn api_keys(&self) -> ApiKeys {
        ApiKeys(self.clone())
    }
}

impl ApiKeys {
    /// Stores a key or a session.
    ///
    /// # Errors
    /// It was written or revoked meanwhile, or the server did not answer in time, so that it may be stored; or it
    /// refused.
    pub async fn write(&self, key: &StoredKey) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        headers.insert(names::EXPECTED, key.revision.to_string());
        if key.session_of.is_some() {
            headers.insert(names::TTL, format!("{SESSION_SECONDS}s"));
        }
        let body = Bytes::from(serde_json::to_vec(key).unwrap_or_default());
        request::publish(self.0.control(), self.subject(&key.key.id), headers, body).await.map(drop)
    }

    /// The key of this id, as the bucket's leader has it; `None`: there is none, or it was revoked.
    ///
    /// # Errors
    /// The control bucket, or the key, cannot be read.
    pub async fn get(&self, id: &str) -> Result<Option<StoredKey>, Error> {
        let bucket = self.0.names().bucket_stream("control");
        let subject = self.subject(id);
        let stored = request::latest(self.0.control(), self.0.api(), &bucket, &subject).await?;
        // One that cannot be read lets nobody in.
        Ok(stored.and_then(|stored| self.read(&subject, &stored.payload, stored.sequence)))
    }

    /// Every key and session, as the bucket's leader has them.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn all(&self) -> Result<Vec<StoredKey>, Error> {
        let (bucket, all) = (self.0.names().bucket_stream("control"), self.subject("*"));
        let stored = raw::all(self.0.control(), self.0.api(), &bucket, &all, 1).await?;
        Ok(stored.iter().filter_map(|stored| self.read(&stored.subject, &stored.payload, stored.sequence)).collect())
    }

    /// Revokes a key, or ends a session. Repeating it is harmless.
    ///
    /// # Errors
    /// The server did not answer in time, so that it may be revoked; or it refused.
    pub async fn revoke(&self, id: &str) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        headers.insert("KV-Operation", "DEL");
        headers.insert(names::TTL, REVOKED_KEPT);
        request::publish(self.0.control(), self.subject(id), headers, Bytes::new()).await.map(drop)
    }

    /// What is stored of a key; an empty message says that it was revoked.
    fn read(&self, subject: &str, payload: &[u8], revision: u64) -> Option<StoredKey> {
        let stored: StoredKey = if payload.is_empty() { None } else { self.0.readable(subject, payload) }?;
        Some(StoredKey { revision, ..stored })
    }

    fn subject(&self, id: &str) -> String {
        self.0.names().key("control", &format!("api_keys.{id}"))
    }
}
