//! The node: root of the supervision tree.
//!
//! ```text
//! node
//! ├─ committer          carries out commits: record, events, follow-up, acknowledgement
//! ├─ lease-keeper       renews the leases of running jobs
//! ├─ lane-guard         removes messages that no client can read
//! ├─ timekeeper         moves due jobs into their lanes
//! ├─ api                answers API requests
//! ├─ cancels            receives cancellations, stops those runs if they run here
//! ├─ presence           publishes that the node is there
//! ├─ dlq-watch          warns before the oldest dead letters have to go
//! ├─ node-name          answers questions for the node's name
//! ├─ sweep              recovers schedules that did not fire
//! ├─ unstored-ends      answers questions for ends that left no record
//! ├─ handler-discovery  asks remote handlers what they announce
//! ├─ parking …          one per queue: takes back parked jobs as they can start
//! └─ queue …            one per queue: its scheduler and its workers
//! ```
//!
//! One for one: a child that dies is started again, at most five times within ten seconds for all children together;
//! then the node ends, with the reason. What must survive a death (the committer's state, the book of leases, the
//! workers' current attempts) is owned outside the actors.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::work::Caller;
use longshore_backbone::{Backbone, Connection};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::api::{service, waits};
use crate::attempt::cancelled;
use crate::cluster::{discovery, dlq_watch, node_name, presence, system_events};
use crate::commit::committer::{self, Committer};
use crate::lease_keeper::{self, Book};
use crate::metrics::Metrics;
use crate::queue::dispatcher::{self, Dispatcher};
use crate::queue::supervisor::QueueSupervisor;
use crate::queue::{lane_guard, parking};
use crate::shared::Shared;
use crate::supervision::{ChildSpec, Deaths};
use crate::time::{sweep, timekeeper};
use crate::{Handlers, Settings};

/// How long a starting node waits for its API.
const SERVES_WITHIN: Duration = Duration::from_secs(5);
/// How long closing the lanes may take: one round trip to the server.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How long a drain may take beyond the grace time to write and publish the releases. An election of the server fits
/// in: it takes 4 to 8 s.
const FLUSH_WITHIN: Duration = Duration::from_secs(10);

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
    shared: Arc<Shared>,
    queues: Vec<Arc<Dispatcher>>,
    root: ActorRef<()>,
    life: JoinHandle<()>,
    reason: oneshot::Receiver<String>,
    grace: Duration,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.shared.node).finish_non_exhaustive()
    }
}

impl Node {
    /// Connects, brings streams and consumers into shape, starts the tree and takes work.
    ///
    /// # Errors
    /// Says what could not be done.
    pub async fn start(settings: Settings, connection: Connection, handlers: Handlers) -> Result<Self, Error> {
        let Settings { name, shutdown_grace, policies, storage } = settings;
        let queues = policies
            .queues
            .iter()
            .map(|(name, policy)| Arc::new(Dispatcher::new(name.clone(), *policy, storage.lease)));
        let queues: Vec<Arc<Dispatcher>> = queues.collect();
        let backbone =
            Backbone::open(&connection, storage, &name, policies.queues.keys()).await.map_err(Error::Start)?;
        let metrics = Arc::new(Metrics::new());
        let (door, committing) = Committer::open(backbone.clone(), Arc::clone(&metrics));
        let caller = Caller::open(&backbone).await.map_err(Error::Start)?;
        let book = Arc::new(Book::default());
        let shared = Shared::new(backbone, name.into(), policies, handlers, door, book, caller, Arc::clone(&metrics));
        let shared = Arc::new(shared);
        let (name, backbone) = (&shared.node, &shared.backbone);
        let taken = |who| Error::NameTaken { name: name.to_string(), who };
        node_name::wait_for_name(backbone, name, &shared.instance).await.map_err(taken)?;
        let children = children(&shared, &queues, committing);
        let (tell, reason) = oneshot::channel();
        let tree = Tree { shared: Arc::clone(&shared), queues: queues.clone(), children, tell };
        let (root, life) = Actor::spawn(None, Root, tree).await.map_err(|error| Error::Tree(error.to_string()))?;
        // A client that learns that the node is ready may send it requests. If the API takes longer than this, it comes
        // up later.
        let _ = tokio::time::timeout(SERVES_WITHIN, shared.serving.cancelled()).await;
        system_events::publish(&shared, "node_joined", Value::Null).await;
        tracing::info!(node = %shared.node, queues = queues.len(), "taking work");
        Ok(Self { shared, queues, root, life, reason, grace: shutdown_grace })
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.node
    }

    /// Its metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Resolves when the node has ended by itself, which is always a failure.
    pub async fn failed(&mut self) -> Error {
        let reason = (&mut self.reason).await;
        Error::GaveUp(reason.unwrap_or_else(|_| "its supervision tree ended".to_owned()))
    }

    /// Stops pulling, lets running jobs end within the grace time, releases the rest, flushes, and ends.
    ///
    /// # Errors
    /// Says what could not be flushed.
    pub async fn drain(self) -> Result<(), Error> {
        let shared = &self.shared;
        tracing::info!(node = %shared.node, "draining");
        shared.draining.cancel();
        for queue in &self.queues {
            let _ = tokio::time::timeout(CLOSE_WITHIN, queue.closed.cancelled()).await;
        }
        if tokio::time::timeout(self.grace, self.idle()).await.is_err() {
            tracing::warn!("the grace time is over: releasing the attempts that still run");
            shared.release.cancel();
            let _ = tokio::time::timeout(FLUSH_WITHIN, self.idle()).await;
        }
        let flushed = tokio::time::timeout(FLUSH_WITHIN, shared.committer.flush()).await;
        let goodbye = tokio::time::timeout(GOODBYE_TIMEOUT, self.say_goodbye()).await;
        self.root.stop(None);
        let _ = self.life.await;
        let sent = tokio::time::timeout(GOODBYE_TIMEOUT, shared.backbone.flush()).await;
        flushed.and(goodbye).and(sent).map_err(|_| Error::NotFlushed)
    }

