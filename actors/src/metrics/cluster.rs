//! Counts of the whole cluster as metrics: the same on every node, so that monitoring may ask any and takes the `max`.
//!
//! They do not belong to this node, so they are written anew for each answer. When the servers do not answer they are
//! absent: an old depth would pass for a queue that stands still.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_backbone::backlog::Timed;
use longshore_domain::limit::Scope;
use longshore_domain::{Priority, Queue};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::Described;

const JOBS: (&str, &str) = ("longshore_queue_jobs", "Jobs of the cluster by state; waiting ones by priority");
const OLDEST: (&str, &str) = ("longshore_queue_oldest_seconds", "How long the oldest waiting job has waited");
const TOKENS: (&str, &str) = ("longshore_rate_limit_tokens", "Tokens left of rate limits");
const DEAD: (&str, &str) = ("longshore_dlq_jobs", "Dead letters of the cluster");

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueueCounts {
    /// By priority, the most urgent first.
    pub(crate) waiting: [u64; Priority::COUNT],
    pub(crate) running: u64,
    /// Unknown until the schedules have been read once.
    pub(crate) timed: Option<Timed>,
    /// How long the oldest waiting job has waited.
    pub(crate) oldest: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClusterCounts {
    pub(crate) queues: BTreeMap<Queue, QueueCounts>,
    pub(crate) dead_letters: u64,
    /// The tokens that are left of rate limits.
    pub(crate) tokens: BTreeMap<Scope, u64>,
}

pub(super) fn described() -> Vec<Described> {
    let of = |(name, _): (&str, &str), labels: &[&str]| Described::new(name, labels, "gauge");
    vec![of(JOBS, &["queue", "priority", "state"]), of(OLDEST, &["queue"]), of(DEAD, &[]), of(TOKENS, &["limit"])]
}

impl ClusterCounts {
    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let gauge = |labels: &[(&str, &str)], value| sample(labels, MetricType::GAUGE, value);
        let (mut jobs, mut oldest) = (Vec::new(), Vec::new());
        for (queue, counts) in &self.queues {
            let queue = ("queue", queue.as_str());
            for (priority, waiting) in Priority::all().zip(counts.waiting) {
                let priority = priority.to_string();
                jobs.push(gauge(&[queue, ("priority", &priority), ("state", "waiting")], waiting as f64));
            }
            jobs.push(gauge(&[queue, ("state", "running")], counts.running as f64));
            if let Some(Timed { scheduled, retrying, deferred, .. }) = &counts.timed {
                for (state, of) in [("scheduled", scheduled), ("retrying", retrying), ("deferred", deferred)] {
                    jobs.push(gauge(&[queue, ("state", state)], of.count as f64));
                }
            }
            oldest.push(gauge(&[queue], counts.oldest.as_secs_f64()));
        }
        let dead = vec![gauge(&[], self.dead_letters as f64)];
        let tokens = self.tokens.iter().map(|(scope, left)| gauge(&[("limit", &scope.to_string())], *left as f64));
        [(JOBS, jobs), (OLDEST, oldest), (DEAD, dead), (TOKENS, tokens.collect())]
            .into_iter()
            .filter(|(_, samples)| !samples.is_empty())
            .map(|((name, help), samples)| family(name, help, MetricType::GAUGE, samples))
            .collect()
    }
}

/// A metric with all its series.
pub(super) fn family(name: &str, help: &str, kind: MetricType, samples: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(samples);
    family
}

/// One series, a counter or a gauge.
pub(super) fn sample(labels: &[(&str, &str)], kind: MetricType, value: f64) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    let mut metric = Metric::from_label(labels.iter().map(pair).collect());
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}
