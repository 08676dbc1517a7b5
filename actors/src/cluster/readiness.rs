//! Whether this node takes work, and why not: what the endpoint `health` and the probe `/readyz` answer.
//!
//! It looks at what the node knows already, and asks no server, so that a probe is cheap. It waits for nothing but its
//! own supervisors, for a second at most.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use longshore_backbone::Backbone;
use longshore_backbone::control::MissingHandler;
use longshore_backbone::handlers::Announced;
use longshore_backbone::link::Link;
use longshore_backbone::wire::api::{Counters, HandlerStatus, HealthStatus, OPERATOR, PartStatus, SERVER_FULL};
use longshore_domain::Lane;
use longshore_domain::cluster_clock::Wrong;
use longshore_domain::served::none_ever;

use crate::attempt::shed::Shed;
use crate::cluster::node_health::{NodeHealth, Warning};
use crate::cluster::tree_answers::Tree;
use crate::handlers::routing::Routing;
use crate::limits::settings::RunTimeSettings;
use crate::metrics::Metrics;
use crate::queue::served::ServedQueues;
use crate::queue::unresponsive::SPARE_THREADS;
use crate::runtime::address::Waiting;
use crate::runtime::health::Health;
use crate::runtime::identity::Identity;
use crate::runtime::lifecycle::Lifecycle;
use crate::runtime::now;
use crate::runtime::pressure::MachinePressure;

/// What is wrong with a node whose own parts do not answer.
pub(crate) const SILENT_TREE: &str =
    "a supervisor of this node does not answer: what dies is not started again; start the process again";

#[derive(Clone)]
pub(crate) struct Readiness {
    pub(crate) backbone: Backbone,
    pub(crate) identity: Arc<Identity>,
    pub(crate) queues: Arc<ServedQueues>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) routing: Arc<Routing>,
    pub(crate) run_time_settings: Arc<RunTimeSettings>,
    pub(crate) health: Arc<Health>,
    pub(crate) pressure: Arc<MachinePressure>,
    pub(crate) shed: Arc<Shed>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tree: Tree,
    /// The parts that have messages.
    pub(crate) mailboxes: Arc<[Waiting]>,
}

/// What is started for a queue: by the root its supervisor and its loops, by that one the rest.
pub(crate) const OF_QUEUES: [&str; 5] = ["queue", "scheduler", "worker", "parking", "fairness"];
/// Handlers that an answer has: it is one message.
const MAX_HANDLERS: usize = 200;

impl Readiness {
    /// Whether the node's own parts answer. One that drains counts as alive: it ends by itself.
    pub(crate) async fn is_alive(&self) -> bool {
        self.lifecycle.is_draining() || self.tree.answers().await
    }

    pub(crate) async fn status(&self) -> NodeHealth {
        let live = self.is_alive().await;
        let mut reasons = Vec::new();
        if !live {
            reasons.push(SILENT_TREE.to_owned());
        }
        reasons.extend(self.not_connected());
        if self.lifecycle.is_draining() {
            reasons.push("draining".to_owned());
        }
        let unresponsive = self.health.unresponsive();
        if unresponsive > SPARE_THREADS {
            reasons.push(format!("{unresponsive} handlers neither end in time nor react to their cancellation"));
        }
        if self.health.records_full.get() {
            reasons.push("the stream of run records is full (storage.runs_max_records)".to_owned());
        }
        reasons.extend(self.health.server_full.get().then(|| SERVER_FULL.to_owned()));
        let unanswered = self.backbone.unanswered();
        if !unanswered.is_empty() {
            reasons.push(format!("no server answers for the consumer of {}", unanswered.join(", ")));
        }
        reasons.extend(self.stores_nothing());
        let (wrong, clock) = self.health.clock();
        reasons.extend(clock.clone().filter(|_| wrong == Wrong::FarOff));
        let streams = self.health.streams.get();
        reasons.extend(streams.reasons);
        let full = self.health.full_lanes.get();
        let full = full.iter().map(|Lane { queue, priority }| {
            format!("queue {queue} is full at priority {}: its due jobs wait", priority.number())
        });
        let warnings = full
            .chain(self.health.unserved.get())
            .chain(self.slow_deliveries())
            .chain(clock)
            .chain(self.pressure.warning())
            .chain(self.shed.warning(Instant::now()))
            .chain(streams.warnings)
            .chain(self.payloads_left_out())
            .map(Warning::from)
            .chain(self.without_handler())
            .chain(self.answered_twice())
            .chain(self.unreadable())
            .collect();
        let status = HealthStatus {
            counters: self.counters(),
            faults: self.faults(),
            handlers: None,
            live,
            node: self.identity.node.to_string(),
            parts: Vec::new(),
            queues: self.queues.names().iter().map(ToString::to_string).collect(),
            ready: reasons.is_empty(),
            reasons,
            version: crate::runtime::VERSION.to_owned(),
            warnings: Vec::new(),
        };
        NodeHealth::new(status, warnings)
    }

