//! What a running node shows of itself to probes and to monitoring: its health and its metrics; and the ways to its API
//! and to its events for clients over HTTP.
//!
//! An observer itself only looks: it holds no job, sends nothing for one, and may be asked at any time, also while the
//! node drains. What is asked of the API through it, the API does.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::service::TraceContext;

use crate::cluster::counts::SharedCounts;
use crate::cluster::readiness::{Readiness, SILENT_TREE};
use crate::lease_keeper::Book;
use crate::limits::rate::Limits;
use crate::node::parts::Parts;
use crate::service::handle::ApiHandle;
use crate::streams::EventStreams;
use crate::trace::RequestSpan;

/// A view of a running node. Cheap to clone.
#[derive(Clone)]
pub struct Observer {
    readiness: Readiness,
    book: Arc<Book>,
    counts: Arc<SharedCounts>,
    limits: Arc<Limits>,
    streams: EventStreams,
    handle: ApiHandle,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observer").field("node", &self.readiness.identity.node).finish_non_exhaustive()
    }
}

impl Observer {
    pub(crate) fn new(parts: &Parts) -> Self {
        Self {
            readiness: parts.readiness(),
            book: Arc::clone(&parts.book),
            counts: Arc::default(),
            limits: Arc::clone(&parts.gates.limits),
            streams: parts.streams(),
            handle: ApiHandle::new(parts.service()),
        }
    }

    /// Opens streams of events.
    pub fn streams(&self) -> &EventStreams {
        &self.streams
    }

    /// Asks the API within the process.
    pub fn api(&self) -> &ApiHandle {
        &self.handle
    }

    /// Why the node takes no work, empty if it does, and what a person should know though it takes work, without what
    /// names a tenant.
    pub async fn reasons_and_warnings(&self) -> (Vec<String>, Vec<String>) {
        let status = self.readiness.status().await.shown_to_all();
        (status.reasons, status.warnings)
    }

    /// The faults on purpose that its attempts meet, in words.
    pub fn faults(&self) -> Vec<String> {
        self.readiness.faults()
    }

    /// What is wrong with the process itself, so that only another start helps; `None`: nothing, or it is ending by
    /// itself. Takes a second at most.
    pub async fn reason_not_alive(&self) -> Option<&'static str> {
        (!self.readiness.is_alive().await).then_some(SILENT_TREE)
    }

    /// A part that the node's own tree does not supervise may be started again: its count begins at 0.
    pub fn expect_restarts(&self, part: &'static str) {
        drop(self.readiness.metrics.restarts.with_label_values(&[part]));
    }

    /// Counts that a part which the node's own tree does not supervise was started again.
    pub fn count_restart(&self, part: &'static str) {
        self.readiness.metrics.restarts.with_label_values(&[part]).inc();
    }

    /// Counts a request that was answered over HTTP. The words of a route and a method are few, whatever clients send.
    pub fn count_request(&self, route: &str, method: &str, status: u16, took: Duration) {
        self.readiness.metrics.http_requests.with_label_values(&[route, method, status.to_string().as_str()]).inc();
        self.readiness.metrics.http_duration.with_label_values(&[route, method]).observe(took.as_secs_f64());
    }

    /// Begins the span of a request over HTTP, in its client's trace if it names one; `None`: there are no traces.
    pub fn request_span(&self, outer: Option<&TraceContext>) -> Option<RequestSpan> {
        self.handle.tracer().map(|tracer| RequestSpan::begin(tracer, outer))
    }

    /// Its metrics, in the text format of Prometheus. Waits up to two seconds for the servers, for the counts of the
    /// whole cluster; without an answer these are absent.
    pub async fn metrics(&self) -> String {
        let Readiness { backbone, identity, queues, health, routing, metrics, .. } = &self.readiness;
        let counts = self.counts.now(backbone, &self.limits, &identity.node, queues.loads()).await;
        // No other part keeps these gauges.
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (queue, load) in queues.loads() {
            metrics.workers.with_label_values(&[&queue]).set(number(load.concurrency));
            metrics.busy.with_label_values(&[&queue]).set(number(load.running));
        }
        for (actor, waiting) in self.readiness.waiting() {
            metrics.mailbox.with_label_values(&[actor]).set(number(waiting));
        }
        metrics.unresponsive_now.set(number(health.unresponsive()));
        metrics.leases_held.set(number(self.book.count()));
        metrics.lanes_unanswered.set(number(backbone.unanswered().len()));
        metrics.types_without_handler.set(number(routing.discovery.missing_handlers().len()));
        let second = backbone.second_replies();
        metrics.second_replies.inc_by(second.saturating_sub(metrics.second_replies.get()));
        metrics.ready.set(i64::from(self.readiness.status().await.status.reasons.is_empty()));
        metrics.text_with(counts.as_deref())
    }
}
