//! The supervision tree of a node: its root, and the root's children. ARCHITECTURE.md draws it.
//!
//! One for one: a child that dies is started again, at most five times within ten seconds for all children together;
//! then the node ends, with the reason. What must survive a death (the committer's state, the book of leases, the
//! workers' current attempts) is owned outside the actors. The root waits neither for the network nor for another part.

use std::sync::Arc;

use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use crate::api::{service, waits};
use crate::attempt::cancelled;
use crate::cluster::{
    circuit_breaker, discovery, dlq_watch, event_files, node_name, offered_handlers, presence, pressure_watch,
    run_time_settings, unserved,
};
use crate::commit::committer;
use crate::concurrency::keeper;
use crate::lease_keeper;
use crate::limits::limiter;
use crate::metrics::Metrics;
use crate::node_ports::NodePorts;
use crate::parts::Parts;
use crate::queue::supervisor::{self, QueueSupervisor};
use crate::queue::{fairness, lane_guard, parking};
use crate::supervision::{ChildSpec, Deaths};
use crate::time::{recurring, sweep, timekeeper};
use crate::trace;

/// All children of the root except the queues, in the order in which they start. Each is given its part of the node
/// (`parts.rs`), and no other child's.
pub(crate) fn children(parts: &Parts, ports: &Arc<NodePorts>) -> Vec<ChildSpec> {
    let (committer, leases, breakers) = (&parts.committer.address, &parts.leases, &parts.circuit_breaker);
    let mut children = vec![
        ChildSpec::with_messages("committer", committer, Arc::clone(&parts.committing), committer::run),
        ChildSpec::with_messages("lease-keeper", leases, parts.lease_keeper(), lease_keeper::run),
        ChildSpec::new("lane-guard", (Arc::clone(ports), parts.queue_names()), lane_guard::run),
        ChildSpec::new("timekeeper", parts.timekeeper(), timekeeper::run),
        ChildSpec::new("api", parts.service(), service::run),
        ChildSpec::new("cancels", (Arc::clone(ports), leases.clone()), cancelled::watch),
        ChildSpec::new("presence", parts.presence(), presence::run),
        ChildSpec::new("run-time-settings", parts.run_time_settings(), run_time_settings::run),
        ChildSpec::new("dlq-watch", parts.dlq_watch(), dlq_watch::run),
        ChildSpec::new("unserved-queues", parts.unserved(), unserved::run),
        ChildSpec::new("node-name", (parts.readiness(), parts.log.clone()), node_name::answer),
        ChildSpec::new("sweep", parts.sweep(), sweep::run),
        ChildSpec::new("recurring", parts.recurring(), recurring::run),
        ChildSpec::new("unstored-ends", (parts.backbone.nodes(), Arc::clone(&parts.unstored_ends)), waits::answer),
        ChildSpec::new("handler-discovery", parts.discovery(), discovery::run),
        ChildSpec::new("offered-handlers", parts.offered_handlers(), offered_handlers::run),
        ChildSpec::with_messages("rate-limiter", &parts.gates.limits.address, parts.limiter(), limiter::run),
        ChildSpec::with_messages("slot-keeper", &parts.gates.slots.address, parts.slot_keeper(), keeper::run),
        ChildSpec::with_messages("circuit-breaker", breakers, parts.circuit_breaker(), circuit_breaker::run),
    ];
    let watch = parts.pressure_watch();
    children.extend(watch.map(|part| ChildSpec::new("pressure-watch", part, pressure_watch::run)));
    children.extend(parts.tracer.iter().map(|tracer| {
        ChildSpec::with_messages("trace-exporter", &tracer.address, Arc::clone(&tracer.exporting), trace::run)
    }));
    let event_files = parts.event_files().into_iter();
    children.extend(event_files.map(|part| ChildSpec::new("event-files", part, event_files::run)));
    children.extend(parts.queues.iter().map(|queue| ChildSpec::new("parking", parts.parking(queue), parking::run)));
    let fair = |queue| ChildSpec::new("fairness", Parts::fairness(queue, ports), fairness::run);
    children.extend(parts.queues.iter().map(fair));
    children
}

/// The root supervisor.
pub(crate) struct Root;

/// What the root starts, and where it says why it gave up.
pub(crate) struct Arguments {
    pub(crate) children: Vec<ChildSpec>,
    pub(crate) queues: Vec<supervisor::Arguments>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tell: oneshot::Sender<String>,
}

pub(crate) struct State {
    children: Vec<ChildSpec>,
    queues: Vec<supervisor::Arguments>,
    metrics: Arc<Metrics>,
    alive: Vec<(ActorId, Child)>,
    deaths: Deaths,
    told: Option<oneshot::Sender<String>>,
}

#[derive(Debug, Clone, Copy)]
enum Child {
    Loop(usize),
    Queue(usize),
}

impl Actor for Root {
    type Msg = ();
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<()>, tree: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { children, queues, metrics, tell } = tree;
        let all = (0..children.len()).map(Child::Loop).chain((0..queues.len()).map(Child::Queue));
        let all: Vec<Child> = all.collect();
        let mut state = State { children, queues, metrics, alive: Vec::new(), deaths: Deaths::new(), told: Some(tell) };
        for child in all {
            state.start(child, &myself).await?;
        }
        Ok(state)
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<()>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (id, reason) = match event {
            SupervisionEvent::ActorFailed(child, reason) => (child.get_id(), reason.to_string()),
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                (child.get_id(), reason.unwrap_or_else(|| "it was stopped".to_owned()))
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        let result = state.restart(id, &reason, &myself).await;
        if let Err(error) = &result {
            let reason = error.to_string();
            tracing::error!("the node gives up: {reason}");
            state.told.take().map(|told| told.send(reason));
        }
        result
    }
}

impl State {
    async fn restart(&mut self, id: ActorId, reason: &str, myself: &ActorRef<()>) -> Result<(), ActorProcessingErr> {
        let Some(at) = self.alive.iter().position(|(alive, _)| *alive == id) else { return Ok(()) };
        let (_, child) = self.alive.swap_remove(at);
        let name = match child {
            Child::Loop(number) => self.children[number].name,
            Child::Queue(_) => "queue",
        };
        tracing::error!(actor = name, "died, starting it again: {reason}");
        self.metrics.restarts.with_label_values(&[name]).inc();
        self.deaths.count(reason)?;
        self.start(child, myself).await
    }

    async fn start(&mut self, child: Child, myself: &ActorRef<()>) -> Result<(), ActorProcessingErr> {
        let supervisor = myself.get_cell();
        let id = match child {
            Child::Loop(number) => self.children[number].start(supervisor).await?.get_id(),
            Child::Queue(number) => {
                let arguments = self.queues[number].clone();
                Actor::spawn_linked(None, QueueSupervisor, arguments, supervisor).await?.0.get_id()
            }
        };
        self.alive.push((id, child));
        Ok(())
    }
}
