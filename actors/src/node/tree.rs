//! The supervision tree of a node: its root, and the root's children. ARCHITECTURE.md draws it.
//!
//! One for one: a child that dies is started again, at most five times within ten seconds for all children together;
//! then the node ends, with the reason. What must survive a death (the committer's state, the book of leases, the
//! workers' current attempts) is owned outside the actors. The root waits neither for the network nor for another part.

use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;

use crate::api::waits;
use crate::attempt::cancelled;
use crate::attempt::node_ports::NodePorts;
use crate::batches;
use crate::cluster::readiness::OF_QUEUES;
use crate::cluster::{
    clock_watch, discovery, dlq_watch, event_files, node_name, offered_handlers, presence, pressure_watch, put_queues,
    run_time_settings, served_types, stream_watch, unserved,
};
use crate::commit::committer;
use crate::lease_keeper;
use crate::limits::{breaker, concurrency, rate};
use crate::metrics::Metrics;
use crate::node::parts::Parts;
use crate::pull::receiver;
use crate::queue::dispatcher::Dispatcher;
use crate::queue::lane_guard;
use crate::queue::serve::{Order, QueueChildren, RootAddress};
use crate::queue::supervisor::{self, SupervisorMessage};
use crate::runtime::supervision::{ChildSpec, Deaths, GoesOn, Question, SupervisorAnswer, death};
use crate::service;
use crate::streams::tail;
use crate::time::{recurring, sweep, timekeeper};
use crate::trace;
use crate::webhooks::feed;

/// All children of the root except those of queues, in the order in which they start. What each is given,
/// `parts.rs` says.
pub(crate) fn children(parts: &Parts, ports: &Arc<NodePorts>) -> Vec<ChildSpec> {
    let Parts { api, gates, leases, .. } = parts;
    let breakers = &api.circuit_breaker;
    let mut children = vec![
        ChildSpec::with_messages("committer", &api.committer.address, Arc::clone(&parts.committing), committer::run),
        ChildSpec::with_messages("lease-keeper", leases, parts.lease_keeper(), lease_keeper::run),
        ChildSpec::new("lane-guard", parts.lane_guard(ports), lane_guard::run),
        ChildSpec::new("timekeeper", parts.timekeeper(), timekeeper::run),
        ChildSpec::new("api", parts.service(), service::run),
        ChildSpec::new("cancels", parts.cancels(ports), cancelled::watch),
        ChildSpec::new("presence", parts.presence(), presence::run),
        ChildSpec::new("run-time-settings", parts.run_time_settings(), run_time_settings::run),
        ChildSpec::new("put-queues", parts.put_queues(ports), put_queues::run),
        ChildSpec::new("dlq-watch", parts.watcher(), dlq_watch::run),
        ChildSpec::new("unserved-queues", parts.watcher(), unserved::run),
        ChildSpec::new("clock-watch", parts.watcher(), clock_watch::run),
        ChildSpec::new("stream-watch", parts.stream_watch(), stream_watch::run),
        ChildSpec::new("node-name", parts.node_name(), node_name::answer),
        ChildSpec::new("sweep", Arc::clone(api), sweep::run),
        ChildSpec::new("batch-keeper", Arc::clone(api), batches::keeper::run),
        ChildSpec::new("recurring", parts.recurring(), recurring::run),
        ChildSpec::new("unstored-ends", Arc::clone(api), waits::answer),
        ChildSpec::new("handler-discovery", parts.discovery(), discovery::run),
        ChildSpec::new("event-streams", parts.streams(), tail::run),
        ChildSpec::new("served-types", parts.served_types(), served_types::run),
        ChildSpec::new("offered-handlers", parts.offered_handlers(), offered_handlers::run),
        ChildSpec::new("pull-receiver", parts.pull_receiver(), receiver::run),
        ChildSpec::with_messages("rate-limiter", &gates.limits.address, parts.limiter(), rate::keeper::run),
        ChildSpec::with_messages("slot-keeper", &gates.slots.address, parts.slot_keeper(), concurrency::keeper::run),
        ChildSpec::with_messages("circuit-breaker", breakers, parts.circuit_breaker(), breaker::keeper::run),
    ];
    children.extend(parts.pressure_watch().map(|part| ChildSpec::new("pressure-watch", part, pressure_watch::run)));
    children.extend(api.tracer.iter().map(|tracer| {
        ChildSpec::with_messages("trace-exporter", &tracer.address, Arc::clone(&tracer.exporting), trace::run)
    }));
    children.extend(api.webhooks.iter().map(|_| ChildSpec::new("webhook-feed", Arc::clone(api), feed::run)));
    children.extend(parts.event_files().map(|part| ChildSpec::new("event-files", part, event_files::run)));
    children
}

