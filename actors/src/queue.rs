//! The supervisor of one queue: its scheduler and its workers, one for one.
//!
//! A scheduler's death cuts no running job: slots and idle workers are kept in [`QueueState`], which outlives them all.
//! A worker's death is settled as a failure of the attempt it was working on; the scheduler's costs nothing but the
//! jobs in its hand, which go back. It looks over its workers once a second: see [`crate::deaf`]. Mailbox: supervision
//! events, and that.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use longshore_domain::Queue;
use longshore_domain::policy::QueuePolicy;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, MessagingErr, SupervisionEvent};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::assignment::Assignment;
use crate::conclude::Again;
use crate::deaf::{self, Hearing};
use crate::perform::Slot;
use crate::pool::Idle;
use crate::ready::Ready;
use crate::scheduler;
use crate::shared::Shared;
use crate::supervision::{ChildSpec, Deaths};
use crate::turns::{Turn, Turns};
use crate::worker::{self, Worker};

/// What a queue's actors share; it outlives them.
pub(crate) struct QueueState {
    pub(crate) name: Queue,
    pub(crate) policy: QueuePolicy,
    pub(crate) idle: Idle,
    pub(crate) ready: Ready,
    pub(crate) turns: Turns,
    pub(crate) again: Mutex<mpsc::UnboundedReceiver<Assignment>>,
    /// Set when the scheduler has given back all it held.
    pub(crate) closed: CancellationToken,
    pub(crate) back: Again,
    /// Workers that were started once; fewer than the concurrency only while the queue starts.
    hired: AtomicUsize,
    workers: RwLock<Vec<Option<ActorRef<worker::Message>>>>,
    /// Where each worker's job lies, and whether its handler still hears.
    places: RwLock<Vec<(Slot, Arc<Hearing>)>>,
}

impl QueueState {
    pub(crate) fn new(name: Queue, policy: QueuePolicy, lease: Duration) -> Self {
        // Bounded by `IN_HAND_RETRIES`.
        let (back, again) = mpsc::unbounded_channel();
        Self {
            name,
            policy,
            idle: Idle::default(),
            ready: Ready::new(policy, lease),
            turns: Turns::of_runtime(),
            again: Mutex::new(again),
            closed: CancellationToken::new(),
            back,
            hired: AtomicUsize::new(0),
            workers: RwLock::new(vec![None; policy.concurrency]),
            places: RwLock::new((0..policy.concurrency).map(|_| Default::default()).collect()),
        }
    }

    /// Gives jobs in hand to idle workers, in order, for as long as there are both and turns are left.
    pub(crate) fn hand_out(self: &Arc<Self>, shared: &Arc<Shared>) {
        while self.turns.is_one_left() && self.wake_one(shared) {}
    }

    /// The same, however many turns are out.
    pub(crate) fn hand_out_all(self: &Arc<Self>, shared: &Arc<Shared>) {
        while self.wake_one(shared) {}
    }

    fn wake_one(self: &Arc<Self>, shared: &Arc<Shared>) -> bool {
        if shared.draining.is_cancelled() {
            return false;
        }
        let Some(number) = self.idle.take() else { return false };
        let Some(assignment) = self.ready.next(shared) else {
            self.idle.put_quietly(number);
            return false;
        };
        let message = worker::Message::Perform(assignment, Turn::taken(shared, self));
        if let Some(worker::Message::Perform(_, turn)) = self.send(number, message) {
            // The worker is dead; its supervisor brings another, and the job, dropped here, goes back.
            tracing::debug!(worker = number, "a dead worker was given a job; it goes back");
            turn.undo();
        }
        true
    }

    /// Gives a worker a message; it comes back if nobody lives there.
    fn send(&self, number: usize, message: worker::Message) -> Option<worker::Message> {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        let Some(worker) = workers.get(number).and_then(Option::as_ref) else { return Some(message) };
        match worker.cast(message) {
            Err(MessagingErr::SendErr(message)) => Some(message),
            Ok(()) | Err(_) => None,
        }
    }

    /// Where a worker's job lies, and whether its handler still hears.
    fn place(&self, number: usize) -> (Slot, Arc<Hearing>) {
        self.places.read().unwrap_or_else(PoisonError::into_inner)[number].clone()
    }

