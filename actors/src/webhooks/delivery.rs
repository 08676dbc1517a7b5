//! The handler of `longshore.webhook`: one attempt to deliver one event.
//!
//! 2xx is success. 410 says that the target is gone: the webhook is paused, as it is when an event has failed for as
//! long as its retries last. While it is paused, its deliveries wait.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::Backbone;
use longshore_backbone::webhooks::StoredWebhook;
use longshore_domain::WebhookId;
use longshore_domain::run::DeferReason;
use serde_json::json;

use super::message::{DeliveryPayload, WebhookMessage};
use crate::handlers::handler::{BoxFuture, Context, Handler, HandlerError, Success};
use crate::metrics::Metrics;
use crate::runtime::now;
use crate::runtime::system_events::SystemEvents;
use crate::settings::WebhookCaller;

/// How long a delivery waits that meets a paused webhook: as long as it has waited already, so that it goes on soon
/// after a short pause; of a long one thousands may wait, and are to cost little.
const WHILE_PAUSED: Duration = Duration::from_secs(5);
const WHILE_PAUSED_MAX: Duration = Duration::from_secs(300);

pub(crate) struct Delivery {
    pub(crate) backbone: Backbone,
    pub(crate) caller: Arc<dyn WebhookCaller>,
    pub(crate) system_events: SystemEvents,
    pub(crate) metrics: Arc<Metrics>,
}

impl Delivery {
    async fn deliver(&self, context: &Context) -> Result<Success, HandlerError> {
        let payload: DeliveryPayload = context.json()?;
        let id = WebhookId::parse(&payload.webhook).map_err(|error| HandlerError::permanent(error.to_string()))?;
        let found = self.backbone.webhooks().find(&context.job.tenant, &id).await;
        let (found, _) = found.map_err(|error| HandlerError::retryable(error.with_causes()))?;
        let Some(stored) = found else { return Err(HandlerError::permanent(format!("there is no webhook {id}"))) };
        if !payload.is_proven(&stored) {
            return Err(HandlerError::permanent(format!(
                "payload: proof: no node made this delivery for webhook {id}"
            )));
        }
        if stored.webhook.paused {
            return Ok(Success::Snooze(self.while_paused(context).await));
        }
        let message = WebhookMessage::of(&payload, &stored.webhook.format);
        let message = message.ok_or_else(|| HandlerError::permanent("payload: event: is no event"))?;
        let outcome = self.post(&stored, message).await;
        let count = |outcome| self.metrics.webhook_deliveries.with_label_values(&[outcome]).inc();
        match outcome {
            Ok(status @ 200..=299) => {
                count("delivered");
                Ok(json!({"status": status}).into())
            }
            Ok(410) => {
                count("gone");
                self.pause(context, &id, "its target is gone: it answered 410").await?;
                Err(HandlerError::permanent("the target is gone: it answered 410, and the webhook is paused"))
            }
            failed => {
                count("failed");
                let why = match failed {
                    Ok(status) => format!("the target answered {status}"),
                    Err(why) => why,
                };
                if context.attempt >= context.max_attempts {
                    let reason = format!("an event could not be delivered in {} attempts: {why}", context.attempt);
                    self.pause(context, &id, &reason).await?;
                }
                Err(HandlerError::retryable(why))
            }
        }
    }

    /// How long to wait until it is looked whether the webhook is still paused.
    async fn while_paused(&self, context: &Context) -> Duration {
        let found = self.backbone.read_record(&context.job.tenant, &context.job.run_id).await.ok().flatten();
        let run = found.map(|found| found.run);
        let snoozed = run.as_ref().and_then(|run| run.deferred_for(DeferReason::Snoozed));
        next_look(snoozed.map(|deferral| now().since(deferral.since)))
    }

    async fn post(&self, stored: &StoredWebhook, message: WebhookMessage) -> Result<u16, String> {
        let at = now();
        let timestamp = at.millis() / 1_000;
        let headers = [
            ("content-type", message.content_type.to_owned()),
            ("user-agent", format!("longshore/{}", crate::runtime::VERSION)),
            ("webhook-signature", message.signed(&stored.keys(at), timestamp)),
            ("webhook-timestamp", timestamp.to_string()),
            ("webhook-id", message.id),
        ];
        self.caller.post(&stored.webhook.url, &headers, message.body.into()).await
    }

    /// Pauses a webhook, unless it was changed meanwhile, and says so.
    async fn pause(&self, context: &Context, id: &WebhookId, reason: &str) -> Result<(), HandlerError> {
        let failed = |error: longshore_backbone::Error| HandlerError::retryable(error.with_causes());
        let (webhooks, tenant) = (self.backbone.webhooks(), &context.job.tenant);
        let (Some(mut stored), revision) = webhooks.find(tenant, id).await.map_err(failed)? else { return Ok(()) };
        if stored.webhook.paused {
            return Ok(());
        }
        stored.webhook.paused = true;
        stored.webhook.paused_because = Some(reason.to_owned());
        stored.webhook.updated_at = now();
        if webhooks.write(&stored, revision).await.map_err(failed)? {
            tracing::warn!(webhook = %id, "a webhook is paused: {reason}");
            let details = json!({"webhook": id, "webhook_tenant": tenant, "reason": reason});
            self.system_events.publish("webhook_paused", details).await;
        }
        Ok(())
    }
}

/// The next wait of a delivery that has waited so long for the end of a pause.
fn next_look(waited: Option<Duration>) -> Duration {
    waited.unwrap_or_default().clamp(WHILE_PAUSED, WHILE_PAUSED_MAX)
}

impl Handler for Delivery {
    fn call(&self, context: Context) -> BoxFuture<'_, Result<Success, HandlerError>> {
        Box::pin(async move { self.deliver(&context).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_that_meets_a_pause_looks_again_within_the_time_that_it_has_waited_and_five_minutes_at_most() {
        let mut waited = Duration::ZERO;
        let mut looks = vec![next_look(None)];
        while waited < Duration::from_secs(1_000) {
            waited += looks[looks.len() - 1];
            looks.push(next_look(Some(waited)));
        }
        let seconds: Vec<u64> = looks.iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [5, 5, 10, 20, 40, 80, 160, 300, 300, 300, 300]);
    }
}
