//! The list of a node's metrics: of each its kind, name, help and labels, once. What follows from that is made here:
//! the field that counts it, its registration, and its description, which docs/metrics.md is compared with.

use std::collections::HashSet;
use std::sync::Mutex;

use longshore_domain::SmolStr;
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use crate::metrics::history::{History, SECONDS};
use crate::metrics::jobs::{ByKind, Families};
use crate::metrics::{Described, cluster, process};

macro_rules! new_metric {
    (Histogram, $name:literal, $help:literal) => {
        Histogram::with_opts(HistogramOpts::new($name, $help).buckets(SECONDS.to_vec())).expect("a valid name")
    };
    (HistogramVec, $name:literal, $help:literal, $labels:expr) => {
        HistogramVec::new(HistogramOpts::new($name, $help).buckets(SECONDS.to_vec()), $labels).expect("a valid name")
    };
    ($kind:ident, $name:literal, $help:literal, $labels:expr) => {
        $kind::new(Opts::new($name, $help), $labels).expect("a valid name")
    };
    ($kind:ident, $name:literal, $help:literal) => {
        $kind::new($name, $help).expect("a valid name")
    };
}

/// What Prometheus calls the type that holds a metric here.
const fn kind_of(holder: &str) -> &'static str {
    match holder.as_bytes() {
        [b'H', ..] => "histogram",
        [b'G', ..] | [b'I', b'n', b't', b'G', ..] => "gauge",
        _ => "counter",
    }
}

/// Registers metrics, and keeps what they are called.
struct Register {
    registry: Registry,
    described: Vec<Described>,
}

impl Register {
    fn add(&mut self, metric: Box<dyn Collector>, kind: &'static str) {
        self.described.extend(metric.desc().into_iter().map(|desc| Described {
            name: desc.fq_name.clone(),
            labels: desc.variable_labels.clone(),
            kind,
        }));
        self.registry.register(metric).expect("each name of the list is used once");
    }
}

macro_rules! metric {
    ($register:ident, $kind:ident, $($what:tt)*) => {{
        let metric = new_metric!($kind, $($what)*);
        $register.add(Box::new(metric.clone()), kind_of(stringify!($kind)));
        metric
    }};
}

