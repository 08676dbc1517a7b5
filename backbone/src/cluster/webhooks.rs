//! Webhooks in the control bucket, and the consumer of the event log that each of them has.
//!
//! A webhook that was deleted stays there, marked, so that every node sees it and none is left that would make its
//! consumer again.

use std::time::Duration;

use async_nats::StatusCode;
use bytes::Bytes;
use longshore_domain::{Tenant, Timestamp, WebhookId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Backbone;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::lanes::delivery::AckInfo;
use crate::messages::refusal::WRONG_SEQUENCE;
use crate::messages::request::{self, conditions, json};
use crate::streams::{provision, shape};
use crate::wire::api::{WebhookSecret, WebhookStatus};

/// Secrets older than the last one that still sign.
const MAX_OLDER: usize = 3;
/// How long the server waits for an event before it says that there is none.
const PULL_EXPIRES: Duration = Duration::from_secs(2);
/// How long the answer may take beyond that.
const PULL_ANSWER: Duration = Duration::from_secs(2);

/// A webhook as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWebhook {
    /// What answers show of it, without its secret.
    pub webhook: WebhookStatus,
    /// What signs.
    pub secret: WebhookSecret,
    /// What signed before, and signs until [`WebhookStatus::old_secret_until`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_secret: Option<WebhookSecret>,
    /// What signed before that, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older_secrets: Vec<OlderSecret>,
    /// What proves that a delivery was made by a node: nobody else is shown it.
    pub feed_key: WebhookSecret,
    /// Whether it was deleted.
    #[serde(default)]
    pub deleted: bool,
}

/// A secret that was replaced, and so was the one that replaced it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OlderSecret {
    /// What signed.
    pub secret: WebhookSecret,
    /// Until when it signs.
    pub until: Timestamp,
}

impl StoredWebhook {
    /// Has `new` sign from now on, and what signed before until then as well. Those before it keep their own ends:
    /// nobody knows which of them the receiver has, as the answer to a rotation may have been lost.
    pub fn rotate(&mut self, new: WebhookSecret, now: Timestamp, until: Timestamp) {
        let old = self.old_secret.replace(std::mem::replace(&mut self.secret, new));
        let ended = self.webhook.old_secret_until.replace(until);
        let older = old.zip(ended).map(|(secret, ends)| OlderSecret { secret, until: ends });
        self.older_secrets.extend(older);
        self.older_secrets.retain(|older| now < older.until);
        if self.older_secrets.len() > MAX_OLDER {
            // Of many at once the receiver hardly has one from the midst.
            self.older_secrets.remove(1);
        }
    }

    /// The keys that sign at this time.
    pub fn keys(&self, at: Timestamp) -> Vec<Vec<u8>> {
        let old = self.old_secret.as_ref().filter(|_| self.webhook.old_secret_until.is_some_and(|until| at < until));
        let older = self.older_secrets.iter().filter(|older| at < older.until).map(|older| &older.secret);
        let all = [Some(&self.secret), old].into_iter().flatten().chain(older);
        all.filter_map(|secret| secret.key().ok()).collect()
    }

    /// As it is stored: of a deleted one no more than whose it was, as tenants may make and delete any number of them.
    fn kept(&self) -> Self {
        let mut kept = self.clone();
        if kept.deleted {
            let WebhookStatus { url, events, types, queues, .. } = &mut kept.webhook;
            url.clear();
            [events, types, queues].into_iter().for_each(Vec::clear);
            kept.webhook.paused_because = None;
            kept.secret = WebhookSecret::of([0; 32]);
            kept.feed_key = kept.secret.clone();
            (kept.old_secret, kept.older_secrets) = (None, Vec::new());
        }
        kept
    }
}

/// A message of the event log, delivered to a webhook's consumer.
#[derive(Debug)]
pub struct EventBatch {
    /// Events, a line of JSON each.
    pub lines: Bytes,
    /// Where the message is in the log.
    pub sequence: u64,
    /// When they were logged.
    pub logged_at: Timestamp,
    /// Where it is acknowledged. Until then it comes again after the lease.
    reply: String,
}

/// What the event log has for a webhook.
#[derive(Debug)]
pub enum Pulled {
    /// Events.
    Batch(EventBatch),
    /// Nothing new.
    Nothing,
    /// The server did not answer in time.
    NoAnswer,
    /// There is no consumer.
    NoConsumer,
}

