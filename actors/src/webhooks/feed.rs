//! The feed: makes a job of each event that a webhook wants.
//!
//! The log is read by one durable consumer for each webhook, from which all nodes take. A message of the log is
//! acknowledged once all jobs of its events are durable; the id of a job's run is made of webhook and event, so that a
//! message that comes again makes no second one. The node that dies over one leaves it to the others, after a lease.
//!
//! Bounds: one message of the log at a time for each webhook; as many tasks as there are webhooks that are not paused.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::fingerprint::hex;
use longshore_backbone::ticks::pause;
use longshore_backbone::webhooks::{EventBatch, Pulled, StoredWebhook};
use longshore_backbone::wire::api::{ApiError, SubmitRequest, WEBHOOK_TYPE, WebhookStatus};
use longshore_backbone::wire::logged::Logged;
use longshore_domain::{Tenant, WebhookId};
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest as _, Sha256};
use tokio_util::task::AbortOnDropHandle;

use super::message::DeliveryPayload;
use super::settings;
use crate::api::{Api, intake};
use crate::runtime::supervision::LoopEnd;
use crate::runtime::{fail_point, now};
use crate::settings::WebhookSettings;

/// How often the webhooks are read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// How long a message stays away whose jobs were not taken.
const AWAY: Duration = Duration::from_secs(2);
/// More than a message of the log has events: its sequence times this, and the event's place, give the order.
const PLACES: u64 = 1 << 16;
/// Only a log that was made again has such sequences: they begin at the time in microseconds, beyond 2^50.
const MADE_AGAIN: u64 = 1 << 46;
/// Its places, so that the numbers fit into 63 bits: the shortest line has over 100 bytes, a message 384 KiB.
const PLACES_MADE_AGAIN: u64 = 1 << 12;

/// The tasks of the webhooks that are not paused.
type Fed = HashMap<(Tenant, WebhookId), AbortOnDropHandle<()>>;

/// Feeds until the process ends; nothing more is taken while the node drains.
pub(crate) async fn run(api: Arc<Api>) -> LoopEnd {
    let (mut fed, mut revision) = (Fed::new(), 0);
    loop {
        tokio::select! {
            () = api.lifecycle.draining.cancelled() => return std::future::pending().await,
            () = pause(READ_EVERY) => {}
        }
        match api.backbone.webhooks().written_after(None, revision).await {
            Ok((written, up_to)) => {
                revision = up_to;
                written.into_iter().for_each(|stored| take(&api, &mut fed, stored));
            }
            Err(error) => tracing::debug!("the webhooks cannot be read: {}", error.with_causes()),
        }
    }
}

/// Feeds a webhook from now on as it was written.
fn take(api: &Arc<Api>, fed: &mut Fed, stored: StoredWebhook) {
    let webhook = &stored.webhook;
    let key = (webhook.tenant.clone(), webhook.id.clone());
    // The former task ends in the midst of a message, if it must: that comes again.
    fed.remove(&key);
    if stored.deleted || webhook.paused {
        // Of one that was never fed here there is nothing to remove.
        let _ = api.metrics.webhook_lag.remove_label_values(&[webhook.tenant.as_str(), webhook.id.as_str()]);
        return;
    }
    let feed = Feed { api: Arc::clone(api), stored };
    fed.insert(key, AbortOnDropHandle::new(tokio::spawn(feed.run())));
}

struct Feed {
    api: Arc<Api>,
    stored: StoredWebhook,
}

