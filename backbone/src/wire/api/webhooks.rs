//! Webhooks: URLs that are called for the events of a tenant's runs. It knows their form, and calls none.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longshore_domain::{RunId, Tenant, Timestamp, WebhookId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::Word;
use crate::wire::logged::EventFilter;

/// The type of the jobs that deliver events.
pub const WEBHOOK_TYPE: &str = "longshore.webhook";

/// What stands before a secret, as Standard Webhooks has it.
const SECRET_PREFIX: &str = "whsec_";
/// Bytes of a secret's key: as Standard Webhooks has it.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A webhook that is made, or changed as a whole.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PutWebhookRequest {
    /// Its id, unique within its tenant: at most 48 characters.
    pub id: WebhookId,
    /// Whose it is, if the operator asks.
    pub tenant: Option<Tenant>,
    /// Where events are posted to: http or https.
    pub url: String,
    /// Which events, such as `completed`; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Of which types; `email.>` means all that begin with `email.`. All by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// Of which queues; all by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// The form of the body: `standard` by default.
    pub format: Option<WebhookFormat>,
    /// What signs: `whsec_` and 24 to 64 bytes in base64. If it is absent, a new webhook gets one, and another keeps
    /// its own.
    pub secret: Option<WebhookSecret>,
    /// Whether it is paused; left as it is if absent.
    pub paused: Option<bool>,
}

/// Which webhook is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookRequest {
    /// Its id.
    pub id: WebhookId,
    /// Whose it is, if the operator asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
}

/// Whose webhooks are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhooksRequest {
    /// The tenant, if the operator asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Tenant>,
}

/// Webhooks, by tenant and id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Webhooks {
    /// The webhooks.
    pub webhooks: Vec<WebhookStatus>,
}

/// A webhook as answers show it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookStatus {
    /// When it was made.
    pub created_at: Timestamp,
    /// Which events; empty: all.
    pub events: Vec<String>,
    /// The form of the body.
    pub format: Word<WebhookFormat>,
    /// Its id.
    pub id: WebhookId,
    /// Until when the secret before this one signs, too.
    pub old_secret_until: Option<Timestamp>,
    /// Whether nothing is delivered for now.
    pub paused: bool,
    /// Why a node has paused it.
    pub paused_because: Option<String>,
    /// Of which queues; empty: all.
    pub queues: Vec<String>,
    /// What signs, only in the answer to the request for which it was made.
    pub secret: Option<WebhookSecret>,
    /// Whose it is.
    pub tenant: Tenant,
    /// Of which types; empty: all.
    pub types: Vec<String>,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Where events are posted to.
    pub url: String,
}

impl WebhookStatus {
    /// Which events it has.
    pub fn filter(&self) -> EventFilter {
        let Self { events, types, queues, .. } = self.clone();
        EventFilter { events, types, queues, ..EventFilter::default() }
    }
}

/// A delivery that was asked for to try a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WebhookTest {
    /// Its run.
    pub run_id: RunId,
}

/// The form of a delivery's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WebhookFormat {
    /// `{"type","timestamp","data"}`, as Standard Webhooks recommends.
    #[default]
    Standard,
    /// A CloudEvent 1.0 in structured mode.
    CloudEvents,
}

/// What signs deliveries: `whsec_…`. It is shown by no log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct WebhookSecret(String);

impl WebhookSecret {
    /// A secret of these random bytes.
    pub fn of(bytes: [u8; 32]) -> Self {
        Self(format!("{SECRET_PREFIX}{}", STANDARD.encode(bytes)))
    }

    /// The key that signs.
    ///
    /// # Errors
    /// It is no secret.
    pub fn key(&self) -> Result<Vec<u8>, &'static str> {
        let key = self.0.strip_prefix(SECRET_PREFIX).and_then(|text| STANDARD.decode(text).ok());
        let key = key.filter(|key| KEY_BYTES.contains(&key.len()));
        key.ok_or("is not whsec_ and 24 to 64 bytes in base64")
    }

    /// Its text, to be shown to its owner.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_24_to_64_bytes_and_is_shown_by_no_log() {
        let secret = WebhookSecret::of([7; 32]);
        assert_eq!(secret.key().unwrap(), [7; 32]);
        assert_eq!(format!("{secret:?}"), "WebhookSecret");
        let short = format!("whsec_{}", STANDARD.encode([7; 23]));
        for wrong in ["", "whsec_", "whsec_%", &short, &secret.text()[6..]] {
            assert!(WebhookSecret(wrong.to_owned()).key().is_err(), "{wrong}");
        }
    }
}
