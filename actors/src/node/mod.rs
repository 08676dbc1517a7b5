//! A node: starts its parts and the supervision tree over them (`tree.rs`), and drains.

pub(crate) mod observer;
pub(crate) mod parts;
pub(crate) mod tree;

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::handlers::Caller;
use longshore_backbone::{Backbone, Connection};
use ractor::{Actor, ActorRef};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::cluster::node_name;
use crate::handlers::handler::Handlers;
use crate::lease_keeper::LeaseKeeperMessage;
use crate::limits::concurrency::keeper::SlotKeeperMessage;
use crate::metrics::Metrics;
use crate::node::observer::Observer;
use crate::node::parts::Parts;
use crate::node::tree::{Root, RootArguments};
use crate::queue::dispatcher::SchedulerMessage;
use crate::queue::serve::Order;
use crate::runtime::lifecycle::Lifecycle;
use crate::runtime::now;
use crate::settings::Settings;

/// How long a starting node waits for its API.
const SERVES_WITHIN: Duration = Duration::from_secs(5);
/// How long a node that drains waits to learn whether others are there.
const ASK_WITHIN: Duration = Duration::from_secs(1);
/// How long closing the lanes may take: one round trip to the server.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How long it may take to ask all workers to stop: longer than the lease-keeper needs to be started again.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);
/// How long the API's last requests may take, once no attempt runs any more.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long a drain may take beyond the grace time to write and publish the releases. An election of the server fits
/// in: it takes 4 to 8 s.
const FLUSH_WITHIN: Duration = Duration::from_secs(10);
/// How long the node may take to give back its slots of concurrency limits.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// How long each of the node's last steps may take, saying goodbye and flushing the last bytes: perhaps no server is
/// there any more to receive them.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a node could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NATS cannot be reached, or its streams and consumers cannot be brought into shape.
    #[error("the node cannot start")]
    Start(#[source] longshore_backbone::Error),
    /// Another node has its name.
    #[error("the name {name:?} is taken by another node ({who}); each needs its own: node.name, LONGSHORE_NODE__NAME")]
    NameTaken {
        /// The name.
        name: String,
        /// What the other node says of itself.
        who: String,
    },
    /// A file that the audit is to be written to cannot be opened.
    #[error("{setting}: {why}")]
    AuditFile {
        /// The setting that names it.
        setting: &'static str,
        /// Its path, and the reason.
        why: String,
    },
    /// The supervision tree could not be started.
    #[error("the supervision tree cannot start: {0}")]
    Tree(String),
    /// A part of the tree kept dying.
    #[error("the node gives up: {0}")]
    GaveUp(String),
    /// Not everything was confirmed in time; what was not confirmed is delivered again.
    #[error("the node ended before the server had confirmed everything; what it had not, comes again")]
    NotFlushed,
}

/// A running node.
pub struct Node {
    parts: Parts,
    observer: Observer,
    root: ActorRef<Order>,
    life: JoinHandle<()>,
    reason: oneshot::Receiver<String>,
    grace: Duration,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.parts.api.identity.node).finish_non_exhaustive()
    }
}

impl Node {
    /// Connects, brings streams and consumers into shape, starts the tree and takes work. Until it is through, it has
    /// taken none and may be dropped; from then on [`Node::drain`] ends the node in order.
    ///
    /// # Errors
    /// Says what could not be done.
    pub async fn begin(settings: Settings, connection: Connection, handlers: Handlers) -> Result<Self, Error> {
        // A path that cannot be written is known as the node starts.
        let named = |setting| move |why| Error::AuditFile { setting, why };
        settings.audit_file.as_ref().map_or(Ok(()), |file| file.open().map_err(named("audit.file")))?;
        settings.event_file.as_ref().map_or(Ok(()), |file| file.open().map_err(named("audit.events_file")))?;
        let Settings { name, shutdown_grace: grace, policies, storage, .. } = &settings;
        let (grace, storage) = (*grace, storage.clone());
        let backbone =
            Backbone::open(&connection, storage, name, policies.queues.keys()).await.map_err(Error::Start)?;
        let caller = Caller::open(&backbone).await.map_err(Error::Start)?;
        let parts = Parts::new(backbone, settings, handlers);
        let taken = |who| Error::NameTaken { name: parts.api.identity.node.to_string(), who };
        node_name::wait_for_name(&parts.api.backbone.nodes(), &parts.api.identity).await.map_err(taken)?;
        let ports = Arc::new(parts.ports(caller));
        let (ends, reason) = oneshot::channel();
        let maker = parts.queue_maker(&ports);
        let policies = &parts.gates.routing.policies;
        let configured = policies.queues.iter().filter(|_| !policies.gateway);
        let tree = RootArguments {
            children: tree::children(&parts, &ports),
            queues: configured.map(|(queue, policy)| maker.make(queue, *policy)).collect(),
            address: parts.root.clone(),
            metrics: Arc::clone(&parts.api.metrics),
            ends,
        };
        let (root, life) = Actor::spawn(None, Root, tree).await.map_err(|error| Error::Tree(error.to_string()))?;
        let observer = Observer::new(&parts);
        Ok(Self { parts, observer, root, life, reason, grace })
    }

