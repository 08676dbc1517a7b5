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
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::Backbone;
use longshore_backbone::wire::api::WEBHOOK_TYPE;
use longshore_domain::{Priority, Queue};

use crate::Handlers;
use crate::cluster::system_events::SystemEvents;
use crate::handler::BoxFuture;
use crate::metrics::Metrics;
use delivery::Delivery;

/// Calls the targets of webhooks.
pub trait WebhookCaller: std::fmt::Debug + Send + Sync + 'static {
    /// Whether a URL may be called, as its name resolves now.
    ///
    /// # Errors
    /// Why not.
    fn check<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>>;

    /// Posts a body, and returns the status of the answer. No redirect is followed.
    ///
    /// # Errors
    /// Why there is no answer in time.
    fn post<'a>(&'a self, url: &'a str, headers: &'a [(&'static str, String)], body: Bytes) -> Posted<'a>;
}

/// The status of an answer, or why there is none.
pub type Posted<'a> = BoxFuture<'a, Result<u16, String>>;

/// How long a target may take to answer.
pub const WEBHOOK_WITHIN: Duration = Duration::from_secs(15);

/// How a node delivers webhooks.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Calls their targets.
    pub caller: Arc<dyn WebhookCaller>,
    /// The queue of the deliveries.
    pub queue: Queue,
    /// Their priority.
    pub priority: Priority,
}

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
