//! The metrics of jobs, by queue and type, and the bound on how many types have series of their own.
//!
//! A job's counters are found without a lock, an allocation or a shared reference count: by one hash of its queue and
//! type in a table that only grows and has a fixed size. Looking up each label set of each metric by itself would cost
//! a hash and a lock five times per job.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use foldhash::fast::FixedState;
use longshore_backbone::wire::api::Code;
use longshore_domain::run::DeferReason;
use longshore_domain::{ErrorKind, Run, RunState, SmolStr};
use prometheus::local::{LocalHistogram, LocalIntCounter};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use crate::metrics::history::{Counted, Spread};
use crate::runtime::Unpoisoned as _;

/// Beside the types with settings of their own, so many pairs of queue and type have series of their own.
pub const MAX_KINDS: usize = 100;
/// The label of types beyond that.
pub const OTHER: &str = "_other";
/// Places in the table; a power of two. It is never more than half full, so that a search stays short.
const PLACES: usize = 2_048;

const ENDS: [RunState; 6] = [
    RunState::Completed,
    RunState::Dead,
    RunState::Cancelled,
    RunState::Expired,
    RunState::Duplicate,
    RunState::Discarded,
];

/// The kinds of errors by which attempts fail.
const FAILURES: [ErrorKind; 7] = [
    ErrorKind::Retryable,
    ErrorKind::Permanent,
    ErrorKind::Timeout,
    ErrorKind::LeaseExpired,
    ErrorKind::Panic,
    ErrorKind::NoHandler,
    ErrorKind::Invalid,
];

/// Why `submit` refuses jobs.
pub(crate) const REFUSALS: [Code; 8] = [
    Code::Malformed,
    Code::Forbidden,
    Code::NotFound,
    Code::TooLarge,
    Code::RateLimited,
    Code::IdempotencyMismatch,
    Code::KeyTaken,
    Code::Unavailable,
];

/// What was decided about a run, beside its state: what is counted once the decision is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// An attempt failed.
    Failed(ErrorKind),
    /// The job is put off.
    Deferred(DeferReason),
    /// The job waits out of the way of others.
    Parked,
    /// Anything else.
    Other,
}

/// The metrics that have the labels `queue` and `type`.
#[derive(Debug, Clone)]
pub(crate) struct Families {
    pub(crate) submitted: IntCounterVec,
    pub(crate) enqueued: IntCounterVec,
    pub(crate) started: IntCounterVec,
    pub(crate) failed: IntCounterVec,
    pub(crate) retried: IntCounterVec,
    pub(crate) finished: IntCounterVec,
    pub(crate) wait: HistogramVec,
    pub(crate) duration: HistogramVec,
    pub(crate) total: HistogramVec,
    pub(crate) unresponsive: IntCounterVec,
}

/// The counters of one queue and type.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    queue: SmolStr,
    job_type: SmolStr,
    pub(crate) submitted: IntCounter,
    pub(crate) enqueued: IntCounter,
    pub(crate) started: IntCounter,
    failed: [IntCounter; FAILURES.len()],
    pub(crate) retried: IntCounter,
    finished: [IntCounter; ENDS.len()],
    pub(crate) wait: Histogram,
    pub(crate) duration: Histogram,
    total: Histogram,
    pub(crate) unresponsive: IntCounter,
}

impl JobMetrics {
    fn new(families: &Families, queue: &str, job_type: &str) -> Self {
        let labels = [queue, job_type];
        Self {
            queue: queue.into(),
            job_type: job_type.into(),
            submitted: families.submitted.with_label_values(&labels),
            enqueued: families.enqueued.with_label_values(&labels),
            started: families.started.with_label_values(&labels),
            retried: families.retried.with_label_values(&labels),
            failed: FAILURES.map(|kind| families.failed.with_label_values(&[queue, job_type, kind.as_str()])),
            finished: ENDS.map(|state| families.finished.with_label_values(&[queue, job_type, state.as_str()])),
            wait: families.wait.with_label_values(&labels),
            duration: families.duration.with_label_values(&labels),
            total: families.total.with_label_values(&labels),
            unresponsive: families.unresponsive.with_label_values(&labels),
        }
    }

