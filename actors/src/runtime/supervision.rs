//! Supervision, which ractor leaves to its user: children are watched and started again, within limits.
//!
//! Most parts of a node are loops: a plain task that owns its state and never passes a job through a mailbox.
//! [`Keeper`] is the actor that such a loop lives in: when the loop ends or panics, the actor dies, and its supervisor
//! judges. A loop that is steered while it runs has messages ([`address`](crate::runtime::address)), which its keeper
//! passes on to it. Starting a child waits for nothing but the runtime.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
pub(crate) use longshore_backbone::ticks::ticks;
use longshore_domain::restart::Restarts;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::runtime::address::{Address, KeeperMessage, Mailbox};

/// After more deaths than this within [`WITHIN`] a supervisor gives up.
const MAX_DEATHS: usize = 5;
/// The window of restart intensity.
const WITHIN: Duration = Duration::from_secs(10);

/// How a child's loop ends, which it never should by itself; an error says why it cannot go on.
pub(crate) type LoopEnd = Result<(), String>;

/// Whether an actor goes on after what it has handled: an error ends it.
pub(crate) type GoesOn = Result<(), ActorProcessingErr>;

/// Why a loop ends that receives no more deliveries.
pub(crate) const SUBSCRIPTION_ENDED: &str = "the connection's subscription ended";

/// A child: its name, and how it is (re)started.
#[derive(Clone)]
pub(crate) struct ChildSpec {
    pub(crate) name: &'static str,
    start: Arc<Start>,
}

type Start = dyn Fn(ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>> + Send + Sync;

impl ChildSpec {
    /// A loop that is given a clone of `part`, which has all that it may use.
    pub(crate) fn new<P, F, Fut>(name: &'static str, part: P, run: F) -> Self
    where
        P: Clone + Send + Sync + 'static,
        F: Fn(P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = LoopEnd> + Send + 'static,
    {
        Self::with_messages(name, &Address::<Infallible>::default(), part, move |part, _| run(part))
    }

    /// The same, with messages: what is sent to `address` comes into the loop's mailbox.
    pub(crate) fn with_messages<M, P, F, Fut>(name: &'static str, address: &Address<M>, part: P, run: F) -> Self
    where
        M: Send + 'static,
        P: Clone + Send + Sync + 'static,
        F: Fn(P, Mailbox<M>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = LoopEnd> + Send + 'static,
    {
        let address = address.clone();
        let start = move |supervisor| -> BoxFuture<'static, _> {
            let (put, mailbox) = Mailbox::new();
            let work = Box::pin(run(part.clone(), mailbox));
            let kept = KeptLoop { name, work, put, address: address.clone() };
            Box::pin(async move {
                let (actor, _) = Actor::spawn_linked(None, Keeper(PhantomData), kept, supervisor).await?;
                Ok(actor.get_cell())
            })
        };
        Self::of_actor(name, start)
    }

    /// An actor that is no loop; `start` starts it under the supervisor that it is given.
    pub(crate) fn of_actor<F>(name: &'static str, start: F) -> Self
    where
        F: Fn(ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>> + Send + Sync + 'static,
    {
        Self { name, start: Arc::new(start) }
    }

    pub(crate) async fn start(&self, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
        (self.start)(supervisor).await
    }
}

/// The actor in which a loop lives. `M` are the loop's messages.
struct Keeper<M>(PhantomData<fn(M)>);

struct KeptLoop<M> {
    name: &'static str,
    work: BoxFuture<'static, LoopEnd>,
    put: mpsc::Sender<M>,
    address: Address<M>,
}

struct LoopState<M> {
    name: &'static str,
    task: JoinHandle<()>,
    put: mpsc::Sender<M>,
}

impl<M> Drop for LoopState<M> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<M: Send + 'static> Actor for Keeper<M> {
    type Msg = KeeperMessage<M>;
    type State = LoopState<M>;
    type Arguments = KeptLoop<M>;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        kept: KeptLoop<M>,
    ) -> Result<Self::State, ActorProcessingErr> {
        let KeptLoop { name, work, put, address } = kept;
        address.leads_to(myself.clone(), put.downgrade());
        let task = tokio::spawn(async move {
            let end = std::panic::AssertUnwindSafe(work).catch_unwind().await;
            let reason = match end {
                Ok(Ok(())) => "its loop ended".to_owned(),
                Ok(Err(reason)) => reason,
                Err(panic) => format!("it panicked: {}", panic_text(&*panic)),
            };
            // The actor may be gone already: then its supervisor knows of its end.
            let _ = myself.cast(KeeperMessage::Ended(reason));
        });
        Ok(LoopState { name, task, put })
    }

    async fn handle(&self, _: ActorRef<Self::Msg>, message: Self::Msg, state: &mut Self::State) -> GoesOn {
        match message {
            KeeperMessage::Sent(message) => {
                if state.put.try_send(message).is_err() {
                    tracing::debug!(actor = state.name, "a message was dropped: the loop has ended, or does not read");
                }
                Ok(())
            }
            KeeperMessage::Ended(reason) => Err(format!("{}: {reason}", state.name).into()),
        }
    }
}

/// What each supervisor answers, the root first: whether it still reads its messages. The one that asked may have gone,
/// and asks again where there was too little room for the answers.
pub(crate) type Question = mpsc::Sender<SupervisorAnswer>;

#[derive(Debug)]
pub(crate) enum SupervisorAnswer {
    /// The root has passed the question on to so many supervisors.
    Root(usize),
    /// One of those.
    Queue,
}

/// The child that died, and why, if that is what the event says.
pub(crate) fn death(event: SupervisionEvent) -> Option<(ActorId, String)> {
    match event {
        SupervisionEvent::ActorFailed(child, reason) => Some((child.get_id(), reason.to_string())),
        SupervisionEvent::ActorTerminated(child, _, reason) => {
            Some((child.get_id(), reason.unwrap_or_else(|| "it was stopped".to_owned())))
        }
        SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => None,
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

/// A supervisor's count of its children's deaths.
#[derive(Debug)]
pub(crate) struct Deaths(Restarts);

impl Deaths {
    pub(crate) fn new() -> Self {
        Self(Restarts::new(MAX_DEATHS, WITHIN))
    }

    /// Counts a death; an error if the children keep dying.
    pub(crate) fn count(&mut self, reason: &str) -> GoesOn {
        let starts_again = self.0.after_death(Instant::now());
        if starts_again {
            return Ok(());
        }
        Err(format!("more than {MAX_DEATHS} deaths within {} s, the last: {reason}", WITHIN.as_secs()).into())
    }
}
