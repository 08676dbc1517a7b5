//! API keys: by which clients of the HTTP API say who they are. It knows their form, and checks none.

use longshore_domain::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Scope, Word};
use crate::runs::fingerprint::hex;

/// A key that is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKeyRequest {
    /// Whose it is, for people: 1 to 64 characters.
    pub name: String,
    /// The tenant as which it asks; `_all`: it asks as the operator.
    pub tenant: String,
    /// The permissions that it has: at least one.
    pub scopes: Vec<Scope>,
    /// From when on it is refused; never by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A key that was made. Nobody can ask for its text again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyCreated {
    /// By this it is listed and revoked.
    pub id: String,
    /// The key itself, which is secret.
    pub key: String,
}

impl std::fmt::Debug for KeyCreated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyCreated").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Which key is revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeKeyRequest {
    /// Its id.
    pub id: String,
}

/// Every key, by id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Keys {
    /// The keys.
    pub keys: Vec<KeyStatus>,
}

/// A key as an answer shows it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyStatus {
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it is refused.
    pub expires_at: Option<Timestamp>,
    /// Its id.
    pub id: String,
    /// The day on which it was last used, in UTC, such as `2026-11-26`.
    pub last_used: Option<String>,
    /// Whose it is.
    pub name: String,
    /// The permissions that it has.
    pub scopes: Vec<Word<Scope>>,
    /// The tenant as which it asks.
    pub tenant: String,
}

/// Digits of a key's id, and of its secret: 256 random bits.
const ID: usize = 16;
const SECRET: usize = 64;

/// A new key's id and text: `ls_<id>_<secret>`, hexadecimal digits both.
pub fn key_text(id: [u8; ID / 2], secret: [u8; SECRET / 2]) -> (String, String) {
    let (id, secret) = (hex(&id), hex(&secret));
    let text = format!("ls_{id}_{secret}");
    (id, text)
}

/// The id within a text that has the form of a key.
pub fn id_of_key(text: &str) -> Option<&str> {
    let (id, secret) = text.strip_prefix("ls_")?.split_once('_')?;
    (is_key_id(id) && secret.len() == SECRET && secret.bytes().all(is_digit)).then_some(id)
}

/// Whether a text has the form of a key's id.
pub fn is_key_id(text: &str) -> bool {
    text.len() == ID && text.bytes().all(is_digit)
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_distinguished_from_any_other_text() {
        let (id, key) = key_text([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef], [0xab; 32]);
        let secret = "ab".repeat(32);
        assert_eq!((id.as_str(), key.as_str()), ("0123456789abcdef", &*format!("ls_0123456789abcdef_{secret}")));
        assert_eq!(id_of_key(&key), Some(&*id));
        for wrong in ["", "ls_", &id, &key[1..], &key[..key.len() - 1], &key.to_uppercase(), &format!("{key}a")] {
            assert_eq!(id_of_key(wrong), None, "{wrong}");
        }
        let debug = format!("{:?}", KeyCreated { id, key });
        assert!(!debug.contains(&secret), "{debug}");
    }
}