impl Feed {
    async fn run(self) {
        let webhooks = self.api.backbone.webhooks();
        let mut puller = loop {
            match webhooks.puller(&self.stored.webhook).await {
                Ok(puller) => break puller,
                Err(error) => tracing::debug!("no events for a webhook: {}", error.with_causes()),
            }
            tokio::time::sleep(AWAY).await;
        };
        // Once the node drains no further message is asked for: it would be cut off in the midst of it.
        while !self.api.lifecycle.is_draining() {
            match puller.next().await {
                Pulled::Batch(batch) => self.pass_on(batch).await,
                Pulled::Nothing => self.lag(0.0),
                Pulled::NoAnswer => {}
                Pulled::NoConsumer => {
                    let webhook = &self.stored.webhook;
                    let made = match webhooks.find(&webhook.tenant, &webhook.id).await {
                        // It was deleted, and its consumer with it.
                        Ok((None, _)) => return,
                        Ok(_) => webhooks.make_consumer(webhook).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = made {
                        tracing::debug!("a webhook has no consumer: {}", error.with_causes());
                    }
                    tokio::time::sleep(AWAY).await;
                }
            }
        }
    }

    async fn pass_on(&self, batch: EventBatch) {
        let webhooks = self.api.backbone.webhooks();
        self.lag(now().since(batch.logged_at).as_secs_f64());
        fail_point::pass("before-webhook-jobs");
        match self.submit(&batch).await {
            Ok(()) => {
                fail_point::pass("after-webhook-jobs");
                webhooks.done(batch).await;
            }
            Err(error) => {
                tracing::warn!(webhook = %self.stored.webhook.id, "deliveries of a webhook wait: {}", error.message);
                webhooks.give_back(batch, AWAY).await;
            }
        }
    }

    fn lag(&self, seconds: f64) {
        let of = [self.stored.webhook.tenant.as_str(), self.stored.webhook.id.as_str()];
        self.api.metrics.webhook_lag.with_label_values(&of).set(seconds);
    }

    async fn submit(&self, batch: &EventBatch) -> Result<(), ApiError> {
        let filter = self.stored.webhook.filter();
        let lines = std::str::from_utf8(&batch.lines).unwrap_or_default().lines().enumerate();
        for (place, line) in lines {
            // A delivery has events, too, and would make another one of each.
            let Some(event) = Logged::read(line).filter(|event| event.job_type != WEBHOOK_TYPE) else { continue };
            if !filter.fits(&event) {
                continue;
            }
            let Ok(raw) = RawValue::from_string(line.to_owned()) else { continue };
            let sequence = place_of(batch.sequence, place);
            let run_id = run_id(&self.stored.webhook, event.identity(line), &event.at);
            let job = job(settings(&self.api)?, &self.stored, Some(run_id), sequence, raw)?;
            intake::submit_delivery(&self.api, &self.stored.webhook.tenant, job).await?;
        }
        Ok(())
    }
}

/// The job that delivers an event, of this place in the log.
pub(super) fn job(
    settings: &WebhookSettings,
    stored: &StoredWebhook,
    run_id: Option<String>,
    sequence: u64,
    event: Box<RawValue>,
) -> Result<SubmitRequest, ApiError> {
    let payload = DeliveryPayload::new(stored, sequence, event);
    Ok(SubmitRequest {
        job_type: WEBHOOK_TYPE.to_owned(),
        payload: Some(to_raw_value(&payload).map_err(|error| ApiError::malformed(error.to_string()))?),
        queue: Some(settings.queue.to_string()),
        priority: Some(settings.priority.number().into()),
        run_id,
        ..SubmitRequest::default()
    })
}

/// The number of an event, which grows along the log, also where the log was made again.
fn place_of(sequence: u64, line: usize) -> u64 {
    let places = if sequence < MADE_AGAIN { PLACES } else { PLACES_MADE_AGAIN };
    let line = u64::try_from(line).map_or(places - 1, |line| line.min(places - 1));
    sequence.saturating_mul(places).saturating_add(line)
}

/// The id of the run that delivers this event to this webhook: the same whenever the event is published again, which
/// leaves its time as it was. A later run that has an id anew has the same events at other times.
fn run_id(webhook: &WebhookStatus, event: &str, at: &str) -> String {
    let made = webhook.created_at.millis();
    let hash = Sha256::digest(format!("{made} {at} {event}"));
    format!("{}_{}", webhook.id, hex(&hash[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_along_the_log_also_where_it_was_made_again() {
        let made_again = 1_795_413_600_000_000;
        assert_eq!(place_of(19, 0), 1_245_184, "as documented");
        let places = [
            place_of(19, 3),
            place_of(20, 0),
            place_of(900_000_000_000, 4_000),
            place_of(made_again, 0),
            place_of(made_again, 2_600),
            place_of(made_again + 1, 0),
        ];
        assert!(places.is_sorted_by(|one, next| one < next), "{places:?}");
        assert!(i64::try_from(places[5]).is_ok(), "receivers read it as a number with a sign");
        assert!(place_of(19, usize::MAX) < place_of(20, 0) && place_of(u64::MAX, 7) > places[5]);
    }
}
