//! Supervision, which ractor leaves to its user: children are watched and started again, within limits.
//!
//! Most parts of a node are loops: a plain task that owns its state and never passes a job through a mailbox.
//! [`Keeper`] is the actor that such a loop lives in: when the loop ends or panics, the actor dies, and its supervisor
//! judges.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use longshore_domain::restart::{Restarts, Verdict};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef};
use tokio::task::JoinHandle;

use crate::handler::BoxFuture;

/// After more deaths than this within [`WITHIN`] a supervisor gives up.
const MAX_DEATHS: usize = 5;
/// The window of restart intensity.
const WITHIN: Duration = Duration::from_secs(10);

/// How a child's loop ends, which it never should by itself; an error says why it cannot go on.
pub(crate) type LoopEnd = Result<(), String>;

/// Why a loop ends that receives no more deliveries.
pub(crate) const SUBSCRIPTION_ENDED: &str = "the connection's subscription ended";

/// A child: its name, and how its loop is (re)started.
#[derive(Clone)]
pub(crate) struct ChildSpec {
    pub(crate) name: &'static str,
    pub(crate) run: Arc<dyn Fn() -> BoxFuture<'static, LoopEnd> + Send + Sync>,
}

impl ChildSpec {
    /// A loop that is given a clone of `part`, which has all that it may use.
    pub(crate) fn new<P, F, Fut>(name: &'static str, part: P, run: F) -> Self
    where
        P: Clone + Send + Sync + 'static,
        F: Fn(P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = LoopEnd> + Send + 'static,
    {
        Self { name, run: Arc::new(move || Box::pin(run(part.clone()))) }
    }

    /// Starts the child under `supervisor`.
    pub(crate) async fn start(&self, supervisor: ActorCell) -> Result<ActorRef<Message>, ractor::SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, Keeper, self.clone(), supervisor).await?;
        Ok(actor)
    }
}

/// The actor in which a loop lives.
pub(crate) struct Keeper;

/// Mailbox: one message in its life.
pub(crate) enum Message {
    /// The loop has ended, which it never should by itself.
    Ended(String),
}

pub(crate) struct State {
    name: &'static str,
    task: JoinHandle<()>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Actor for Keeper {
    type Msg = Message;
    type State = State;
    type Arguments = ChildSpec;

    async fn pre_start(&self, myself: ActorRef<Message>, spec: ChildSpec) -> Result<State, ActorProcessingErr> {
        let work = (spec.run)();
        let task = tokio::spawn(async move {
            let end = std::panic::AssertUnwindSafe(work).catch_unwind().await;
            let reason = match end {
                Ok(Ok(())) => "its loop ended".to_owned(),
                Ok(Err(reason)) => reason,
                Err(panic) => format!("it panicked: {}", panic_text(&*panic)),
            };
            // The actor may be gone already: then its supervisor knows of its end.
            let _ = myself.cast(Message::Ended(reason));
        });
        Ok(State { name: spec.name, task })
    }

    async fn handle(
        &self,
        _: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let Message::Ended(reason) = message;
        Err(format!("{}: {reason}", state.name).into())
    }
}

/// The message of a panic.
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
    pub(crate) fn count(&mut self, reason: &str) -> Result<(), ActorProcessingErr> {
        match self.0.after_death(Instant::now()) {
            Verdict::Restart => Ok(()),
            Verdict::GiveUp => {
                let last = format!("more than {MAX_DEATHS} deaths within {} s, the last: {reason}", WITHIN.as_secs());
                Err(last.into())
            }
        }
    }
}
