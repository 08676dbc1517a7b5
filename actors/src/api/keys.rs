//! API keys: makes, lists and revokes them, opens sessions by them, and says whose one is.
//!
//! A check asks the bucket's leader and remembers the answer for half a second, so that a key is refused on every node
//! within two seconds of its end. Unknown, revoked, expired and wrong keys cost the same.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use longshore_backbone::Backbone;
use longshore_backbone::api_keys::{SESSION_SECONDS, StoredKey};
use longshore_backbone::wire::api::{
    ApiError, CreateKeyRequest, Encoded, KeyCreated, KeyStatus, Keys, OPERATOR, RevokeKeyRequest, id_of_key, is_key_id,
    key_text,
};
use longshore_domain::Tenant;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::Semaphore;

use crate::api::{Answered, Api};
use crate::runtime::{Unpoisoned as _, now};

/// Keys that there may be, and sessions.
const MAX: usize = 1_000;
const SESSIONS: usize = 4_000;
/// Sessions of one key: then its oldest makes way.
const OF_ONE_KEY: usize = 500;
/// Characters of a name.
const NAME: usize = 64;
/// How long an answer of the bucket counts.
const KNOWN_FOR: Duration = Duration::from_millis(500);
/// Answers that are remembered.
const KNOWN: usize = 1_024;
/// Keys that are looked up at once; more wait.
const AT_ONCE: usize = 16;

pub(crate) async fn create(api: &Api, asked: CreateKeyRequest) -> Answered<KeyCreated> {
    let CreateKeyRequest { name, tenant, mut scopes, expires_at } = asked;
    if !(1..=NAME).contains(&name.chars().count()) || name.chars().any(char::is_control) {
        return Err(ApiError::malformed(format!("name: is not 1 to {NAME} characters without control characters")));
    }
    if tenant != OPERATOR {
        Tenant::parse(&tenant).map_err(|error| ApiError::malformed(format!("tenant: {}", error.reason)))?;
    }
    scopes.sort_unstable();
    scopes.dedup();
    if scopes.is_empty() {
        return Err(ApiError::malformed("scopes: has none of submit, read, operate, reveal"));
    }
    let created_at = now();
    if expires_at.is_some_and(|at| at <= created_at) {
        return Err(ApiError::malformed("expires_at: is over already"));
    }
    if api.backbone.api_keys().all().await?.iter().filter(|stored| stored.session_of.is_none()).count() >= MAX {
        return Err(ApiError::unavailable(format!("there are {MAX} keys already: revoke some")));
    }
    let scopes = scopes.into_iter().map(Into::into).collect();
    let key = KeyStatus { created_at, expires_at, id: String::new(), last_used: None, name, scopes, tenant };
    let (id, key) = store(&api.backbone, key, None).await?;
    Ok(Encoded::of(&KeyCreated { id, key }))
}

/// How many sessions there are of keys that still count, and the one of this key that makes way for another.
fn sessions<'k>(all: &'k [StoredKey], key: &str) -> (usize, Option<&'k str>) {
    let keys = all.iter().filter(|stored| stored.session_of.is_none() && not_over(&stored.key));
    let keys: HashSet<&str> = keys.map(|stored| stored.key.id.as_str()).collect();
    let is_open = |stored: &&StoredKey| stored.session_of.as_deref().is_some_and(|of| keys.contains(of));
    let open: Vec<&'k StoredKey> = all.iter().filter(is_open).collect();
    let own = open.iter().filter(|stored| stored.session_of.as_deref() == Some(key));
    let own: Vec<&'k StoredKey> = own.copied().collect();
    let oldest = own.iter().min_by_key(|stored| stored.key.created_at).filter(|_| own.len() >= OF_ONE_KEY);
    (open.len(), oldest.map(|stored| stored.key.id.as_str()))
}

/// Stores `key` under a new id; returns the id and the text.
async fn store(backbone: &Backbone, key: KeyStatus, session_of: Option<String>) -> Result<(String, String), ApiError> {
    let (id, text) = key_text(rand::random(), rand::random());
    let key = KeyStatus { id: id.clone(), ..key };
    let stored = StoredKey { key, sha256: Sha256::digest(&text).into(), session_of, revision: 0 };
    backbone.api_keys().write(&stored).await?;
    Ok((id, text))
}