    /// As [`Self::begin`], and waits until it is [ready](Self::ready).
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub async fn start(settings: Settings, connection: Connection, handlers: Handlers) -> Result<Self, Error> {
        let node = Self::begin(settings, connection, handlers).await?;
        node.ready().await;
        Ok(node)
    }

    /// Waits until a client that learns that the node is ready may send it requests, and find the declared schedules.
    /// If that takes longer than five seconds, it comes later.
    pub async fn ready(&self) {
        let api = &self.parts.api;
        let started = async {
            api.lifecycle.serving.cancelled().await;
            api.lifecycle.in_line.cancelled().await;
        };
        let _ = tokio::time::timeout(SERVES_WITHIN, started).await;
        api.system_events.publish("node_joined", Value::Null).await;
        tracing::info!(node = %api.identity.node, queues = self.parts.queues.all().len(), "taking work");
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.parts.api.identity.node
    }

    /// A view of the node for probes and monitoring; it may outlive the node.
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Its metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.parts.api.metrics
    }

    /// Resolves when the node has ended by itself, which is always a failure.
    pub async fn failed(&mut self) -> Error {
        let reason = (&mut self.reason).await;
        Error::GaveUp(reason.unwrap_or_else(|_| "its supervision tree ended".to_owned()))
    }

    /// Stops pulling, lets running jobs end within the grace time, releases the rest, flushes, answers the last
    /// requests, and ends.
    ///
    /// # Errors
    /// Says what could not be flushed.
    pub async fn drain(self) -> Result<(), Error> {
        tracing::info!(node = %self.parts.api.identity.node, "draining");
        if self.is_alone().await {
            self.parts.api.backbone.return_for_later();
        }
        self.parts.api.lifecycle.draining.cancel();
        let queues = self.parts.queues.all();
        let closed = queues.iter().map(|queue| queue.scheduler.ask(CLOSE_WITHIN, SchedulerMessage::Drain));
        futures_util::future::join_all(closed).await;
        if tokio::time::timeout(self.grace, self.idle()).await.is_err() {
            tracing::warn!("the grace time is over: releasing the attempts that still run");
            if self.parts.leases.ask(RELEASE_WITHIN, LeaseKeeperMessage::Release).await.is_none() {
                tracing::warn!("the lease-keeper does not answer: what runs is not released and comes after its lease");
            }
            self.parts.offered_calls.handed_back.cancel();
            let _ = tokio::time::timeout(FLUSH_WITHIN, self.idle()).await;
        }
        let is_flushed = self.parts.api.committer.flush(FLUSH_WITHIN).await;
        // Every end is stored by now: who waits for another run is to ask another node.
        let Lifecycle { leaving, answered, .. } = &self.parts.api.lifecycle;
        leaving.cancel();
        let last = futures_util::future::join(answered.cancelled(), self.observer.api().answered());
        let _ = tokio::time::timeout(ANSWER_WITHIN, last).await;
        // If it takes longer, its slots come back with its lease.
        let _ = self.parts.gates.slots.address.ask(LEAVE_WITHIN, SlotKeeperMessage::Leave).await;
        if let Some(tracer) = &self.parts.api.tracer {
            tracer.flush(GOODBYE_TIMEOUT).await;
        }
        let goodbye = tokio::time::timeout(GOODBYE_TIMEOUT, self.say_goodbye()).await;
        self.root.stop(None);
        let _ = self.life.await;
        let sent = tokio::time::timeout(GOODBYE_TIMEOUT, self.parts.api.backbone.flush()).await;
        if is_flushed && goodbye.is_ok() && sent.is_ok() { Ok(()) } else { Err(Error::NotFlushed) }
    }

    /// Whether no other node is there to take the jobs that this one returns, as far as the server says so in time.
    async fn is_alone(&self) -> bool {
        let nodes = self.parts.api.backbone.nodes();
        let Ok(Ok(present)) = tokio::time::timeout(ASK_WITHIN, nodes.present(now())).await else { return true };
        !present.iter().any(|other| other.state == "running" && other.node != *self.parts.api.identity.node)
    }

    /// Publishes that this node is gone. Should that be lost, its silence says the same later.
    async fn say_goodbye(&self) {
        self.parts.api.system_events.publish("node_left", Value::Null).await;
        if let Err(error) = self.parts.api.backbone.nodes().depart(&self.parts.api.identity.node).await {
            tracing::debug!("cannot say that this node is gone: {error}");
        }
    }

    /// Waits until no worker is busy, and no handler works for another node.
    async fn idle(&self) {
        for queue in self.parts.queues.all().iter() {
            while queue.running() > 0 {
                queue.idle.back.notified().await;
            }
        }
        self.parts.offered_calls.idle().await;
    }
}