/// Takes messages of the event log for one webhook. A message keeps its own subject, by which no request finds its
/// answer: so each puller has an inbox of its own.
#[derive(Debug)]
pub struct EventPuller {
    backbone: Backbone,
    subject: String,
    inbox: String,
    messages: Subscription,
}

impl EventPuller {
    /// The next message that no node has taken; waits up to 2 s for one.
    pub async fn next(&mut self) -> Pulled {
        let body = format!(r#"{{"batch":1,"expires":{}}}"#, PULL_EXPIRES.as_nanos());
        let (link, subject) = (self.backbone.service(), self.subject.clone());
        link.publish_with_reply(subject.into(), self.inbox.clone(), body.into()).await;
        let Ok(Some(message)) = tokio::time::timeout(PULL_EXPIRES + PULL_ANSWER, self.messages.next()).await else {
            return Pulled::NoAnswer;
        };
        let info = message.reply.as_ref().and_then(|reply| AckInfo::read(reply)).map(|info| (info.sequence, info.at));
        match (message.reply, info) {
            (Some(reply), Some((sequence, logged_at))) => {
                let reply = reply.to_string();
                Pulled::Batch(EventBatch { lines: message.payload, sequence, logged_at, reply })
            }
            // Its time is over.
            _ if message.status == Some(StatusCode::TIMEOUT) => Pulled::Nothing,
            // The consumer is gone, or nobody knows of it.
            _ => Pulled::NoConsumer,
        }
    }
}

way! {
    /// A node's way to the webhooks.
    Webhooks, webhooks
}

impl Webhooks {
    /// The webhook of this id, and the revision to write on: 0 if there was never one. One that was deleted is none.
    ///
    /// # Errors
    /// The control bucket, or the webhook, cannot be read.
    pub async fn find(&self, tenant: &Tenant, id: &WebhookId) -> Result<(Option<StoredWebhook>, u64), Error> {
        let found = self.0.entry("control", &entry_of(tenant.as_str(), id.as_str())).await?;
        let Some(raw) = found else { return Ok((None, 0)) };
        let stored = self.0.readable::<StoredWebhook>(&raw.subject, &raw.payload);
        Ok((stored.filter(|stored| !stored.deleted), raw.sequence))
    }

    /// The webhooks of a tenant, or of all, that were written after a revision, and the revision up to which that is.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn written_after(
        &self,
        tenant: Option<&Tenant>,
        revision: u64,
    ) -> Result<(Vec<StoredWebhook>, u64), Error> {
        let keys = entry_of(tenant.map_or("*", Tenant::as_str), "*");
        let stored = self.0.entries_after("control", &keys, revision).await?;
        let revision = stored.last().map_or(revision, |raw| raw.sequence);
        Ok((stored.iter().filter_map(|raw| self.0.readable(&raw.subject, &raw.payload)).collect(), revision))
    }