    fn counted(&self) -> Counted {
        let sum = |counters: &[IntCounter]| counters.iter().map(IntCounter::get).sum();
        let (wait, run) = (Spread::of(&self.wait), Spread::of(&self.duration));
        Counted { enqueued: self.enqueued.get(), ended: sum(&self.finished), failed: sum(&self.failed), wait, run }
    }

    pub(crate) fn ended(&self, run: &Run) {
        if let Some((at, total)) = end_of(run) {
            self.finished[at].inc();
            total.into_iter().for_each(|total| self.total.observe(total));
        }
    }

    pub(crate) fn failed(&self, kind: ErrorKind) {
        if let Some(at) = FAILURES.iter().position(|known| *known == kind) {
            self.failed[at].inc();
        }
    }
}

/// Which of [`ENDS`] a run has come to, and after how many seconds. One whose dead letter is discarded had ended
/// before.
fn end_of(run: &Run) -> Option<(usize, Option<f64>)> {
    let at = ENDS.iter().position(|state| *state == run.state.name())?;
    let ended = run.state.ended_at().unwrap_or_default();
    let is_new = run.state.name() != RunState::Discarded;
    Some((at, is_new.then(|| ended.since(run.waits_since()).as_secs_f64())))
}

/// Ends of runs that one task has counted for itself and not yet added to the metrics: adding each by itself would be
/// three writes per job to memory that other threads write to as well.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    /// By place in the table of [`ByKind`].
    of: HashMap<usize, LocalEnds, FixedState>,
    /// Whether any are not added yet.
    any: bool,
}

#[derive(Debug)]
struct LocalEnds {
    finished: [LocalIntCounter; ENDS.len()],
    total: LocalHistogram,
}