pub(crate) async fn list(api: &Api) -> Answered<Keys> {
    let stored = api.backbone.api_keys().all().await?;
    let keys = stored.into_iter().filter(|stored| stored.session_of.is_none());
    let mut keys: Vec<KeyStatus> = keys.map(|stored| stored.key).collect();
    keys.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    Ok(Encoded::of(&Keys { keys }))
}

/// The endpoint `keys.revoke`; answers with the key as it was.
pub(crate) async fn revoke(api: &Api, asked: RevokeKeyRequest) -> Answered<KeyStatus> {
    if !is_key_id(&asked.id) {
        // What stands there may be a whole key.
        return Err(ApiError::malformed("id: is not the id of a key, which keys.list shows"));
    }
    let keys = api.backbone.api_keys();
    let stored = keys.get(&asked.id).await?;
    let stored = stored.ok_or_else(|| ApiError::not_found(format!("id: no key {} is there", asked.id)))?;
    keys.revoke(&asked.id).await?;
    Ok(Encoded::of(&stored.key))
}

fn not_over(key: &KeyStatus) -> bool {
    key.expires_at.is_none_or(|at| now() < at)
}

/// Says whose a key is.
#[derive(Debug)]
pub struct KeyCheck {
    backbone: Backbone,
    known: Mutex<HashMap<String, (Instant, Option<StoredKey>)>>,
    room: Semaphore,
}

impl KeyCheck {
    pub(crate) fn new(backbone: Backbone) -> Self {
        Self { backbone, known: Mutex::default(), room: Semaphore::new(AT_ONCE) }
    }

    /// Who has this API key; `None`: it is unknown, wrong, revoked or expired, or that of a session.
    ///
    /// # Errors
    /// 503: NATS does not answer, so that nobody can say.
    pub async fn holder(&self, text: &str) -> Result<Option<KeyStatus>, ApiError> {
        let key = self.counted(text).await?.filter(|stored| stored.session_of.is_none());
        Ok(key.map(|key| self.used(key)))
    }

    /// The same of a session, which counts as long as its key.
    ///
    /// # Errors
    /// 503: NATS does not answer, so that nobody can say.
    pub async fn holder_of_session(&self, text: &str) -> Result<Option<KeyStatus>, ApiError> {
        let Some(id) = self.counted(text).await?.and_then(|stored| stored.session_of) else { return Ok(None) };
        let key = self.stored(&id).await?.filter(|stored| not_over(&stored.key));
        Ok(key.map(|key| self.used(key)))
    }

    fn used(&self, key: StoredKey) -> KeyStatus {
        self.note_use(&key);
        key.key
    }

    /// Writes down on which day a key was last used: once a day, and without the request waiting for it. A key that was
    /// revoked meanwhile stays so.
    fn note_use(&self, stored: &StoredKey) {
        let today = now().to_string().split('T').next().map(str::to_owned);
        if stored.key.last_used == today {
            return;
        }
        let key = KeyStatus { last_used: today, ..stored.key.clone() };
        let stored = StoredKey { key, ..stored.clone() };
        if let Some(known) = self.known.lock().unpoisoned().get_mut(&stored.key.id) {
            known.1 = Some(stored.clone());
        }
        let keys = self.backbone.api_keys();
        tokio::spawn(async move {
            if let Err(error) = keys.write(&stored).await {
                tracing::debug!("the use of a key is not noted: {}", error.with_causes());
            }
        });
    }

