//! A worker: does one attempt at a time.
//!
//! Begin → announce → perform → judge, one call each; what was judged goes to the committer. See ARCHITECTURE.md for
//! the way of a job. Mailbox: one assignment, because the dispatcher gives one only to an idle worker. The jobs after
//! it the worker takes from the buffer itself, as long as there are any.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_domain::ErrorKind;
use longshore_domain::outcome::Outcome;
use longshore_domain::run::DeferReason;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::attempt::announce::announce;
use crate::attempt::assignment::Assignment;
use crate::attempt::begin;
use crate::attempt::conclude::{self, HeldRetry};
use crate::attempt::node_ports::NodePorts;
use crate::attempt::perform;
use crate::attempt::reporter::AttemptReporter;
use crate::attempt::running::RunningAttempt;
use crate::attempt::stop::End;
use crate::handlers::handler::Reporter;
use crate::ports::RunPorts as _;
use crate::queue::dispatcher::{Dispatcher, QueuePart, Work};
use crate::queue::unresponsive::Place;
use crate::runtime::health::Health;
use crate::runtime::supervision::GoesOn;
use crate::runtime::{Unpoisoned as _, fail_point};

/// Jobs that a worker does in a row before it reads its mailbox again.
const IN_A_ROW: u32 = 32;
/// How long a job whose tokens ran out while it began waits for the cluster's answer.
const STARTS_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Worker;

pub(crate) struct WorkerState {
    number: usize,
    ports: Arc<NodePorts>,
    queue: Arc<Dispatcher>,
    place: Place,
    health: Arc<Health>,
    reporter: Arc<dyn Reporter>,
}

impl Actor for Worker {
    type Msg = Work;
    type State = WorkerState;
    type Arguments = WorkerState;

    async fn pre_start(&self, _: ActorRef<Work>, state: WorkerState) -> Result<WorkerState, ActorProcessingErr> {
        Ok(state)
    }

    async fn handle(&self, myself: ActorRef<Work>, work: Work, state: &mut WorkerState) -> GoesOn {
        let Work { mut assignment, permit } = work;
        let mut permit = Some(permit);
        for done in 1.. {
            state.queue.while_running(&mut permit, state.attend(assignment)).await;
            let is_replaced = state.place.came_back(&state.health);
            if is_replaced {
                myself.stop(Some("its handler came back after it was replaced".to_owned()));
                return Ok(());
            }
            let goes_on = done < IN_A_ROW && !state.queue.is_crowded(1);
            let next = goes_on.then(|| state.queue.buffer.next_after(Instant::now())).flatten();
            let Some(next) = next else { break };
            assignment = next;
        }
        state.queue.idle.put(state.number);
        if let Some(permit) = permit {
            // Only now, so that the worker woken in its place may be this one.
            state.queue.pass_on(permit);
        }
        Ok(())
    }
}

impl WorkerState {
    pub(crate) fn new(part: &QueuePart, number: usize) -> Self {
        let QueuePart { ports, queue, health } = part.clone();
        let place = queue.place(number);
        let reporter = AttemptReporter { ports: Arc::clone(&ports), current: Arc::clone(&place.current) };
        Self { number, ports, queue, place, health, reporter: Arc::new(reporter) }
    }

    async fn attend(&self, assignment: Box<Assignment>) {
        let Some(mut running) = begin::begin(&*self.ports, assignment).await else { return };
        if let Err(lacks) = self.spends(&mut running.assignment).await {
            let RunningAttempt { assignment, attempt_state, .. } = running;
            return conclude::judge(&*self.ports, assignment, attempt_state, Outcome::OverLimit(lacks)).await;
        }
        if let Err(running) = self.enter(running) {
            return self.put_off(running).await;
        }
        self.announce().await;
        fail_point::pass("before-handler");
        let end = perform::perform(&self.ports, &self.place.current, &self.reporter).await;
        fail_point::pass("after-handler");
        let Some(running) = self.place.current.lock().unpoisoned().take() else { return };
        match end {
            End::Outcome(outcome) => {
                let RunningAttempt { assignment, attempt_state, at_work, .. } = running;
                if let (Outcome::Completed(_), Some((called_at, _)), true) =
                    (&outcome, at_work, assignment.job.options.is_some())
                {
                    let now = Instant::now();
                    self.ports.shed.succeeded(&assignment.job, now.saturating_duration_since(called_at), now);
                }
                let held = conclude::judge_or_hold(&*self.ports, assignment, attempt_state, outcome).await;
                if let Some(held) = held {
                    self.hold(held);
                }
            }
            End::NotOurs => running.assignment.ack_token.abandon(),
        }
    }

