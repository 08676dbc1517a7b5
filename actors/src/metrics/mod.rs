//! Every metric: its name, help and labels, in one place.
//!
//! Read in this order: this file (what the node counts), `jobs` (by queue and type, on the way of every job), `cluster`
//! (what all nodes show alike), `process`. No label holds a run id or an error's text, and the number of types that
//! have series of their own is bounded, so that no client can make a node's memory grow.

use std::collections::HashSet;

use longshore_backbone::wire::api::Code;
use longshore_domain::run::DeferReason;
use longshore_domain::{ErrorKind, Job, JobType, Queue, Run, RunState, SmolStr, events};
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

pub mod jobs;

pub(crate) mod cluster;
mod process;

use cluster::ClusterCounts;
use jobs::{ByKind, Decision, Ends, Families, JobMetrics, REFUSALS};

/// The metrics of one node.
#[derive(Debug)]
pub struct Metrics {
    /// The registry that holds them.
    pub registry: Registry,
    /// By queue and type.
    pub(crate) jobs: ByKind,
    /// `longshore_jobs_refused_total{reason}`: jobs that `submit` refused, under the word of its error; bare publishes
    /// that the settings do not take, under `invalid`.
    pub refused: IntCounterVec,
    /// `longshore_jobs_deduplicated_total`: submissions that were answered with a run that was there.
    pub deduplicated: IntCounter,
    /// `longshore_jobs_deferred_total{reason}`
    pub deferred: IntCounterVec,
    /// `longshore_jobs_shed_total{reason}`: jobs that were given up without being started, because they came too late.
    pub shed: IntCounterVec,
    /// `longshore_jobs_replayed_total`
    pub replayed: IntCounter,
    /// `longshore_schedule_lateness_seconds`: from the time of a schedule to the job being in its lane.
    pub lateness: Histogram,
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
    /// `longshore_workers{queue}`
    pub workers: IntGaugeVec,
    /// `longshore_workers_busy{queue}`
    pub busy: IntGaugeVec,
    /// `longshore_jobs_buffered{queue}`: pulled, not yet started.
    pub buffered: IntGaugeVec,
    /// `longshore_commits_waiting`: decisions that wait for the committer, of 512 places.
    pub commits_waiting: IntGauge,
    /// `longshore_commits_in_flight`: finished jobs whose record or events are not confirmed yet.
    pub in_flight: IntGauge,
    /// `longshore_event_log_lag_seconds`: how long the oldest batch of events has waited for its confirmation.
    pub log_lag: Gauge,
    /// `longshore_event_publish_seconds`: from a batch of events being sent to its confirmation by the log.
    pub event_publish: Histogram,
    /// `longshore_publishes_repeated_total`: records and batches of events that were sent again, as no answer came.
    pub publishes_repeated: IntCounter,
    /// `longshore_pull_silence_seconds{queue,lane}`: since the server last said anything about a lane's pull.
    pub pull_silence: GaugeVec,
    /// `longshore_leases_held`: jobs whose leases the node renews.
    pub leases_held: IntGauge,
    /// `longshore_event_log_refused_total`: batches of events that the log refused and that were sent again.
    pub log_refused: IntCounter,
    /// `longshore_breaker_state{type}`: 0 closed, 1 half-open, 2 open; the worst of a type's breakers.
    pub breaker_state: IntGaugeVec,
    /// `longshore_mailbox_messages{actor}`: messages that wait for a part of the node.
    pub mailbox: IntGaugeVec,
    /// `longshore_pressure_ratio{resource}`: `cpu`, `memory`, `memory_stall`.
    pub pressure: GaugeVec,
    /// `longshore_held_back_steps{resource}`: how far the node holds back for want of `cpu`, `memory`.
    pub held_back: IntGaugeVec,
    /// `longshore_actor_restarts_total{actor}`
    pub restarts: IntCounterVec,
    /// `longshore_handlers_unresponsive`: handlers that now neither end nor react to their cancellation.
    pub unresponsive_now: IntGauge,
    /// `longshore_lanes_unanswered`: lanes whose consumer no server answers for.
    pub lanes_unanswered: IntGauge,
    /// `longshore_types_without_handler`: types, of one tenant each, for which the node finds no handler.
    pub types_without_handler: IntGauge,
    /// `longshore_ready`: 1 if the node takes work.
    pub ready: IntGauge,
    /// `longshore_records_fill_ratio`: how full the stream of run records is; 1 stops all work.
    pub records_fill: Gauge,
    /// `longshore_dlq_fill_ratio`: how full the stream of dead letters is; at 1 the oldest go.
    pub dlq_fill: Gauge,
    /// `longshore_due_jobs_postponed_total`: due jobs that their lane did not take yet.
    pub due_postponed: IntCounter,
    /// `longshore_jobs_parked_total`: jobs that could not start and were parked.
    pub parked: IntCounter,
    /// `longshore_jobs_moved_forward_total`: jobs that were moved forward in their queue for their tenant's share.
    pub forwarded: IntCounter,
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
    /// `longshore_streams_remade_total`: streams that somebody had deleted, and that this node made again.
    pub streams_remade: IntCounter,
    /// `longshore_audit_records_total`: entries of the audit that were stored.
    pub audit_records: IntCounter,
    /// `longshore_audit_failures_total{to}`: entries that were not: `stream`, `file`.
    pub audit_failures: IntCounterVec,
    /// `longshore_spans_exported_total`
    pub spans_exported: IntCounter,
    /// `longshore_spans_dropped_total{reason}`: `queue_full`, `not_exported`.
    pub spans_dropped: IntCounterVec,
    process: process::Process,
    described: Vec<Described>,
}

