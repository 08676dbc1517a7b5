//! Every metric: its name, unit and labels, in one place.
//!
//! No label holds a run id, a tenant or an error's text, so their number is bounded by the configuration.

use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The metrics of one node.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// The registry that holds them.
    pub registry: Registry,
    /// `longshore_attempts_started_total`
    pub started: IntCounter,
    /// `longshore_runs_finished_total{state}`
    pub finished: IntCounterVec,
    /// `longshore_attempts_failed_total{kind}`
    pub failed: IntCounterVec,
    /// `longshore_jobs_deferred_total{reason}`
    pub deferred: IntCounterVec,
    /// `longshore_results_fenced_total`: results dropped because the run went on elsewhere.
    pub fenced: IntCounter,
    /// `longshore_leases_lost_total`
    pub leases_lost: IntCounter,
    /// `longshore_leases_judged_lost_total`: attempts of other holders that were settled as `lease_expired`.
    pub leases_judged_lost: IntCounter,
    /// `longshore_stale_reads_total`: records that were older than the delivered job.
    pub stale_reads: IntCounter,
    /// `longshore_poison_removed_total`: messages that no client library can read and that became dead letters.
    pub poison_removed: IntCounter,
    /// `longshore_connections_rebuilt_total{connection}`: connections to NATS made anew, whatever ended them.
    pub connections_rebuilt: IntCounterVec,
    /// `longshore_jobs_running{queue}`
    pub running: IntGaugeVec,
    /// `longshore_jobs_buffered{queue}`: pulled, not yet started.
    pub buffered: IntGaugeVec,
    /// `longshore_commits_in_flight`: finished jobs whose record or events are not confirmed yet.
    pub in_flight: IntGauge,
    /// `longshore_actor_restarts_total{actor}`
    pub restarts: IntCounterVec,
    /// `longshore_handlers_unresponsive_total{type}`: attempts whose handler neither ended in time nor reacted to its
    /// cancellation.
    pub unresponsive: IntCounterVec,
    /// `longshore_records_fill_ratio`: how full the stream of run records is; 1 stops all work.
    pub records_fill: Gauge,
    /// `longshore_dlq_fill_ratio`: how full the stream of dead letters is; at 1 the oldest go.
    pub dlq_fill: Gauge,
    /// `longshore_due_jobs_postponed_total`: due jobs that their lane did not take yet.
    pub due_postponed: IntCounter,
    /// `longshore_jobs_parked_total`: jobs that could not start and were parked.
    pub parked: IntCounter,
    /// `longshore_jobs_unparked_total`: parked jobs that were taken back.
    pub unparked: IntCounter,
    /// `longshore_lanes_full`: lanes that refuse due jobs because they are full.
    pub lanes_full: IntGauge,
    /// `longshore_overdue_restored_total`: jobs whose schedule had not fired and that were moved into their lanes all
    /// the same.
    pub overdue_restored: IntCounter,
    /// `longshore_runs_stranded_total`: runs that wait for a time that is over, with no message that could bring them
    /// on.
    pub stranded: IntCounter,
    /// `longshore_job_wait_seconds`: from enqueued or due to started.
    pub wait: Histogram,
    /// `longshore_attempt_duration_seconds`
    pub duration: Histogram,
}

const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

macro_rules! new_metric {
    (Histogram, $name:literal, $help:literal) => {
        Histogram::with_opts(HistogramOpts::new($name, $help).buckets(SECONDS.to_vec())).expect("a valid name")
    };
    ($kind:ident, $name:literal, $help:literal, $label:literal) => {
        $kind::new(Opts::new($name, $help), &[$label]).expect("a valid name")
    };
    ($kind:ident, $name:literal, $help:literal) => {
        $kind::new($name, $help).expect("a valid name")
    };
}

impl Metrics {
    /// New metrics in a registry of their own.
    ///
    /// # Panics
    /// Never: the names below are valid and different.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        let add = |metric: Box<dyn prometheus::core::Collector>| {
            registry.register(metric).expect("each name below is used once");
        };
        macro_rules! metric {
            ($($what:tt)*) => {{
                let metric = new_metric!($($what)*);
                add(Box::new(metric.clone()));
                metric
            }};
        }
        Self {
            started: metric!(IntCounter, "longshore_attempts_started_total", "Attempts started"),
            finished: metric!(IntCounterVec, "longshore_runs_finished_total", "Runs finished, by state", "state"),
            failed: metric!(IntCounterVec, "longshore_attempts_failed_total", "Attempts failed, by kind", "kind"),
            deferred: metric!(IntCounterVec, "longshore_jobs_deferred_total", "Jobs deferred, by reason", "reason"),
            fenced: metric!(IntCounter, "longshore_results_fenced_total", "Results dropped: the run went on elsewhere"),
            leases_lost: metric!(IntCounter, "longshore_leases_lost_total", "Leases lost by running jobs"),
            leases_judged_lost: metric!(
                IntCounter,
                "longshore_leases_judged_lost_total",
                "Attempts of silent holders settled as lease_expired"
            ),
            stale_reads: metric!(IntCounter, "longshore_stale_reads_total", "Records older than the delivered job"),
            poison_removed: metric!(IntCounter, "longshore_poison_removed_total", "Unreadable messages"),
            connections_rebuilt: metric!(
                IntCounterVec,
                "longshore_connections_rebuilt_total",
                "Connections to NATS made anew",
                "connection"
            ),
            running: metric!(IntGaugeVec, "longshore_jobs_running", "Jobs running on this node", "queue"),
            buffered: metric!(IntGaugeVec, "longshore_jobs_buffered", "Jobs pulled and not yet started", "queue"),
            in_flight: metric!(IntGauge, "longshore_commits_in_flight", "Commits not confirmed yet"),
            restarts: metric!(IntCounterVec, "longshore_actor_restarts_total", "Actors started again", "actor"),
            unresponsive: metric!(
                IntCounterVec,
                "longshore_handlers_unresponsive_total",
                "Handlers that did not respond",
                "type"
            ),
            records_fill: metric!(Gauge, "longshore_records_fill_ratio", "How full the stream of run records is"),
            dlq_fill: metric!(Gauge, "longshore_dlq_fill_ratio", "How full the stream of dead letters is"),
            parked: metric!(IntCounter, "longshore_jobs_parked_total", "Jobs that could not start and were parked"),
            unparked: metric!(IntCounter, "longshore_jobs_unparked_total", "Parked jobs taken back"),
            due_postponed: metric!(IntCounter, "longshore_due_jobs_postponed_total", "Due jobs postponed"),
            lanes_full: metric!(IntGauge, "longshore_lanes_full", "Lanes that refuse due jobs because they are full"),
            overdue_restored: metric!(IntCounter, "longshore_overdue_restored_total", "Overdue schedules recovered"),
            stranded: metric!(IntCounter, "longshore_runs_stranded_total", "Waiting runs without a message"),
            wait: metric!(Histogram, "longshore_job_wait_seconds", "From enqueued or due to started"),
            duration: metric!(Histogram, "longshore_attempt_duration_seconds", "How long attempts took"),
            registry,
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