    /// Jobs that run now.
    pub(crate) fn running(&self) -> usize {
        self.hired.load(Ordering::Relaxed).saturating_sub(self.idle.count())
    }
}

/// Look over your workers.
#[derive(Debug)]
pub(crate) struct Look;

/// The supervisor of a queue.
pub(crate) struct QueueSupervisor;

pub(crate) struct State {
    shared: Arc<Shared>,
    queue: Arc<QueueState>,
    workers: HashMap<ActorId, usize>,
    scheduler: Option<ActorId>,
    deaths: Deaths,
}

impl Actor for QueueSupervisor {
    type Msg = Look;
    type State = State;
    type Arguments = (Arc<Shared>, Arc<QueueState>);

    async fn pre_start(
        &self,
        myself: ActorRef<Look>,
        (shared, queue): Self::Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let mut state = State { shared, queue, workers: HashMap::new(), scheduler: None, deaths: Deaths::new() };
        for number in 0..state.queue.policy.concurrency {
            state.start_worker(number, myself.get_cell(), "its queue's supervisor died").await?;
        }
        state.start_scheduler(myself.get_cell()).await?;
        myself.send_interval(deaf::LOOK_EVERY, || Look);
        Ok(state)
    }

    async fn handle(&self, myself: ActorRef<Look>, _: Look, state: &mut State) -> Result<(), ActorProcessingErr> {
        for number in 0..state.queue.policy.concurrency {
            let (slot, hearing) = state.queue.place(number);
            if deaf::look(&state.shared, &state.queue.name, number, &slot, &hearing).await {
                // Its actor is left to itself and ends when the handler comes back: nobody watches it any more.
                state.workers.retain(|_, worker| *worker != number);
                state.queue.places.write().unwrap_or_else(PoisonError::into_inner)[number] = Default::default();
                state.start_worker(number, myself.get_cell(), "its handler is deaf").await?;
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Look>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, reason) => {
                state.restart(&myself, child.get_id(), &reason.to_string()).await
            }
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                let reason = reason.unwrap_or_else(|| "it was stopped".to_owned());
                state.restart(&myself, child.get_id(), &reason).await
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => Ok(()),
        }
    }
}

impl State {
    async fn restart(
        &mut self,
        myself: &ActorRef<Look>,
        child: ActorId,
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
        let supervisor = myself.get_cell();
        if let Some(number) = self.workers.remove(&child) {
            tracing::error!(queue = %self.queue.name, worker = number, "a worker died, starting it again: {reason}");
            self.shared.metrics.restarts.with_label_values(&["worker"]).inc();
            // A worker dies with its job, which is counted and judged; that alone must not end the queue.
            self.start_worker(number, supervisor, reason).await?;
        } else if self.scheduler == Some(child) {
            tracing::error!(queue = %self.queue.name, "the scheduler died, starting it again: {reason}");
            self.shared.metrics.restarts.with_label_values(&["scheduler"]).inc();
            self.deaths.count(reason)?;
            self.start_scheduler(supervisor).await?;
        }
        Ok(())
    }

    async fn start_worker(
        &mut self,
        number: usize,
        supervisor: ActorCell,
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
        self.queue.idle.remove(number);
        let (slot, hearing) = self.queue.place(number);
        tokio::spawn(worker::settle_for_the_dead(Arc::clone(&self.shared), Arc::clone(&slot), reason.to_owned()))
            .await?;
        let arguments = worker::Arguments {
            number,
            shared: Arc::clone(&self.shared),
            slot,
            queue: Arc::clone(&self.queue),
            hearing,
        };
        let (worker, _) = Actor::spawn_linked(None, Worker, arguments, supervisor).await?;
        self.workers.insert(worker.get_id(), number);
        self.queue.workers.write().unwrap_or_else(PoisonError::into_inner)[number] = Some(worker);
        self.queue.hired.fetch_max(number + 1, Ordering::Relaxed);
        self.queue.idle.put(number);
        Ok(())
    }

    async fn start_scheduler(&mut self, supervisor: ActorCell) -> Result<(), ActorProcessingErr> {
        let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
        let spec = ChildSpec::new("scheduler", move || scheduler::run(Arc::clone(&shared), Arc::clone(&queue)));
        self.scheduler = Some(spec.start(supervisor).await?.get_id());
        Ok(())
    }
}