/// What a metric is called, and by which labels its series differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
}

const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

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

impl Metrics {
    /// New metrics in a registry of their own. Jobs of the `known` types have series of their own, however many other
    /// types there are.
    ///
    /// # Panics
    /// Never: the names below are valid and different.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a list of metrics, each with its name and its help")]
    pub fn new(known: impl IntoIterator<Item = SmolStr>) -> Self {
        let registry = Registry::new();
        let mut described = cluster::described();
        described.extend(process::described());
        let mut add = |metric: Box<dyn Collector>, kind: &'static str| {
            described.extend(metric.desc().into_iter().map(|desc| Described {
                name: desc.fq_name.clone(),
                labels: desc.variable_labels.clone(),
                kind,
            }));
            registry.register(metric).expect("each name below is used once");
        };
        macro_rules! metric {
            ($holder:ident, $($what:tt)*) => {{
                let metric = new_metric!($holder, $($what)*);
                add(Box::new(metric.clone()), kind_of(stringify!($holder)));
                metric
            }};
        }
        let of_job = &["queue", "type"];
        let families = Families {
            submitted: metric!(IntCounterVec, "longshore_jobs_submitted_total", "Jobs accepted by submit", of_job),
            enqueued: metric!(
                IntCounterVec,
                "longshore_jobs_enqueued_total",
                "Jobs enqueued, as the event of that name says it",
                of_job
            ),
            started: metric!(IntCounterVec, "longshore_attempts_started_total", "Attempts started", of_job),
            failed: metric!(
                IntCounterVec,
                "longshore_attempts_failed_total",
                "Attempts failed",
                &["queue", "type", "kind"]
            ),
            retried: metric!(
                IntCounterVec,
                "longshore_attempts_retried_total",
                "Failed attempts after which another is due",
                of_job
            ),
            finished: metric!(
                IntCounterVec,
                "longshore_runs_finished_total",
                "Runs finished",
                &["queue", "type", "state"]
            ),
            wait: metric!(HistogramVec, "longshore_job_wait_seconds", "From enqueued or due to started", of_job),
            duration: metric!(HistogramVec, "longshore_attempt_duration_seconds", "How long attempts took", of_job),
            total: metric!(
                HistogramVec,
                "longshore_job_total_seconds",
                "From enqueued or due to the end of the run",
                of_job
            ),
            unresponsive: metric!(
                IntCounterVec,
                "longshore_handlers_unresponsive_total",
                "Handlers that neither ended in time nor reacted to their cancellation",
                of_job
            ),
        };
        let metrics = Self {
            jobs: ByKind::new(families, known.into_iter().collect::<HashSet<_>>()),
            refused: metric!(IntCounterVec, "longshore_jobs_refused_total", "Jobs that were not taken", &["reason"]),
            deduplicated: metric!(
                IntCounter,
                "longshore_jobs_deduplicated_total",
                "Submissions answered with a run that was there"
            ),
            deferred: metric!(IntCounterVec, "longshore_jobs_deferred_total", "Jobs deferred", &["reason"]),
            shed: metric!(
                IntCounterVec,
                "longshore_jobs_shed_total",
                "Jobs given up without being started, as they came too late",
                &["reason"]
            ),
            replayed: metric!(IntCounter, "longshore_jobs_replayed_total", "Dead letters replayed"),
            lateness: metric!(
                Histogram,
                "longshore_schedule_lateness_seconds",
                "From the time of a schedule to its job being in its lane"
            ),
            fenced: metric!(IntCounter, "longshore_results_fenced_total", "Results dropped: the run went on elsewhere"),
            leases_lost: metric!(IntCounter, "longshore_leases_lost_total", "Leases lost by running jobs"),
            leases_judged_lost: metric!(
                IntCounter,
                "longshore_leases_judged_lost_total",
                "Attempts of silent holders settled as lease_expired"
            ),
            stale_reads: metric!(IntCounter, "longshore_stale_reads_total", "Records older than the delivered job"),
            poison_removed: metric!(
                IntCounter,
                "longshore_poison_removed_total",
                "Unreadable messages made dead letters"
            ),
            connections_rebuilt: metric!(
                IntCounterVec,
                "longshore_connections_rebuilt_total",
                "Connections to NATS made anew",
                &["connection"]
            ),
            workers: metric!(IntGaugeVec, "longshore_workers", "Workers of this node", &["queue"]),
            busy: metric!(IntGaugeVec, "longshore_workers_busy", "Workers of this node that have a job", &["queue"]),
            buffered: metric!(
                IntGaugeVec,
                "longshore_jobs_buffered",
                "Jobs pulled by this node and not yet started",
                &["queue"]
            ),
            commits_waiting: metric!(IntGauge, "longshore_commits_waiting", "Decisions that wait for the committer"),
            in_flight: metric!(IntGauge, "longshore_commits_in_flight", "Decisions that are not confirmed yet"),
            log_lag: metric!(
                Gauge,
                "longshore_event_log_lag_seconds",
                "How long the oldest unconfirmed batch of events has waited"
            ),
            event_publish: metric!(
                Histogram,
                "longshore_event_publish_seconds",
                "From a batch of events being sent to its confirmation"
            ),
            publishes_repeated: metric!(
                IntCounter,
                "longshore_publishes_repeated_total",
                "Records and batches of events sent again, as no answer came"
            ),
            pull_silence: metric!(
                GaugeVec,
                "longshore_pull_silence_seconds",
                "Since the server last answered a lane's pull",
                &["queue", "lane"]
            ),
            leases_held: metric!(IntGauge, "longshore_leases_held", "Jobs whose leases the node renews"),
            log_refused: metric!(
                IntCounter,
                "longshore_event_log_refused_total",
                "Batches of events refused and sent again"
            ),
            breaker_state: metric!(IntGaugeVec, "longshore_breaker_state", "State of circuit breakers", &["type"]),
            mailbox: metric!(
                IntGaugeVec,
                "longshore_mailbox_messages",
                "Messages that wait for parts of the node",
                &["actor"]
            ),
            pressure: metric!(GaugeVec, "longshore_pressure_ratio", "How short the machine is", &["resource"]),
            held_back: metric!(
                IntGaugeVec,
                "longshore_held_back_steps",
                "By how many halves the node pulls less",
                &["resource"]
            ),
            restarts: metric!(
                IntCounterVec,
                "longshore_actor_restarts_total",
                "Parts of the node started again",
                &["actor"]
            ),
            unresponsive_now: metric!(IntGauge, "longshore_handlers_unresponsive", "Handlers that do not respond now"),
            lanes_unanswered: metric!(
                IntGauge,
                "longshore_lanes_unanswered",
                "Lanes whose consumer no server answers for"
            ),
            types_without_handler: metric!(
                IntGauge,
                "longshore_types_without_handler",
                "Types for which the node finds no handler"
            ),
            ready: metric!(IntGauge, "longshore_ready", "1 if the node takes work"),
            records_fill: metric!(Gauge, "longshore_records_fill_ratio", "How full the stream of run records is"),
            dlq_fill: metric!(Gauge, "longshore_dlq_fill_ratio", "How full the stream of dead letters is"),
            due_postponed: metric!(
                IntCounter,
                "longshore_due_jobs_postponed_total",
                "Due jobs that their lane did not take yet"
            ),
            parked: metric!(IntCounter, "longshore_jobs_parked_total", "Jobs that could not start and were parked"),
            forwarded: metric!(
                IntCounter,
                "longshore_jobs_moved_forward_total",
                "Jobs moved forward in their queue for their tenant's share"
            ),
            unparked: metric!(IntCounter, "longshore_jobs_unparked_total", "Parked jobs taken back"),
            lanes_full: metric!(IntGauge, "longshore_lanes_full", "Lanes that refuse due jobs because they are full"),
            overdue_restored: metric!(IntCounter, "longshore_overdue_restored_total", "Overdue schedules recovered"),
            stranded: metric!(IntCounter, "longshore_runs_stranded_total", "Open runs without a message"),
            streams_remade: metric!(IntCounter, "longshore_streams_remade_total", "Deleted streams made again, empty"),
            audit_records: metric!(IntCounter, "longshore_audit_records_total", "Entries of the audit stored"),
            audit_failures: metric!(
                IntCounterVec,
                "longshore_audit_failures_total",
                "Entries of the audit that could not be stored",
                &["to"]
            ),
            spans_exported: metric!(IntCounter, "longshore_spans_exported_total", "Spans of traces exported"),
            spans_dropped: metric!(
                IntCounterVec,
                "longshore_spans_dropped_total",
                "Spans of traces lost; jobs are not affected",
                &["reason"]
            ),
            process: process::Process::new(),
            described,
            registry,
        };
        metrics.begin_at_zero();
        metrics
    }

    /// What may never happen has its series from the start, so that a rate sees the first one.
    fn begin_at_zero(&self) {
        let refusals = REFUSALS.map(Code::word);
        let deferrals = DeferReason::ALL.map(DeferReason::as_str);
        let all: [(&IntCounterVec, &[&str]); 7] = [
            (&self.refused, &refusals),
            (&self.refused, &["invalid"]),
            (&self.deferred, &deferrals),
            (&self.shed, &["expired", "deadline", "no_time_left"]),
            (&self.audit_failures, &["stream", "file", "events_file"]),
            (&self.spans_dropped, &["queue_full", "not_exported"]),
            (&self.connections_rebuilt, &["jobs", "control", "api", "work"]),
        ];
        for (of, values) in all {
            values.iter().for_each(|value| drop(of.with_label_values(&[*value])));
        }
    }

    /// The counters of jobs of this queue and type.
    pub(crate) fn of(&self, job: &Job) -> &JobMetrics {
        self.jobs.of(job.queue.as_str(), job.job_type.as_str())
    }

    /// Jobs of these types may come in that queue: their series begin at 0, so that a rate sees the first one.
    pub(crate) fn expect_types<'t>(&self, queue: &Queue, types: impl Iterator<Item = &'t JobType>) {
        for job_type in types {
            self.jobs.of(queue.as_str(), job_type.as_str());
        }
    }

    /// A decision about a run is stored. Its end is counted in `ends`.
    pub(crate) fn decided(&self, run: &Run, decision: Decision, ends: &mut Ends) {
        match decision {
            Decision::Failed(kind) => self.attempt_failed(run, kind),
            Decision::Deferred(reason) => {
                if events::tells_last_deferral(run) {
                    self.deferred.with_label_values(&[reason.as_str()]).inc();
                }
            }
            Decision::Parked => self.parked(run),
            Decision::Other => {}
        }
        if run.state.is_terminal() {
            ends.add(run, &self.jobs);
        }
    }

    fn parked(&self, run: &Run) {
        self.parked.inc();
        // Told once, however often the job is parked for the same reason.
        let told = run.deferral.as_ref().filter(|deferral| deferral.nth == run.deferrals && deferral.count == 1);
        if let Some(deferral) = told {
            self.deferred.with_label_values(&[deferral.reason.as_str()]).inc();
        }
    }

    fn attempt_failed(&self, run: &Run, kind: ErrorKind) {
        let metrics = self.jobs.of(run.queue.as_str(), run.job_type.as_str());
        metrics.failed(kind);
        if run.state.name() == RunState::Retrying {
            metrics.retried.inc();
        }
    }

    /// Events of a run were published live, and `enqueued` was among them.
    pub(crate) fn enqueued(&self, run: &Run) {
        self.jobs.of(run.queue.as_str(), run.job_type.as_str()).enqueued.inc();
    }

    /// The end of a run is stored.
    pub(crate) fn run_ended(&self, run: &Run) {
        self.jobs.of(run.queue.as_str(), run.job_type.as_str()).ended(run);
    }

    /// Every metric that [`Metrics::text`] may contain, by name.
    #[must_use]
    pub fn described(&self) -> Vec<Described> {
        let mut described = self.described.clone();
        described.sort();
        described
    }

    /// All that this node counts, in the text format of Prometheus, version 0.0.4.
    #[must_use]
    pub fn text(&self) -> String {
        self.text_with(None)
    }

    /// The same with the counts of the cluster.
    ///
    /// # Panics
    /// Never: text can always be appended, and no metric's name or label is invalid.
    pub(crate) fn text_with(&self, cluster: Option<&ClusterCounts>) -> String {
        let mut families = self.registry.gather();
        families.extend(self.process.families());
        families.extend(cluster.into_iter().flat_map(ClusterCounts::families));
        TextEncoder::new().encode_to_string(&families).expect("names and labels are valid")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new([])
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{Priority, RunId, Tenant, Timestamp};

    use super::*;

    /// The rows of docs/metrics.md: name, kind and labels.
    fn documented() -> Vec<Described> {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
        let row = |line: &str| {
            let cells: Vec<&str> = line.strip_prefix("| `")?.split(" | ").collect();
            let [name, kind, labels, meaning] = cells[..] else { panic!("not four cells: {line}") };
            assert!(meaning.len() > 3, "{line}");
            let kind = ["counter", "gauge", "histogram"].into_iter().find(|known| *known == kind);
            let labels = labels.split(", ").filter(|label| *label != "–").map(|label| label.replace('`', ""));
            Some(Described {
                name: name.trim_end_matches('`').to_owned(),
                labels: labels.collect(),
                kind: kind.unwrap_or_else(|| panic!("no kind of metric: {line}")),
            })
        };
        let mut rows: Vec<Described> = page.lines().filter_map(row).collect();
        rows.sort();
        rows
    }

    #[test]
    fn the_page_about_metrics_has_each_with_its_labels() {
        let (page, code) = (documented(), Metrics::default().described());
        let missing: Vec<_> = code.iter().filter(|metric| !page.contains(metric)).collect();
        let surplus: Vec<_> = page.iter().filter(|metric| !code.contains(metric)).collect();
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "not in docs/metrics.md: {missing:?}; not in the code: {surplus:?}"
        );
    }

    /// A series that appears with its first event shows no increase for it.
    #[test]
    fn what_may_never_happen_is_there_as_0_from_the_start() {
        let text = Metrics::default().text();
        let reasons = |name: &str| text.lines().filter(|line| line.starts_with(name) && line.ends_with(" 0")).count();
        assert_eq!(reasons("longshore_jobs_deferred_total{reason="), DeferReason::ALL.len());
        assert_eq!(reasons("longshore_jobs_refused_total{reason="), REFUSALS.len() + 1);
    }

    #[test]
    fn a_deferral_counts_once_per_reason_however_often_its_job_is_tried() {
        let metrics = Metrics::default();
        let job = Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("t").unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: None,
        };
        let mut run = Run::new(&job, 1, Timestamp::from_millis(1));
        let mut ends = Ends::default();
        use DeferReason::{Busy, NoHandlerOnline};
        for (at, reason) in [(10, NoHandlerOnline), (20, NoHandlerOnline), (30, Busy), (40, Busy), (50, Busy)] {
            let (now, again) = (Timestamp::from_millis(at), Timestamp::from_millis(at + 5));
            run.begin(run.next_attempt(), &"n".into(), now);
            run.settle(Settlement::Defer { at: again, reason, put_back: None }, now);
            metrics.decided(&run, Decision::Deferred(reason), &mut ends);
        }
        let counted = |reason: DeferReason| metrics.deferred.with_label_values(&[reason.as_str()]).get();
        assert_eq!((counted(NoHandlerOnline), counted(Busy)), (1, 1));
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for Described { name, kind, .. } in Metrics::default().described() {
            let seconds =
                !name.contains("_seconds") || ["_seconds", "_seconds_total"].iter().any(|end| name.ends_with(end));
            assert!(seconds && (kind == "counter") == name.ends_with("_total"), "{name} is a {kind}");
        }
    }
}