    /// The same with what only operators see: the parts of the tree, and the handlers that are online.
    pub(crate) async fn whole_status(&self) -> NodeHealth {
        let discovery = &self.routing.discovery;
        // Handlers are asked only while there are jobs for them, or somebody looks.
        discovery.saw_remote();
        let handlers = discovery.announced().map(|announced| {
            let status = |Announced { service, subject, slots, .. }| HandlerStatus { subject, service, slots };
            let mut handlers: Vec<HandlerStatus> = announced.into_iter().map(status).collect();
            handlers.sort();
            handlers.truncate(MAX_HANDLERS);
            handlers
        });
        let mut health = self.status().await;
        (health.status.handlers, health.status.parts) = (handlers, self.parts());
        health
    }

    fn parts(&self) -> Vec<PartStatus> {
        let waiting = self.waiting();
        let part = |(part, restarts): (String, u64)| PartStatus {
            per_queue: OF_QUEUES.contains(&part.as_str()),
            waiting: waiting.get(part.as_str()).map(|count| *count as u64),
            part,
            restarts,
        };
        self.metrics.restarts().into_iter().map(part).collect()
    }

    /// How many messages wait for each part that has any.
    pub(crate) fn waiting(&self) -> BTreeMap<&'static str, usize> {
        let schedulers = self.queues.all().iter().map(|queue| queue.scheduler.waiting()).sum();
        let mut all = BTreeMap::from([("scheduler", schedulers)]);
        self.mailboxes.iter().for_each(|(part, waiting)| *all.entry(*part).or_default() += waiting());
        all
    }

    /// The faults on purpose that attempts on this node meet.
    pub(crate) fn faults(&self) -> Vec<String> {
        let allowed = self.routing.policies.faults_allowed;
        if allowed { self.run_time_settings.faults.in_words(now()) } else { Vec::new() }
    }

    fn not_connected(&self) -> Option<String> {
        if self.backbone.is_connected() {
            return None;
        }
        let why = self.backbone.connections().into_iter().find_map(Link::refused_login);
        let why = why.map_or_else(String::new, |why| format!(": the server refuses its login ({why})"));
        Some(format!("not connected to NATS{why}"))
    }

    /// Where writes get no answer.
    fn stores_nothing(&self) -> Option<String> {
        let silent = self.backbone.silent_writes();
        if silent.is_empty() {
            return None;
        }
        let places = silent.iter().map(|(place, since)| format!("{place} (for {} s)", since.as_secs()));
        Some(format!(
            "NATS stores nothing in {}, and does not say why: its disk may be full or read-only, as its own log would \
             say, or most replicas of the stream are away",
            places.collect::<Vec<_>>().join(", ")
        ))
    }

    /// Jobs that came when the server took larger messages.
    fn payloads_left_out(&self) -> Option<String> {
        let jobs = self.backbone.payloads_left_out();
        let max = self.backbone.max_payload();
        (jobs > 0).then(|| {
            format!(
                "{jobs} jobs were too large for NATS since this node started, whose max_payload is {max} bytes now: \
                 they are dead letters of the kind invalid, without their payloads"
            )
        })
    }

    fn counters(&self) -> Counters {
        Counters {
            connections_rebuilt: self.backbone.connections().into_iter().map(Link::rebuilt).sum(),
            overdue_restored: self.metrics.schedules_restored(),
            poison_removed: self.backbone.poison_removed(),
            stale_reads: self.metrics.stale_reads.get(),
            runs_stranded: self.metrics.stranded.get(),
        }
    }

    /// The types whose jobs two handlers do.
    fn answered_twice(&self) -> impl Iterator<Item = Warning> {
        self.backbone.answered_twice().into_iter().map(|(subject, times)| {
            let tenant = self.backbone.names().read_work(&subject).map_or(OPERATOR, |(tenant, _)| tenant).to_owned();
            let text = format!(
                "jobs are answered twice on {subject} ({times} so far): each is done twice where two handlers subscribe \
                 without a common queue group"
            );
            Warning { text, tenant: Some(tenant) }
        })
    }

    /// What is stored may name anybody.
    fn unreadable(&self) -> impl Iterator<Item = Warning> {
        let unreadable = self.backbone.unreadable().warnings(Instant::now()).into_iter();
        unreadable.map(|text| Warning { text, tenant: Some(OPERATOR.to_owned()) })
    }

    /// The queues of which a job was long on its way to this node.
    fn slow_deliveries(&self) -> Vec<String> {
        let (queues, now) = (self.queues.all(), Instant::now());
        let slow = queues.iter().filter_map(|queue| {
            let longest = queue.deliveries.longest(now)?.as_secs_f64();
            Some(format!(
                "a job of queue {} came {longest:.1} s after it was stored, though this node asked for jobs: the NATS \
                 servers, the network or this machine stood still in the last two minutes",
                queue.name
            ))
        });
        slow.collect()
    }

    /// The types for which this node finds no handler.
    fn without_handler(&self) -> impl Iterator<Item = Warning> {
        self.routing.discovery.missing_handlers().into_iter().map(|missing| {
            let MissingHandler { tenant, job_type, since, .. } = missing;
            let subject = self.routing.subject_of(&tenant, &job_type);
            let never = self.routing.never_served(&tenant, &job_type);
            let never = never.map_or_else(String::new, |of| format!("; {}", none_ever(of.nearest.as_ref())));
            let text = format!(
                "no handler for {job_type} of tenant {tenant} since {since}: handlers subscribe to {subject}{never}"
            );
            Warning { text, tenant: Some(tenant.to_string()) }
        })
    }
}
