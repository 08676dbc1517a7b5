//! Webhooks: the events of a tenant's runs are posted to its URLs.
//!
//! `endpoints` makes and changes them; `feed` turns each event that a webhook wants into a job of type
//! `longshore.webhook`, by one durable consumer of the event log for each webhook; `delivery` is the handler of those
//! jobs, and `message` what it sends. So a delivery is retried, listed and replayed as every job is.

mod delivery;
pub(crate) mod endpoints;
pub(crate) mod feed;
mod message;

use std::sync::Arc;

use longshore_backbone::Backbone;
use longshore_backbone::wire::api::{ApiError, Code, WEBHOOK_TYPE};

use crate::api::Api;
use crate::handlers::handler::Handlers;
use crate::metrics::Metrics;
use crate::runtime::system_events::SystemEvents;
use crate::settings::WebhookSettings;
use delivery::Delivery;

/// The handlers of a node, with that of the deliveries if it calls anybody.
pub(crate) fn serve(
    handlers: Handlers,
    settings: Option<&WebhookSettings>,
    backbone: &Backbone,
    system_events: &SystemEvents,
    metrics: &Arc<Metrics>,
) -> Handlers {
    let Some(settings) = settings else { return handlers };
    let delivery = Delivery {
        backbone: backbone.clone(),
        caller: Arc::clone(&settings.caller),
        system_events: system_events.clone(),
        metrics: Arc::clone(metrics),
    };
    handlers.with_everywhere(WEBHOOK_TYPE, delivery)
}

fn settings(api: &Api) -> Result<&WebhookSettings, ApiError> {
    let none = || ApiError::new(Code::Forbidden, "this node calls nobody: it was built without HTTP");
    api.webhooks.as_ref().ok_or_else(none)
}