pub(crate) struct Root;

/// What the root starts, where orders to it come from, and where it says why it gave up.
pub(crate) struct RootArguments {
    pub(crate) children: Vec<ChildSpec>,
    pub(crate) queues: Vec<QueueChildren>,
    pub(crate) address: RootAddress,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ends: oneshot::Sender<String>,
}

pub(crate) struct RootState {
    metrics: Arc<Metrics>,
    alive: Vec<Alive>,
    deaths: Deaths,
    ends: Option<oneshot::Sender<String>>,
}

struct Alive {
    actor: ActorCell,
    child: ChildSpec,
    /// The queue that it is for, if it is for one.
    queue: Option<Arc<Dispatcher>>,
}

impl Actor for Root {
    type Msg = Order;
    type State = RootState;
    type Arguments = RootArguments;

    async fn pre_start(&self, myself: ActorRef<Order>, tree: RootArguments) -> Result<RootState, ActorProcessingErr> {
        let RootArguments { children, queues, address, metrics, ends } = tree;
        address.leads_to(myself.clone());
        // The series of each part begins at 0, so that a rate sees its first death.
        let parts = children.iter().map(|child| child.name).chain(OF_QUEUES);
        parts.for_each(|part| drop(metrics.restarts.with_label_values(&[part])));
        let mut state = RootState { metrics, alive: Vec::new(), deaths: Deaths::new(), ends: Some(ends) };
        for child in children {
            state.start(child, None, &myself).await?;
        }
        for queue in queues {
            state.serve(queue, &myself).await?;
        }
        Ok(state)
    }

    async fn handle(&self, myself: ActorRef<Order>, order: Order, state: &mut RootState) -> GoesOn {
        match order {
            Order::Serve(queue) => {
                let result = state.serve(queue, &myself).await;
                return state.say_if_over(result);
            }
            Order::End(queue) => state.end(&queue),
            Order::Answer(question) => state.answer(&question),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Order>,
        event: SupervisionEvent,
        state: &mut RootState,
    ) -> GoesOn {
        let Some((id, reason)) = death(event) else { return Ok(()) };
        let result = state.restart(id, &reason, &myself).await;
        state.say_if_over(result)
    }
}

impl RootState {
    async fn restart(&mut self, id: ActorId, reason: &str, myself: &ActorRef<Order>) -> GoesOn {
        let Some(at) = self.alive.iter().position(|alive| alive.actor.get_id() == id) else { return Ok(()) };
        let Alive { child, queue, .. } = self.alive.swap_remove(at);
        tracing::error!(actor = child.name, "died, starting it again: {reason}");
        self.metrics.restarts.with_label_values(&[child.name]).inc();
        self.deaths.count(reason)?;
        self.start(child, queue, myself).await
    }

    async fn serve(&mut self, children: QueueChildren, myself: &ActorRef<Order>) -> GoesOn {
        let QueueChildren { queue, children } = children;
        for child in children {
            self.start(child, Some(Arc::clone(&queue)), myself).await?;
        }
        Ok(())
    }

    /// Stops the children of a queue. Their ends do not count as deaths, as they are forgotten before.
    fn end(&mut self, ended: &Arc<Dispatcher>) {
        let is_of = |alive: &mut Alive| alive.queue.as_ref().is_some_and(|queue| Arc::ptr_eq(queue, ended));
        for Alive { actor, .. } in self.alive.extract_if(.., is_of) {
            actor.stop(None);
        }
    }

    /// Answers for itself, and has the supervisors of the queues answer.
    fn answer(&self, question: &Question) {
        let ask = |alive: &&Alive| alive.actor.send_message(SupervisorMessage::Answer(question.clone())).is_ok();
        let pass_on = |alive: &&Alive| alive.child.name == supervisor::NAME && ask(alive);
        let _ = question.try_send(SupervisorAnswer::Root(self.alive.iter().filter(pass_on).count()));
    }

    async fn start(&mut self, child: ChildSpec, queue: Option<Arc<Dispatcher>>, myself: &ActorRef<Order>) -> GoesOn {
        let actor = child.start(myself.get_cell()).await?;
        self.alive.push(Alive { actor, child, queue });
        Ok(())
    }

    /// Says why the node gives up, if it does.
    fn say_if_over(&mut self, result: GoesOn) -> GoesOn {
        if let Err(error) = &result {
            let reason = error.to_string();
            tracing::error!("the node gives up: {reason}");
            self.ends.take().map(|ends| ends.send(reason));
        }
        result
    }
}
