//! Whether this node takes work, and why not: what the endpoint `health` and the probe `/readyz` answer.
//!
//! It looks at what the node knows already, and asks no server, so that a probe is cheap and never waits.

use std::sync::Arc;

use longshore_backbone::Backbone;
use longshore_backbone::connect::Link;
use longshore_backbone::control::MissingHandler;
use longshore_backbone::wire::api::{Counters, HealthStatus};

use crate::metrics::Metrics;
use crate::queue::dispatcher::Dispatcher;
use crate::queue::unresponsive::SPARE_THREADS;
use crate::shared::health::Health;
use crate::shared::identity::Identity;
use crate::shared::lifecycle::Lifecycle;
use crate::shared::pressure::MachinePressure;
use crate::shared::routing::Routing;

/// What readiness rests on.
#[derive(Clone)]
pub(crate) struct Readiness {
    pub(crate) backbone: Backbone,
    pub(crate) identity: Arc<Identity>,
    /// The queues that this node serves.
    pub(crate) queues: Vec<Arc<Dispatcher>>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) routing: Arc<Routing>,
    pub(crate) health: Arc<Health>,
    pub(crate) pressure: Arc<MachinePressure>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Readiness {
    /// The health of this node now.
    pub(crate) fn status(&self) -> HealthStatus {
        let mut reasons = Vec::new();
        if !self.backbone.is_connected() {
            reasons.push("not connected to NATS".to_owned());
        }
        if self.lifecycle.is_draining() {
            reasons.push("draining".to_owned());
        }
        let unresponsive = self.health.unresponsive();
        if unresponsive > SPARE_THREADS {
            reasons.push(format!("{unresponsive} handlers neither end in time nor react to their cancellation"));
        }
        if self.health.are_records_full() {
            reasons.push("the stream of run records is full (storage.runs_max_records)".to_owned());
        }
        let unanswered = self.backbone.unanswered();
        if !unanswered.is_empty() {
            reasons.push(format!("no server answers for the consumer of {}", unanswered.join(", ")));
        }
        let silent = self.backbone.silent_writes();
        if !silent.is_empty() {
            let places = silent.iter().map(|(place, since)| format!("{place} (for {} s)", since.as_secs()));
            reasons.push(format!(
                "NATS stores nothing in {}, and does not say why: its disk may be full or read-only, as its own log \
                 would say, or most replicas of the stream are away",
                places.collect::<Vec<_>>().join(", ")
            ));
        }
        let full = self.health.full_lanes();
        let full = full.iter().map(|(queue, priority)| {
            format!("queue {queue} is full at priority {}: its due jobs wait", priority.number())
        });
        let rebuilt = self.backbone.connections().into_iter().map(Link::rebuilt).sum();
        let counters = Counters {
            connections_rebuilt: rebuilt,
            overdue_restored: self.metrics.overdue_restored.get(),
            poison_removed: self.backbone.poison_removed(),
            stale_reads: self.metrics.stale_reads.get(),
        };
        HealthStatus {
            counters,
            live: true,
            node: self.identity.node.to_string(),
            queues: self.queues.iter().map(|queue| queue.name.to_string()).collect(),
            ready: reasons.is_empty(),
            reasons,
            version: crate::VERSION.to_owned(),
            warnings: full
                .chain(self.health.unserved())
                .chain(self.pressure.warning())
                .chain(self.without_handler())
                .collect(),
        }
    }

    /// The types for which this node finds no handler.
    fn without_handler(&self) -> impl Iterator<Item = String> {
        self.routing.discovery.missing_handlers().into_iter().map(|missing| {
            let MissingHandler { tenant, job_type, since, .. } = missing;
            let subject = self.routing.subject_of(&tenant, &job_type);
            format!("no handler for {job_type} of tenant {tenant} since {since}: handlers subscribe to {subject}")
        })
    }
}