    /// Publishes that this node is gone. Should that be lost, its silence says the same later.
    async fn say_goodbye(&self) {
        system_events::publish(&self.shared, "node_left", Value::Null).await;
        if let Err(error) = self.shared.backbone.depart(&self.shared.node).await {
            tracing::debug!("cannot say that this node is gone: {error}");
        }
    }

    /// Waits until no worker is busy.
    async fn idle(&self) {
        for queue in &self.queues {
            while queue.running() > 0 {
                queue.idle.back().await;
            }
        }
    }
}

/// All children except the queues, in the order in which they start.
fn children(
    shared: &Arc<Shared>,
    queues: &[Arc<Dispatcher>],
    committing: Arc<tokio::sync::Mutex<committer::Committing>>,
) -> Vec<ChildSpec> {
    let backbone = shared.backbone.clone();
    let (book, metrics) = (Arc::clone(&shared.book), Arc::clone(&shared.metrics));
    let (time, tell, ask) = (Arc::clone(shared), Arc::clone(shared), Arc::clone(shared));
    let (cancels, letters) = (Arc::clone(shared), Arc::clone(shared));
    let (name, ends, swept) = (Arc::clone(shared), Arc::clone(shared), Arc::clone(shared));
    let (serve, queues) = (Arc::clone(shared), queues.to_vec());
    let busy = queues.clone();
    let parking = queues.iter().map(|queue| {
        let (shared, queue) = (Arc::clone(shared), Arc::clone(queue));
        ChildSpec::new("parking", move || parking::run(Arc::clone(&shared), Arc::clone(&queue)))
    });
    let parking: Vec<ChildSpec> = parking.collect();
    let (guard, names) = (Arc::clone(shared), queues.iter().map(|queue| queue.name.clone()).collect::<Vec<_>>());
    let loops = vec![
        ChildSpec::new("committer", move || committer::run(Arc::clone(&committing))),
        ChildSpec::new("lease-keeper", move || {
            lease_keeper::run(backbone.clone(), Arc::clone(&book), Arc::clone(&metrics))
        }),
        ChildSpec::new("lane-guard", move || lane_guard::run(Arc::clone(&guard), names.clone())),
        ChildSpec::new("timekeeper", move || timekeeper::run(Arc::clone(&time))),
        ChildSpec::new("api", move || service::run(Arc::clone(&serve), queues.clone())),
        ChildSpec::new("cancels", move || cancelled::watch(Arc::clone(&cancels))),
        ChildSpec::new("presence", move || {
            let queues = busy.clone();
            presence::run(Arc::clone(&tell), move || dispatcher::loads(&queues))
        }),
        ChildSpec::new("dlq-watch", move || dlq_watch::run(Arc::clone(&letters))),
        ChildSpec::new("node-name", move || node_name::answer(Arc::clone(&name))),
        ChildSpec::new("sweep", move || sweep::run(Arc::clone(&swept))),
        ChildSpec::new("unstored-ends", move || waits::answer(Arc::clone(&ends))),
        ChildSpec::new("handler-discovery", move || discovery::run(Arc::clone(&ask))),
    ];
    loops.into_iter().chain(parking).collect()
}

/// The root supervisor.
struct Root;

struct Tree {
    shared: Arc<Shared>,
    queues: Vec<Arc<Dispatcher>>,
    children: Vec<ChildSpec>,
    tell: oneshot::Sender<String>,
}

struct State {
    tree: Tree,
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
    type Arguments = Tree;

    async fn pre_start(&self, myself: ActorRef<()>, mut tree: Tree) -> Result<State, ActorProcessingErr> {
        let (unused, _) = oneshot::channel();
        let told = Some(std::mem::replace(&mut tree.tell, unused));
        let all = (0..tree.children.len()).map(Child::Loop).chain((0..tree.queues.len()).map(Child::Queue));
        let all: Vec<Child> = all.collect();
        let mut state = State { tree, alive: Vec::new(), deaths: Deaths::new(), told };
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
            Child::Loop(number) => self.tree.children[number].name,
            Child::Queue(_) => "queue",
        };
        tracing::error!(actor = name, "died, starting it again: {reason}");
        self.tree.shared.metrics.restarts.with_label_values(&[name]).inc();
        self.deaths.count(reason)?;
        self.start(child, myself).await
    }

    async fn start(&mut self, child: Child, myself: &ActorRef<()>) -> Result<(), ActorProcessingErr> {
        let supervisor = myself.get_cell();
        let id = match child {
            Child::Loop(number) => self.tree.children[number].start(supervisor).await?.get_id(),
            Child::Queue(number) => {
                let arguments = (Arc::clone(&self.tree.shared), Arc::clone(&self.tree.queues[number]));
                Actor::spawn_linked(None, QueueSupervisor, arguments, supervisor).await?.0.get_id()
            }
        };
        self.alive.push((id, child));
        Ok(())
    }
}
