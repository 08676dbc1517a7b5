//! API keys and sessions in the control bucket: who has one, and its hash. The text of neither is stored anywhere.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request::conditions;
use crate::wire::api::KeyStatus;

/// How long the server keeps the note that a session ended: not for long, as who logs in again and again leaves many.
const ENDED_KEPT: Duration = Duration::from_secs(60);
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

way! {
    /// A node's way to the API keys.
    ApiKeys, api_keys
}

impl ApiKeys {
    /// Stores a key or a session.
    ///
    /// # Errors
    /// It was written or revoked meanwhile, or the server did not answer in time, so that it may be stored; or it
    /// refused.
    pub async fn write(&self, key: &StoredKey) -> Result<(), Error> {
        let lasts = key.session_of.is_some().then_some(Duration::from_secs(SESSION_SECONDS));
        let headers = conditions(Some(key.revision), lasts);
        self.0.put_entry("control", &entry_of(&key.key.id), key, headers).await.map(drop)
    }

    /// The key of this id, as the bucket's leader has it; `None`: there is none, or it was revoked.
    ///
    /// # Errors
    /// The control bucket, or the key, cannot be read.
    pub async fn get(&self, id: &str) -> Result<Option<StoredKey>, Error> {
        let stored = self.0.entry("control", &entry_of(id)).await?;
        // One that cannot be read lets nobody in.
        Ok(stored.and_then(|stored| self.read(&stored)))
    }

    /// Every key and session, as the bucket's leader has them.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn all(&self) -> Result<Vec<StoredKey>, Error> {
        let stored = self.0.entries_after("control", &entry_of("*"), 0).await?;
        Ok(stored.iter().filter_map(|stored| self.read(stored)).collect())
    }

    /// Revokes a key for good. Repeating it is harmless.
    ///
    /// # Errors
    /// The server did not answer in time, so that it may be revoked; or it refused.
    pub async fn revoke(&self, id: &str) -> Result<(), Error> {
        self.0.remove_entry("control", &entry_of(id), None).await
    }

    /// Ends a session. Repeating it is harmless.
    ///
    /// # Errors
    /// The server did not answer in time, so that it may be over; or it refused.
    pub async fn end_session(&self, id: &str) -> Result<(), Error> {
        self.0.remove_entry("control", &entry_of(id), Some(ENDED_KEPT)).await
    }

    /// What is stored of a key; an empty message says that it was revoked.
    fn read(&self, stored: &Raw) -> Option<StoredKey> {
        let key: StoredKey = self.0.readable(&stored.subject, &stored.payload)?;
        Some(StoredKey { revision: stored.sequence, ..key })
    }
}

fn entry_of(id: &str) -> String {
    format!("api_keys.{id}")
}
