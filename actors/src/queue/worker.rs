//! A worker: does one attempt at a time.
//!
//! begin → announce → perform → judge → carry out → told, one call each; see ARCHITECTURE.md for the way of a job.
//! Mailbox: one assignment, because the scheduler gives one only to a worker that said it was idle. What follows, as long
//! as there is something in hand, it takes itself.

use std::sync::{Arc, PoisonError};

use longshore_domain::settlement::Outcome;
use longshore_domain::{ErrorKind, Failure};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::attempt::announce::announce;
use crate::attempt::assignment::Assignment;
use crate::attempt::begin::{self, Begun};
use crate::attempt::conclude::{self, Keep};
use crate::attempt::perform::{self, End};
use crate::attempt::running::{InWork, Slot};
use crate::fail_point;
use crate::queue::dispatcher::{QueueState, Work};
use crate::queue::unresponsive::{CameBack, Hearing};
use crate::shared::{Shared, now};

/// Jobs that a worker does one after the other before it looks into its mailbox again.
const IN_A_ROW: u32 = 32;

pub(crate) struct Worker;

pub(crate) struct State {
    number: usize,
    shared: Arc<Shared>,
    slot: Slot,
    queue: Arc<QueueState>,
    hearing: Arc<Hearing>,
}

pub(crate) struct Arguments {
    pub(crate) number: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: Slot,
    pub(crate) queue: Arc<QueueState>,
    pub(crate) hearing: Arc<Hearing>,
}

impl Actor for Worker {
    type Msg = Work;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, _: ActorRef<Work>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let Arguments { number, shared, slot, queue, hearing } = arguments;
        Ok(State { number, shared, slot, queue, hearing })
    }

    async fn handle(&self, myself: ActorRef<Work>, work: Work, state: &mut State) -> Result<(), ActorProcessingErr> {
        let Work { mut assignment, permit } = work;
        let mut permit = Some(permit);
        for done in 1.. {
            state.queue.while_running(&mut permit, &state.shared, state.attend(assignment)).await;
            if state.hearing.came_back() == CameBack::Replaced {
                myself.stop(Some("its handler came back after it was replaced".to_owned()));
                return Ok(());
            }
            let next = (done < IN_A_ROW).then(|| state.queue.ready.next_after(&state.shared)).flatten();
            let Some(next) = next else { break };
            assignment = next;
        }
        state.queue.idle.put(state.number);
        if let Some(permit) = permit {
            // Now, so that the one woken in its place may be this worker.
            state.queue.pass_on(permit, &state.shared);
        }
        Ok(())
    }
}

impl State {
    async fn attend(&self, assignment: Box<Assignment>) {
        let Begun::Work(in_work) = begin::begin(&self.shared, assignment).await else { return };
        self.shared.metrics.started.inc();
        self.shared.metrics.wait.observe(now().since(in_work.assignment.since).as_secs_f64());
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(in_work);
        self.announce().await;
        fail_point::pass("before-handler");
        let end = perform::perform(&self.shared, &self.slot).await;
        fail_point::pass("after-handler");
        let Some(in_work) = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        match end {
            End::Outcome(outcome) => {
                let InWork { assignment, course, .. } = in_work;
                let keep = Keep::With(&self.queue.back, &self.shared);
                conclude::judge(&self.shared, assignment, course, outcome, keep).await;
            }
            End::NotOurs => in_work.assignment.right.leave(),
        }
    }

    /// A start in this process is told now; one at a remote handler once somebody is there to make it.
    async fn announce(&self) {
        let here = {
            let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.as_ref().is_some_and(|in_work| self.shared.handler(&in_work.assignment.job).is_some())
        };
        if here {
            announce(&self.shared, &self.slot).await;
        }
    }
}

/// Settles what a dead worker was working on, as an attempt that panicked.
pub(crate) async fn settle_for_the_dead(shared: Arc<Shared>, slot: Slot, reason: String) {
    let Some(InWork { assignment, course, .. }) = slot.lock().unwrap_or_else(PoisonError::into_inner).take() else {
        return;
    };
    let failure = Failure::new(ErrorKind::Panic, format!("the worker died: {reason}"));
    conclude::judge(&shared, assignment, course, Outcome::Failed { failure, retry_after: None }, Keep::Never).await;
}
