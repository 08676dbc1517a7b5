//! Webhooks in the control bucket, and the consumer of the event log that each of them has.
//!
//! A webhook that was deleted stays there for a day, marked, so that every node sees it and none is left that would
//! make its consumer again.

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
use crate::messages::request::{self, conditions};
use crate::streams::{provision, shape};
use crate::wire::api::{WebhookSecret, WebhookStatus};

/// How long a deleted webhook stays, marked.
const DELETED_KEPT: Duration = Duration::from_secs(86_400);
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
    /// What proves that a delivery was made by a node: nobody else is shown it.
    pub feed_key: WebhookSecret,
    /// Whether it was deleted.
    #[serde(default)]
    pub deleted: bool,
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
    /// The server did not answer in time, so that it may be written; or it refused.
    pub async fn write(&self, webhook: &StoredWebhook, revision: u64) -> Result<bool, Error> {
        let headers = conditions(Some(revision), webhook.deleted.then_some(DELETED_KEPT));
        let key = entry_of(webhook.webhook.tenant.as_str(), webhook.webhook.id.as_str());
        match self.0.put_entry("control", &key, webhook, headers).await {
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
