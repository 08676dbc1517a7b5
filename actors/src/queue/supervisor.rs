//! The supervisor of one queue: its scheduler and its workers, one for one.
//!
//! A scheduler's death interrupts no running job: current attempts and idle workers are kept in [`Dispatcher`], which
//! outlives the scheduler and the workers. It costs nothing but the buffered jobs, which are returned. A worker's death
//! is settled as a failure of the attempt it was working on. Once a second the supervisor checks its workers: see
//! [`crate::queue::unresponsive`]. Mailbox: supervision events and that check.

use std::collections::HashMap;
use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::attempt::node_ports::NodePorts;
use crate::queue::dispatcher::Dispatcher;
use crate::queue::worker::{self, Worker};
use crate::queue::{scheduler, unresponsive};
use crate::runtime::fail_point;
use crate::runtime::health::Health;
use crate::runtime::supervision::{ChildSpec, Deaths, Question, SupervisorAnswer};

/// What is sent to a queue's supervisor.
#[derive(Debug)]
pub(crate) enum Message {
    /// Check the workers.
    CheckWorkers,
    /// Whether it answers.
    Answer(Question),
}

/// The supervisor of a queue.
pub(crate) struct QueueSupervisor;

/// What the parts of a queue need.
#[derive(Clone)]
pub(crate) struct Arguments {
    pub(crate) ports: Arc<NodePorts>,
    pub(crate) queue: Arc<Dispatcher>,
    pub(crate) health: Arc<Health>,
}

pub(crate) struct State {
    ports: Arc<NodePorts>,
    queue: Arc<Dispatcher>,
    health: Arc<Health>,
    workers: HashMap<ActorId, usize>,
    scheduler: Option<ActorId>,
    deaths: Deaths,
}

impl Actor for QueueSupervisor {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        Arguments { ports, queue, health }: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        let mut state = State { ports, queue, health, workers: HashMap::new(), scheduler: None, deaths: Deaths::new() };
        for number in 0..state.queue.policy.concurrency {
            state.start_worker(number, myself.get_cell(), "its queue's supervisor died").await?;
        }
        state.start_scheduler(myself.get_cell()).await?;
        myself.send_interval(unresponsive::CHECK_EVERY, || Message::CheckWorkers);
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::CheckWorkers => state.check_workers(&myself).await,
            Message::Answer(question) => {
                question.answer(SupervisorAnswer::Queue);
                Ok(())
            }
        }
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
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
    async fn check_workers(&mut self, myself: &ActorRef<Message>) -> Result<(), ActorProcessingErr> {
        fail_point::pass("before-check");
        for number in 0..self.queue.policy.concurrency {
            let (current, responsiveness) = self.queue.place(number);
            if unresponsive::check(&self.ports, &self.health, (&self.queue.name, number), &current, &responsiveness) {
                // Nothing watches the old actor any more; it ends by itself when its handler comes back.
                self.workers.retain(|_, worker| *worker != number);
                self.queue.replace_place(number);
                self.start_worker(number, myself.get_cell(), "its handler does not respond").await?;
            }
        }
        Ok(())
    }

    async fn restart(
        &mut self,
        myself: &ActorRef<Message>,
        child: ActorId,
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
        let supervisor = myself.get_cell();
        if let Some(number) = self.workers.remove(&child) {
            tracing::error!(queue = %self.queue.name, worker = number, "a worker died, starting it again: {reason}");
            self.ports.metrics.restarts.with_label_values(&["worker"]).inc();
            // A worker dies with its job, and the job's attempt is counted and settled; that alone must not end the
            // queue.
            self.start_worker(number, supervisor, reason).await?;
        } else if self.scheduler == Some(child) {
            tracing::error!(queue = %self.queue.name, "the scheduler died, starting it again: {reason}");
            self.ports.metrics.restarts.with_label_values(&["scheduler"]).inc();
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
        let (current, responsiveness) = self.queue.place(number);
        worker::settle_for_the_dead(&self.ports, &current, reason);
        let arguments = worker::Arguments {
            number,
            ports: Arc::clone(&self.ports),
            current,
            queue: Arc::clone(&self.queue),
            responsiveness,
        };
        let (worker, _) = Actor::spawn_linked(None, Worker, arguments, supervisor).await?;
        self.workers.insert(worker.get_id(), number);
        self.queue.add_worker(number, worker);
        Ok(())
    }

    async fn start_scheduler(&mut self, supervisor: ActorCell) -> Result<(), ActorProcessingErr> {
        let part = scheduler::Part {
            backbone: self.ports.backbone.clone(),
            queue: Arc::clone(&self.queue),
            closing: self.queue.buffer.closing.clone(),
            gate_news: Arc::clone(&self.queue.buffer.gates.news),
            cancelled: Arc::clone(&self.ports.recently_cancelled),
            metrics: Arc::clone(&self.ports.metrics),
            policies: Arc::clone(&self.ports.routing.policies),
            tracer: self.ports.tracer.clone(),
        };
        let spec = ChildSpec::with_messages("scheduler", &self.queue.scheduler, part, scheduler::run);
        self.scheduler = Some(spec.start(supervisor).await?.get_id());
        Ok(())
    }
}