/// The metrics of the node as a whole.
macro_rules! of_the_node {
    ($($(#[doc = $doc:literal])* $field:ident: $kind:ident($name:literal, $help:literal $(, [$($label:literal),+])?)),+ $(,)?) => {
        /// The metrics of one node.
        #[derive(Debug)]
        pub struct Metrics {
            /// The registry that holds them.
            pub registry: Registry,
            /// By queue and type.
            pub(crate) jobs: ByKind,
            /// What was counted in the last hour.
            pub(super) history: Mutex<History>,
            $(
                #[doc = concat!("`", $name, "`: ", $help, ".")]
                #[doc = ""]
                $(#[doc = $doc])*
                pub $field: $kind,
            )+
            pub(super) process: process::Process,
            pub(super) described: Vec<Described>,
        }

        impl Metrics {
            /// New metrics in a registry of their own. Jobs of the `known` types have series of their own, however many
            /// other types there are.
            ///
            /// # Panics
            /// Never: the names below are valid and different.
            pub fn new(known: impl IntoIterator<Item = SmolStr>) -> Self {
                let mut described = cluster::described();
                described.extend(process::described());
                let mut register = Register { registry: Registry::new(), described };
                let jobs = ByKind::new(families(&mut register), known.into_iter().collect::<HashSet<_>>());
                $(let $field = metric!(register, $kind, $name, $help $(, &[$($label),+])?);)+
                let Register { registry, described } = register;
                let metrics = Self { registry, jobs, history: Mutex::default(), $($field,)+ process: process::Process::new(), described };
                metrics.begin_at_zero();
                metrics
            }
        }
    };
}

/// The metrics by queue and type, and by what else is named after the help.
macro_rules! by_queue_and_type {
    ($($field:ident: $kind:ident($name:literal, $help:literal $(, $label:literal)?)),+ $(,)?) => {
        fn families(register: &mut Register) -> Families {
            Families { $($field: metric!(register, $kind, $name, $help, &["queue", "type" $(, $label)?])),+ }
        }
    };
}

by_queue_and_type! {
    submitted: IntCounterVec("longshore_jobs_submitted_total", "Jobs accepted by submit"),
    enqueued: IntCounterVec("longshore_jobs_enqueued_total", "Jobs enqueued, as the event of that name says it"),
    started: IntCounterVec("longshore_attempts_started_total", "Attempts started"),
    failed: IntCounterVec("longshore_attempts_failed_total", "Attempts failed", "kind"),
    retried: IntCounterVec("longshore_attempts_retried_total", "Failed attempts after which another is due"),
    finished: IntCounterVec("longshore_runs_finished_total", "Runs finished", "state"),
    wait: HistogramVec("longshore_job_wait_seconds", "From enqueued or due to started"),
    duration: HistogramVec("longshore_attempt_duration_seconds", "How long attempts took"),
    total: HistogramVec("longshore_job_total_seconds", "From enqueued or due to the end of the run"),
    unresponsive: IntCounterVec(
        "longshore_handlers_unresponsive_total",
        "Handlers that neither ended in time nor reacted to their cancellation"
    ),
}

of_the_node! {
    /// Jobs that `submit` refused, under the word of its error; bare publishes that the settings do not take, under
    /// `invalid`.
    refused: IntCounterVec("longshore_jobs_refused_total", "Jobs that were not taken", ["reason"]),
    deduplicated: IntCounter("longshore_jobs_deduplicated_total", "Submissions answered with a run that was there"),
    deferred: IntCounterVec("longshore_jobs_deferred_total", "Jobs deferred", ["reason"]),
    shed: IntCounterVec(
        "longshore_jobs_shed_total",
        "Jobs given up without being started, as they came too late",
        ["reason"]
    ),
    replayed: IntCounter("longshore_jobs_replayed_total", "Dead letters replayed"),
    lateness: Histogram(
        "longshore_schedule_lateness_seconds",
        "From the time of a schedule to its job being in its lane"
    ),
    fenced: IntCounter("longshore_results_fenced_total", "Results dropped: the run went on elsewhere"),
    leases_lost: IntCounter("longshore_leases_lost_total", "Leases lost by running jobs"),
    leases_judged_lost: IntCounter(
        "longshore_leases_judged_lost_total",
        "Attempts of silent holders settled as lease_expired"
    ),
    stale_reads: IntCounter("longshore_stale_reads_total", "Records older than the delivered job"),
    poison_removed: IntCounter("longshore_poison_removed_total", "Unreadable messages made dead letters"),
    second_replies: IntCounter("longshore_second_replies_total", "Second replies of handlers to one request"),
    /// Connections to NATS made anew, whatever ended them.
    connections_rebuilt: IntCounterVec(
        "longshore_connections_rebuilt_total",
        "Connections to NATS made anew",
        ["connection"]
    ),
    workers: IntGaugeVec("longshore_workers", "Workers of this node", ["queue"]),
    busy: IntGaugeVec("longshore_workers_busy", "Workers of this node that have a job", ["queue"]),
    buffered: IntGaugeVec("longshore_jobs_buffered", "Jobs pulled by this node and not yet started", ["queue"]),
    /// Of 512 places.
    commits_waiting: IntGauge("longshore_commits_waiting", "Decisions that wait for the committer"),
    /// Finished jobs whose record or events are not confirmed yet.
    in_flight: IntGauge("longshore_commits_in_flight", "Decisions that are not confirmed yet"),
    log_lag: Gauge("longshore_event_log_lag_seconds", "How long the oldest unconfirmed batch of events has waited"),
    event_publish: Histogram(
        "longshore_event_publish_seconds",
        "From a batch of events being sent to its confirmation"
    ),
    publishes_repeated: IntCounter(
        "longshore_publishes_repeated_total",
        "Records and batches of events sent again, as no answer came"
    ),
    pull_silence: GaugeVec(
        "longshore_pull_silence_seconds",
        "Since the server last answered a lane's pull",
        ["queue", "lane"]
    ),
    on_its_way: HistogramVec(
        "longshore_lane_delivery_seconds",
        "From a job being stored, or the node asking for jobs if that is later, to its arrival",
        ["queue", "lane"]
    ),
    leases_held: IntGauge("longshore_leases_held", "Jobs whose leases the node renews"),
    log_refused: IntCounter("longshore_event_log_refused_total", "Batches of events refused and sent again"),
    /// 0 closed, 1 half-open, 2 open; the worst of a type's breakers.
    breaker_state: IntGaugeVec("longshore_breaker_state", "State of circuit breakers", ["type"]),
    mailbox: IntGaugeVec("longshore_mailbox_messages", "Messages that wait for parts of the node", ["actor"]),
    /// `cpu`, `memory`, `memory_stall`.
    pressure: GaugeVec("longshore_pressure_ratio", "How short the machine is", ["resource"]),
    /// How far the node holds back for want of `cpu`, `memory`.
    held_back: IntGaugeVec("longshore_held_back_steps", "By how many halves the node pulls less", ["resource"]),
    restarts: IntCounterVec("longshore_actor_restarts_total", "Parts of the node started again", ["actor"]),
    /// Handlers that now neither end nor react to their cancellation.
    unresponsive_now: IntGauge("longshore_handlers_unresponsive", "Handlers that do not respond now"),
    lanes_unanswered: IntGauge("longshore_lanes_unanswered", "Lanes whose consumer no server answers for"),
    /// Types, of one tenant each, for which the node finds no handler.
    types_without_handler: IntGauge("longshore_types_without_handler", "Types for which the node finds no handler"),
    /// Negative: behind.
    clock_ahead: Gauge("longshore_clock_ahead_seconds", "How far this machine's clock is ahead of the NATS server's"),
    ready: IntGauge("longshore_ready", "1 if the node takes work"),
    /// How full the stream of run records is; 1 stops all work.
    records_fill: Gauge("longshore_records_fill_ratio", "How full the stream of run records is"),
    /// How full the stream of dead letters is; at 1 the oldest go.
    dlq_fill: Gauge("longshore_dlq_fill_ratio", "How full the stream of dead letters is"),
    due_postponed: IntCounter("longshore_due_jobs_postponed_total", "Due jobs that their lane did not take yet"),
    parked: IntCounter("longshore_jobs_parked_total", "Jobs that could not start and were parked"),
    forwarded: IntCounter(
        "longshore_jobs_moved_forward_total",
        "Jobs moved forward in their queue for their tenant's share"
    ),
    unparked: IntCounter("longshore_jobs_unparked_total", "Parked jobs taken back"),
    key_buckets_full: IntGauge("longshore_key_buckets_full", "Buckets that have no room for more keys"),
    lanes_full: IntGauge("longshore_lanes_full", "Lanes that refuse due jobs because they are full"),
    /// What the server or a dead node should have brought on.
    overdue_restored: IntCounterVec("longshore_overdue_restored_total", "What was overdue and was brought on", ["what"]),
    /// Runs that wait for a time that is over, with no message that could bring them on.
    stranded: IntCounter("longshore_runs_stranded_total", "Open runs without a message"),
    /// Lanes that held jobs and delivered none, though nodes asked for them; counted again each minute.
    lane_standstills: IntCounter("longshore_lane_standstills_total", "Lanes that held jobs and delivered none"),
    streams_remade: IntCounter("longshore_streams_remade_total", "Deleted streams made again, empty"),
    faults_injected: IntCounterVec(
        "longshore_faults_injected_total",
        "Faults on purpose that attempts have met",
        ["kind"]
    ),
    webhook_deliveries: IntCounterVec(
        "longshore_webhook_deliveries_total",
        "Attempts to deliver an event to a webhook",
        ["outcome"]
    ),
    webhook_lag: GaugeVec(
        "longshore_webhook_lag_seconds",
        "Age of the events that were last taken for a webhook",
        ["tenant", "webhook"]
    ),
    streams_open: IntGauge("longshore_event_streams_open", "Streams of events that clients of this node follow"),
    /// `route` is that of a declaration, or `none`.
    http_requests: IntCounterVec(
        "longshore_http_requests_total",
        "Requests answered over HTTP",
        ["route", "method", "status"]
    ),
    /// A stream of events is answered as it begins.
    http_duration: HistogramVec(
        "longshore_http_request_duration_seconds",
        "From the head of a request to the head of its answer",
        ["route", "method"]
    ),
    audit_records: IntCounter("longshore_audit_records_total", "Entries of the audit stored"),
    /// `stream`, `file`, `events_file`.
    audit_failures: IntCounterVec(
        "longshore_audit_failures_total",
        "Entries of the audit that could not be stored",
        ["to"]
    ),
    spans_exported: IntCounter("longshore_spans_exported_total", "Spans of traces exported"),
    /// `queue_full`, `not_exported`.
    spans_dropped: IntCounterVec(
        "longshore_spans_dropped_total",
        "Spans of traces lost; jobs are not affected",
        ["reason"]
    ),
}