impl Ends {
    pub(crate) fn add(&mut self, run: &Run, kinds: &ByKind) {
        let Some((at, total)) = end_of(run) else { return };
        let (place, metrics) = kinds.placed(run.queue.as_str(), run.job_type.as_str());
        let ends = self.of.entry(place).or_insert_with(|| LocalEnds {
            finished: metrics.finished.each_ref().map(|count| count.local()),
            total: metrics.total.local(),
        });
        ends.finished[at].inc();
        total.into_iter().for_each(|total| ends.total.observe(total));
        self.any = true;
    }

    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.any) {
            for ends in self.of.values_mut() {
                ends.finished.iter_mut().for_each(|count| count.flush());
                ends.total.flush();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct ByKind {
    families: Families,
    /// Types that have a series of their own in any case.
    known: HashSet<SmolStr>,
    places: Box<[OnceLock<JobMetrics>]>,
    filled: Mutex<Filled>,
    /// No further type gets a series of its own, unless it is known.
    is_full: AtomicBool,
    /// For jobs that find no place at all, which only hundreds of queues could bring about.
    last_resort: JobMetrics,
}

/// How many places are filled, and how many of them by types that are not known.
#[derive(Debug, Default)]
struct Filled {
    all: usize,
    unknown: usize,
}

impl ByKind {
    /// `known`: the types that have a series of their own however many others there are.
    pub(crate) fn new(families: Families, known: HashSet<SmolStr>) -> Self {
        Self {
            known,
            places: (0..PLACES).map(|_| OnceLock::new()).collect(),
            filled: Mutex::default(),
            is_full: AtomicBool::new(false),
            last_resort: JobMetrics::new(&families, OTHER, OTHER),
            families,
        }
    }

    /// The counters of jobs of this queue and type.
    pub(crate) fn of(&self, queue: &str, job_type: &str) -> &JobMetrics {
        self.placed(queue, job_type).1
    }

    /// The same, and a number that only these counters have.
    fn placed(&self, queue: &str, job_type: &str) -> (usize, &JobMetrics) {
        match self.find(queue, job_type) {
            Ok(found) => found,
            Err(_) if self.is_full.load(Ordering::Relaxed) && !self.known.contains(job_type) => self.other(queue),
            Err(_) => self.add(queue, job_type, self.known.contains(job_type)),
        }
    }

    /// The counters of all types of a queue that have none of their own.
    fn other(&self, queue: &str) -> (usize, &JobMetrics) {
        self.find(queue, OTHER).unwrap_or_else(|_| self.add(queue, OTHER, true))
    }

    /// The counters and their place, or the place where they would be.
    fn find(&self, queue: &str, job_type: &str) -> Result<(usize, &JobMetrics), usize> {
        let hash = FixedState::default().hash_one((queue, job_type));
        let mut at = hash as usize % PLACES;
        loop {
            match self.places[at].get() {
                Some(found) if found.job_type == job_type && found.queue == queue => return Ok((at, found)),
                Some(_) => at = (at + 1) % PLACES,
                None => return Err(at),
            }
        }
    }

    /// The counters of all queues and types together.
    pub(crate) fn totals(&self) -> Counted {
        let mut all = Counted::default();
        for of in self.places.iter().filter_map(OnceLock::get).chain([&self.last_resort]) {
            all.add(&of.counted());
        }
        all
    }

    fn add(&self, queue: &str, job_type: &str, is_known: bool) -> (usize, &JobMetrics) {
        let mut filled = self.filled.lock().unpoisoned();
        let at = match self.find(queue, job_type) {
            Ok(found) => return found,
            Err(at) => at,
        };
        if !is_known && filled.unknown >= MAX_KINDS {
            self.is_full.store(true, Ordering::Relaxed);
            drop(filled);
            return self.other(queue);
        }
        if filled.all >= PLACES / 2 {
            return (PLACES, &self.last_resort);
        }
        filled.all += 1;
        filled.unknown += usize::from(!is_known);
        (at, self.places[at].get_or_init(|| JobMetrics::new(&self.families, queue, job_type)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    fn started(metrics: &Metrics, queue: &str, job_type: &str) -> Option<u64> {
        let line = format!("longshore_attempts_started_total{{queue=\"{queue}\",type=\"{job_type}\"}} ");
        metrics.text().lines().find_map(|text| text.strip_prefix(&line)).map(|value| value.parse().unwrap())
    }

    #[test]
    fn types_beyond_the_bound_are_counted_together_and_known_ones_never_are() {
        let metrics = Metrics::new(["email.send".into()]);
        for number in 0..3 * MAX_KINDS {
            metrics.jobs.of("main", &format!("t{number}")).started.inc();
        }
        for _ in 0..2 {
            metrics.jobs.of("main", "email.send").started.inc();
            metrics.jobs.of("main", "t0").started.inc();
            metrics.jobs.of("bulk", "new").started.inc();
        }
        assert_eq!(started(&metrics, "main", "t0"), Some(3));
        assert_eq!(started(&metrics, "main", &format!("t{}", MAX_KINDS - 1)), Some(1));
        assert_eq!(started(&metrics, "main", &format!("t{MAX_KINDS}")), None);
        assert_eq!(started(&metrics, "main", OTHER), Some(2 * MAX_KINDS as u64));
        assert_eq!(started(&metrics, "main", "email.send"), Some(2));
        assert_eq!((started(&metrics, "bulk", "new"), started(&metrics, "bulk", OTHER)), (None, Some(2)));
    }

    #[test]
    fn more_queues_than_there_are_places_are_counted_together() {
        let metrics = Metrics::new(["a".into()]);
        for number in 0..PLACES {
            metrics.jobs.of(&format!("q{number}"), "a").started.inc();
        }
        assert_eq!(started(&metrics, "q0", "a"), Some(1));
        assert_eq!(started(&metrics, OTHER, OTHER), Some(PLACES as u64 / 2));
    }

    #[test]
    fn threads_that_meet_a_kind_at_once_count_it_once() {
        let metrics = Metrics::default();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for number in 0..20_000 {
                        metrics.jobs.of("main", &format!("t{}", number % 50)).started.inc();
                    }
                });
            }
        });
        assert!((0..50).all(|number| started(&metrics, "main", &format!("t{number}")) == Some(3_200)));
    }
}
