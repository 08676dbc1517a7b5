//! What a node counts of itself and its jobs.
//!
//! Read in this order: `list` (every metric of the node), this file (what is counted when), `jobs` (by queue and type,
//! on the way of every job), `cluster` (what all nodes show alike), `process`. No label holds a run id or an error's
//! text, and the number of types that have series of their own is bounded, so that no client can make a node's memory
//! grow.

use longshore_backbone::wire::api::Code;
use longshore_domain::run::DeferReason;
use longshore_domain::{Job, JobType, Queue, Run, RunState, Timestamp, events};
use prometheus::core::Collector as _;
use prometheus::{IntCounterVec, TextEncoder};

use crate::runtime::Unpoisoned as _;

pub mod jobs;

pub(crate) mod history;
mod list;

pub(crate) mod cluster;
mod process;

pub use list::Metrics;

use cluster::ClusterCounts;
use history::Counted;
use jobs::{Decision, Ends, JobMetrics, REFUSALS};

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

longshore_domain::named! {
    /// What was overdue and had to be restored.
    #[derive(Debug, Clone, Copy)]
    pub(crate) enum Restored {
        /// Schedules that the server had not fired: their jobs are in their lanes.
        Schedule = "schedule",
        /// Recurring schedules whose tick was lost: they fire.
        Recurring = "recurring",
        /// Runs that were rescheduled, and whose schedule stood for a later time: they are scheduled again.
        Rescheduled = "rescheduled",
        /// Jobs that a node left behind while it moved them forward: they go on.
        MovedForward = "moved_forward",
        /// Sessions of silent nodes: the slots of their concurrency limits are free again.
        Slots = "slots",
    }
}

impl Described {
    fn new(name: &str, labels: &[&str], kind: &'static str) -> Self {
        Self { name: name.to_owned(), labels: labels.iter().map(|label| (*label).to_owned()).collect(), kind }
    }
}

impl Metrics {
    /// What may never happen has its series from the start, so that a rate sees the first one.
    fn begin_at_zero(&self) {
        let refusals = REFUSALS.map(Code::as_str);
        let deferrals = DeferReason::NAMES;
        let restored = Restored::NAMES;
        let all: [(&IntCounterVec, &[&str]); 8] = [
            (&self.overdue_restored, &restored),
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

    /// Keeps what was counted, once ten seconds of the cluster's time are over.
    pub(crate) fn keep(&self, at: Timestamp) {
        self.history.lock().unpoisoned().look(at, || self.jobs.totals());
    }

    /// What was counted in each ten seconds of the last hour.
    pub(crate) fn last_hour(&self) -> Vec<(i64, Counted)> {
        self.history.lock().unpoisoned().slots()
    }

    /// So many were overdue and are restored.
    pub(crate) fn restored(&self, what: Restored, count: usize) {
        self.overdue_restored.with_label_values(&[what.as_str()]).inc_by(count as u64);
    }

    /// How many schedules, once or recurring, were overdue and are restored.
    pub(crate) fn schedules_restored(&self) -> u64 {
        let of = [Restored::Schedule, Restored::Recurring, Restored::Rescheduled];
        of.map(|what| self.overdue_restored.with_label_values(&[what.as_str()]).get()).iter().sum()
    }

    /// How often each part of the node was started again, by name.
    pub(crate) fn restarts(&self) -> Vec<(String, u64)> {
        let mut families = self.restarts.collect();
        let series = families.iter_mut().flat_map(|family| family.take_metric());
        let mut restarts: Vec<(String, u64)> =
            series.map(|one| (one.get_label()[0].value().to_owned(), one.get_counter().get_value() as u64)).collect();
        restarts.sort();
        restarts
    }

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
            Decision::Failed(kind) => {
                let metrics = self.jobs.of(run.queue.as_str(), run.job_type.as_str());
                metrics.failed(kind);
                if run.state.name() == RunState::Retrying {
                    metrics.retried.inc();
                }
            }
            Decision::Deferred(reason) => {
                if events::publishes_last_deferral(run) {
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
        // Published once, however often the job is parked for the same reason.
        let deferred = run.deferral.as_ref().filter(|deferral| deferral.nth == run.deferrals && deferral.count == 1);
        if let Some(deferral) = deferred {
            self.deferred.with_label_values(&[deferral.reason.as_str()]).inc();
        }
    }

    /// Events of a run were published live, and `enqueued` was among them.
    pub(crate) fn enqueued(&self, run: &Run) {
        self.jobs.of(run.queue.as_str(), run.job_type.as_str()).enqueued.inc();
    }

    pub(crate) fn run_ended(&self, run: &Run) {
        self.jobs.of(run.queue.as_str(), run.job_type.as_str()).ended(run);
    }

    /// Every metric that [`Metrics::text`] may contain, by name.
    pub fn described(&self) -> Vec<Described> {
        let mut described = self.described.clone();
        described.sort();
        described
    }

    /// All that this node counts, in the text format of Prometheus, version 0.0.4.
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
    use longshore_domain::Timestamp;
    use longshore_domain::settlement::Settlement;

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
        let job = crate::tests::job("t", "r");
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