    /// Writes a webhook on the revision that was read; `false`: another write came first.
    ///
    /// # Errors
    /// The server did not answer in time, so that it may be written; it refused; or there is no room for a new one.
    pub async fn write(&self, webhook: &StoredWebhook, revision: u64) -> Result<bool, Error> {
        let lasts = if webhook.deleted { self.0.control_space().mark_lasts() } else { None };
        let headers = conditions(Some(revision), lasts);
        let key = entry_of(webhook.webhook.tenant.as_str(), webhook.webhook.id.as_str());
        let (subject, body) = (self.0.names().key("control", &key), json(&webhook.kept()));
        if revision == 0 {
            self.0.control_space().count(&subject, &body)?;
        }
        match request::publish(self.0.control(), subject, headers, body).await {
            Ok(_) => Ok(true),
            Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a webhook's consumer, if there is none: it begins with the events since the webhook was made.
    ///
    /// # Errors
    /// The server did not answer, or refused.
    pub async fn make_consumer(&self, webhook: &WebhookStatus) -> Result<(), Error> {
        let stream = self.0.names().events_stream();
        let wanted = shape::webhook_consumer(self.0.names(), self.0.storage(), webhook)?;
        provision::consumer(&self.0.jetstream(), &stream, wanted).await
    }

    /// Deletes a webhook's consumer. Repeating it is harmless.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn delete_consumer(&self, webhook: &WebhookStatus) -> Result<(), Error> {
        let (stream, consumer) = (self.0.names().events_stream(), shape::webhook_consumer_name(webhook));
        let subject = format!("{}.CONSUMER.DELETE.{stream}.{consumer}", self.0.api());
        // What it answers does not matter: the consumer is gone, or was never there.
        request::ask::<Value>(self.0.control(), subject, Bytes::new()).await.map(drop)
    }

    /// Takes from a webhook's consumer.
    ///
    /// # Errors
    /// The inbox cannot be subscribed to.
    pub async fn puller(&self, webhook: &WebhookStatus) -> Result<EventPuller, Error> {
        let (stream, consumer) = (self.0.names().events_stream(), shape::webhook_consumer_name(webhook));
        let inbox = self.0.service().new_inbox();
        let messages = self.0.service().subscribe(inbox.clone()).await?;
        let subject = format!("{}.CONSUMER.MSG.NEXT.{stream}.{consumer}", self.0.api());
        Ok(EventPuller { backbone: self.0.clone(), subject, inbox, messages })
    }

    /// Says that the events of a batch are in jobs. If that is lost, the batch comes again.
    pub async fn done(&self, batch: EventBatch) {
        self.0.service().publish(batch.reply, Bytes::from_static(b"+ACK")).await;
    }

    /// Gives a batch back for a while.
    pub async fn give_back(&self, batch: EventBatch, away: Duration) {
        let body = format!(r#"-NAK {{"delay":{}}}"#, away.as_nanos());
        self.0.service().publish(batch.reply, Bytes::from(body)).await;
    }
}

fn entry_of(tenant: &str, id: &str) -> String {
    format!("webhooks.{tenant}.{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a version without older secrets has stored it; it may have been rotated once, to end at this second.
    fn stored(ends: Option<u8>) -> StoredWebhook {
        let secret = |byte| WebhookSecret::of([byte; 32]).text().to_owned();
        let at = "2026-01-01T00:00:00.000Z";
        let mut stored = serde_json::json!({
            "webhook": {
                "created_at": at, "events": ["dlq"], "format": "standard", "id": "shop", "paused": false,
                "queues": ["q"], "tenant": "acme", "types": ["a"], "updated_at": at, "url": "https://example.com/",
            },
            "secret": secret(1), "feed_key": secret(9),
        });
        if let Some(ends) = ends {
            stored["old_secret"] = secret(0).into();
            stored["webhook"]["old_secret_until"] = second(ends).to_string().into();
        }
        serde_json::from_value(stored).unwrap()
    }

    fn second(number: u8) -> Timestamp {
        Timestamp::from_millis(i64::from(number) * 1_000)
    }

    #[test]
    fn each_replaced_secret_signs_until_its_own_end() {
        let mut webhook = stored(Some(10));
        let signing = |webhook: &StoredWebhook, at| {
            let mut first: Vec<u8> = webhook.keys(second(at)).iter().map(|key| key[0]).collect();
            first.sort_unstable();
            first
        };
        let mut rotate = |new, at| {
            webhook.rotate(WebhookSecret::of([new; 32]), second(at), second(at + 10));
            let json = serde_json::to_vec(&webhook).unwrap();
            assert_eq!(serde_json::from_slice::<StoredWebhook>(&json).unwrap(), webhook);
            webhook.clone()
        };
        let twice = [rotate(2, 5), rotate(3, 6)];
        assert_eq!(signing(&twice[0], 6), [0, 1, 2], "the receiver may have any of them");
        assert_eq!(signing(&twice[1], 7), [0, 1, 2, 3]);
        assert_eq!(signing(&twice[1], 10), [1, 2, 3]);
        assert_eq!(signing(&twice[1], 16), [3]);
        let many = [rotate(4, 7), rotate(5, 8)];
        assert_eq!(signing(&many[0], 8), [0, 1, 2, 3, 4]);
        assert_eq!(signing(&many[1], 9), [0, 2, 3, 4, 5], "the first that the receiver had stays, and the last ones");
        assert_eq!(signing(&rotate(6, 15), 15), [2, 3, 4, 5, 6]);
    }

    #[test]
    fn little_is_stored_of_a_deleted_webhook() {
        let webhook = stored(None);
        assert_eq!(webhook.kept(), webhook);
        let kept = StoredWebhook { deleted: true, ..webhook.clone() }.kept().webhook;
        assert_eq!((kept.id, kept.created_at), (webhook.webhook.id, webhook.webhook.created_at));
        assert!(kept.url.is_empty() && [kept.events, kept.types, kept.queues].concat().is_empty());
        let signs = StoredWebhook { deleted: true, ..stored(Some(1)) }.kept().keys(second(0));
        assert_eq!(signs, [[0; 32]], "no secret is kept");
    }
}