    /// Opens a session of an API key: its text, and whose it is. `None`: that is no key that counts.
    ///
    /// # Errors
    /// 503: there are too many sessions, or NATS does not answer.
    pub async fn log_in(&self, text: &str) -> Result<Option<(String, KeyStatus)>, ApiError> {
        let key = self.counted(text).await?.filter(|stored| stored.session_of.is_none());
        let Some(StoredKey { key, .. }) = key else { return Ok(None) };
        let all = self.backbone.api_keys().all().await?;
        match sessions(&all, &key.id) {
            (_, Some(oldest)) => self.backbone.api_keys().end_session(oldest).await?,
            (open, None) if open >= SESSIONS => {
                return Err(ApiError::unavailable(format!("there are {SESSIONS} sessions already: log out of some")));
            }
            _ => {}
        }
        let (created_at, ends_at) = (now(), now().plus(Duration::from_secs(SESSION_SECONDS)));
        let session = KeyStatus { created_at, expires_at: Some(ends_at), ..key.clone() };
        let (_, text) = store(&self.backbone, session, Some(key.id.clone())).await?;
        Ok(Some((text, key)))
    }

    /// Ends a session. What is none is left as it is.
    ///
    /// # Errors
    /// 503: NATS does not answer.
    pub async fn log_out(&self, text: &str) -> Result<(), ApiError> {
        let session = self.counted(text).await?.filter(|stored| stored.session_of.is_some());
        let Some(session) = session else { return Ok(()) };
        let id = session.key.id;
        self.backbone.api_keys().end_session(&id).await?;
        self.known.lock().unpoisoned().remove(&id);
        Ok(())
    }

    /// The key or session of this text, if it is there, right and not over.
    async fn counted(&self, text: &str) -> Result<Option<StoredKey>, ApiError> {
        let Some(id) = id_of_key(text) else { return Ok(None) };
        let stored = self.stored(id).await?;
        // A key that is not there is compared as well, so that the time says nothing.
        let expected = stored.as_ref().map_or([0; 32], |stored| stored.sha256);
        let given: [u8; 32] = Sha256::digest(text).into();
        let is_right = bool::from(expected.ct_eq(&given));
        Ok(stored.filter(|stored| is_right && not_over(&stored.key)))
    }

    async fn stored(&self, id: &str) -> Result<Option<StoredKey>, ApiError> {
        if let Some(known) = self.known(id) {
            return Ok(known);
        }
        let _room = self.room.acquire().await.map_err(|_| ApiError::unavailable("the node ends"))?;
        // Another request may have asked meanwhile.
        if let Some(known) = self.known(id) {
            return Ok(known);
        }
        let asked_at = Instant::now();
        let stored = self.backbone.api_keys().get(id).await?;
        let mut known = self.known.lock().unpoisoned();
        if known.len() >= KNOWN {
            known.clear();
        }
        known.insert(id.to_owned(), (asked_at, stored.clone()));
        Ok(stored)
    }

    fn known(&self, id: &str) -> Option<Option<StoredKey>> {
        let known = self.known.lock().unpoisoned();
        let (asked_at, stored) = known.get(id)?;
        (asked_at.elapsed() < KNOWN_FOR).then(|| stored.clone())
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::Timestamp;

    use super::*;

    fn stored(id: &str, session_of: Option<&str>, created_at: i64) -> StoredKey {
        let created_at = Timestamp::from_millis(created_at);
        let (scopes, name, tenant) = (Vec::new(), "n".to_owned(), "acme".to_owned());
        let key = KeyStatus { created_at, expires_at: None, id: id.to_owned(), last_used: None, name, scopes, tenant };
        StoredKey { key, sha256: [0; 32], session_of: session_of.map(str::to_owned), revision: 1 }
    }

    #[test]
    fn a_key_takes_no_sessions_of_others_and_those_of_a_gone_one_do_not_count() {
        let mut all = vec![stored("a", None, 0), stored("b", None, 0), stored("s0", Some("gone"), 0)];
        let own = |number: i64| stored(&format!("s{number}"), Some("a"), 1_000 - number);
        all.extend((1..500).map(own));
        assert_eq!(sessions(&all, "a"), (499, None));
        all.push(own(500));
        assert_eq!(sessions(&all, "a"), (500, Some("s500")), "its oldest makes way");
        assert_eq!(sessions(&all, "b"), (500, None));
        all[0].key.expires_at = Some(Timestamp::from_millis(1));
        assert_eq!(sessions(&all, "b"), (0, None));
    }
}