    /// Enters the attempt as this worker's current one: now it starts. Returns it if it may not, because its queue or
    /// type was paused since the gates were asked, or the node has not read the run-time settings for too long.
    ///
    /// The question is asked under the lock, so that the one that has locked it after a pause became known finds every
    /// attempt that started before ([`Dispatcher::wait_for_starts`]).
    fn enter(&self, running: RunningAttempt) -> Result<(), Box<RunningAttempt>> {
        let mut current = self.place.current.lock().unpoisoned();
        if !self.ports.may_start(&running.assignment.job) {
            return Err(Box::new(running));
        }
        *current = Some(running);
        Ok(())
    }

    /// The job must not start now. It goes back to its lane, as long as nothing was written about its attempt.
    async fn put_off(&self, running: Box<RunningAttempt>) {
        let RunningAttempt { assignment, attempt_state, .. } = *running;
        if attempt_state.is_stored {
            conclude::judge(&*self.ports, assignment, attempt_state, Outcome::Paused).await;
        } else {
            assignment.return_or_abandon(Instant::now(), self.ports.lease());
        }
    }

    /// Has the job start with its slots and tokens: if beginning took longer than these were good for, it may get
    /// others. An error says what it lacks.
    async fn spends(&self, assignment: &mut Assignment) -> Result<(), DeferReason> {
        let now = Instant::now();
        if !assignment.permits.has_slots(now) {
            return Err(DeferReason::Concurrency);
        }
        if assignment.permits.spend(now) {
            return Ok(());
        }
        // What is left of the lease after waiting in the node lasts beyond this.
        let within = STARTS_WITHIN.min(self.ports.lease() / 4);
        let tokens = Box::pin(self.ports.limits.take_soon(&assignment.job, within)).await;
        if tokens.is_ok_and(|tokens| tokens.spend(Instant::now())) { Ok(()) } else { Err(DeferReason::RateLimited) }
    }

    /// Waits for a short retry in a task of its own, and gives it back to the queue's scheduler, or the one after it.
    fn hold(&self, held: Box<HeldRetry>) {
        let (ports, back) = (Arc::clone(&self.ports), self.queue.back.clone());
        tokio::spawn(async move {
            if let Some(assignment) = held.wait(&*ports).await {
                // If the queue is gone, the assignment is dropped with its ack token, which returns the job.
                let _ = back.send(assignment);
            }
        });
    }

    /// Publishes the start now if the handler is in this process; the start at a remote handler is published once a
    /// handler is there.
    async fn announce(&self) {
        let here = {
            let current = self.place.current.lock().unpoisoned();
            current.as_ref().is_some_and(|running| self.ports.routing.handler(&running.assignment.job).is_some())
        };
        if here {
            announce(&*self.ports, &self.place.current).await;
        }
    }

    /// Settles the attempt of the dead worker before this one as one that panicked, in a task of its own: the caller is
    /// a supervisor, which waits neither for the committer nor for the network.
    pub(crate) fn settle_for_the_dead(&self, reason: &str) {
        let Some(running) = self.place.current.lock().unpoisoned().take() else { return };
        let outcome = Outcome::failed(ErrorKind::Panic, format!("the worker died: {reason}"));
        let ports = Arc::clone(&self.ports);
        tokio::spawn(async move {
            let RunningAttempt { assignment, attempt_state, .. } = running;
            conclude::judge(&*ports, assignment, attempt_state, outcome).await;
        });
    }
}
