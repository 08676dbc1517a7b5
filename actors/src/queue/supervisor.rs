//! The supervisor of one queue: its scheduler and its workers, one for one.
//!
//! A scheduler's death interrupts no running job: current attempts and idle workers are kept in the `dispatcher`, which
//! outlives the scheduler and the workers. It costs nothing but the buffered jobs, which are returned. A worker's death
//! is settled as a failure of the attempt it was working on. Once a second the supervisor checks its workers: see
//! [`crate::queue::unresponsive`]. Mailbox: supervision events and that check.

use std::collections::HashMap;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::queue::dispatcher::QueuePart;
use crate::queue::worker::{Worker, WorkerState};
use crate::queue::{scheduler, unresponsive};
use crate::runtime::fail_point;
use crate::runtime::supervision::{ChildSpec, Deaths, GoesOn, Question, SupervisorAnswer, death};

/// Its name among the children of the root.
pub(crate) const NAME: &str = "queue";

#[derive(Debug)]
pub(crate) enum SupervisorMessage {
    CheckWorkers,
    Answer(Question),
}

pub(crate) struct QueueSupervisor;

impl QueueSupervisor {
    /// The supervisor of this queue, as a child of the root.
    pub(crate) fn spec(part: QueuePart) -> ChildSpec {
        ChildSpec::of_actor(NAME, move |root| {
            let part = part.clone();
            Box::pin(async move { Ok(Actor::spawn_linked(None, QueueSupervisor, part, root).await?.0.get_cell()) })
        })
    }
}

pub(crate) struct SupervisorState {
    part: QueuePart,
    workers: HashMap<ActorId, usize>,
    scheduler: Option<ActorId>,
    deaths: Deaths,
}

impl Actor for QueueSupervisor {
    type Msg = SupervisorMessage;
    type State = SupervisorState;
    type Arguments = QueuePart;

    async fn pre_start(&self, myself: ActorRef<Self::Msg>, part: QueuePart) -> Result<Self::State, ActorProcessingErr> {
        let mut state = SupervisorState { part, workers: HashMap::new(), scheduler: None, deaths: Deaths::new() };
        for number in 0..state.part.queue.policy.concurrency {
            state.start_worker(number, myself.get_cell(), "its queue's supervisor died").await?;
        }
        state.start_scheduler(myself.get_cell()).await?;
        myself.send_interval(unresponsive::CHECK_EVERY, || SupervisorMessage::CheckWorkers);
        Ok(state)
    }

    async fn handle(&self, myself: ActorRef<Self::Msg>, message: Self::Msg, state: &mut Self::State) -> GoesOn {
        match message {
            SupervisorMessage::CheckWorkers => state.check_workers(&myself).await,
            SupervisorMessage::Answer(question) => {
                let _ = question.try_send(SupervisorAnswer::Queue);
                Ok(())
            }
        }
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> GoesOn {
        let Some((child, reason)) = death(event) else { return Ok(()) };
        state.restart(&myself, child, &reason).await
    }
}

impl SupervisorState {
    async fn check_workers(&mut self, myself: &ActorRef<SupervisorMessage>) -> GoesOn {
        fail_point::pass("before-check");
        let QueuePart { ports, queue, health } = self.part.clone();
        for number in 0..queue.policy.concurrency {
            if unresponsive::check(&ports, &health, &queue.name, number, &queue.place(number)) {
                // Nothing watches the old actor any more; it ends by itself when its handler comes back.
                self.workers.retain(|_, worker| *worker != number);
                queue.replace_place(number);
                self.start_worker(number, myself.get_cell(), "its handler does not respond").await?;
            }
        }
        Ok(())
    }

    async fn restart(&mut self, myself: &ActorRef<SupervisorMessage>, child: ActorId, reason: &str) -> GoesOn {
        let (supervisor, restarts) = (myself.get_cell(), &self.part.ports.metrics.restarts);
        let queue = &self.part.queue.name;
        if let Some(number) = self.workers.remove(&child) {
            tracing::error!(%queue, worker = number, "a worker died, starting it again: {reason}");
            restarts.with_label_values(&["worker"]).inc();
            // A worker dies with its job, whose attempt is counted and settled; that alone must not end the queue.
            self.start_worker(number, supervisor, reason).await?;
        } else if self.scheduler == Some(child) {
            tracing::error!(%queue, "the scheduler died, starting it again: {reason}");
            restarts.with_label_values(&["scheduler"]).inc();
            self.deaths.count(reason)?;
            self.start_scheduler(supervisor).await?;
        }
        Ok(())
    }

    async fn start_worker(&mut self, number: usize, supervisor: ActorCell, reason: &str) -> GoesOn {
        self.part.queue.idle.remove(number);
        let worker = WorkerState::new(&self.part, number);
        worker.settle_for_the_dead(reason);
        let (worker, _) = Actor::spawn_linked(None, Worker, worker, supervisor).await?;
        self.workers.insert(worker.get_id(), number);
        self.part.queue.add_worker(number, worker);
        Ok(())
    }

    async fn start_scheduler(&mut self, supervisor: ActorCell) -> GoesOn {
        let (part, address) = (self.part.clone(), &self.part.queue.scheduler);
        let spec = ChildSpec::with_messages("scheduler", address, part, scheduler::run);
        self.scheduler = Some(spec.start(supervisor).await?.get_id());
        Ok(())
    }
}
