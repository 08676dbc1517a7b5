//! Pulled work: clients ask the API for a job, and end its attempt by later calls.
//!
//! A puller's types are subjects of remote handlers for as long as it waits, and a while longer. `receiver` takes the
//! jobs that come there and passes on those for pullers of other nodes; `endpoint` hands them out. A job that is handed
//! out is a detached attempt: from then on it goes the way of any.
//!
//! Bounds: 1,024 types of tenants; of each, every node sends [`SLOTS`] jobs at once. A job for which no puller comes is
//! put back. How many pullers may wait is in [`crate::api::wait_permits`].

pub(crate) mod endpoint;
pub(crate) mod receiver;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use longshore_backbone::offers::{IncomingCall, Offer, ReplyTo};
use longshore_backbone::pulls::WorkWanted;
use longshore_domain::{Job, JobType, RunId, Tenant};
use tokio::sync::Notify;

use crate::runtime::{Unpoisoned as _, now};

/// Jobs of a type that each node sends at once. They wait here for pullers, each in a place of a worker.
const SLOTS: u32 = 4;
/// Maximum number of types of tenants that are received.
const MAX_TYPES: usize = 1_024;
/// A type whose pullers are at work, or about to ask again, has a handler for so long, and for as long as the lease
/// of the job that was handed out last, up to [`AT_WORK_MAX`].
const ASKS_AGAIN_WITHIN: Duration = Duration::from_secs(60);
const AT_WORK_MAX: Duration = Duration::from_secs(3_600);
/// A job waits for a puller for so long at most, and for half the time that its attempt has left.
const HELD_FOR: Duration = Duration::from_secs(30);
/// Maximum number of other nodes' pullers that are remembered.
const MAX_WANTED: usize = 1_024;
/// A node says each second that pullers wait there. One that is silent for longer may be dead: it gets no job.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// The pullers that wait on this node, and the jobs that wait for pullers.
#[derive(Debug, Default)]
pub(crate) struct Pullers {
    state: Mutex<PullerTable>,
    /// Notified when there is something for the receiver.
    for_receiver: Notify,
}

#[derive(Debug, Default)]
struct PullerTable {
    /// In the order in which they came.
    waiting: VecDeque<Puller>,
    held: VecDeque<PulledJob>,
    /// Until when each type is received.
    received: HashMap<Offer, Instant>,
    /// For other nodes: a puller waits here.
    unsaid: Vec<WorkWanted>,
    /// Pullers of other nodes, each until it waits no more.
    wanted: VecDeque<(WorkWanted, Instant)>,
    /// Other nodes, and when each was heard.
    heard: HashMap<String, Instant>,
    next: u64,
    /// The node drains.
    is_closed: bool,
}

#[derive(Debug)]
struct Puller {
    number: u64,
    tenant: Tenant,
    types: Vec<JobType>,
    woken: Arc<Notify>,
    has_job: bool,
}

#[derive(Debug)]
struct PulledJob {
    call: Box<IncomingCall>,
    until: Instant,
    /// The puller that is to take it.
    promised: Option<u64>,
}

/// A puller that waits; it has gone when this is dropped.
#[derive(Debug)]
struct WaitingPuller {
    pullers: Arc<Pullers>,
    number: u64,
    woken: Arc<Notify>,
}

fn offer(tenant: &Tenant, job_type: &JobType) -> Offer {
    Offer { tenant: Some(tenant.clone()), job_type: job_type.clone(), slots: SLOTS }
}

impl Pullers {
    /// The next job of these types, or `None` at that time, or if the node drains.
    async fn next(self: &Arc<Self>, wanted: &WorkWanted, until: Instant) -> Option<Box<IncomingCall>> {
        let place = self.enter(wanted, until);
        let mut is_over = false;
        loop {
            if let Some(call) = self.take(place.number) {
                return Some(call);
            }
            if is_over || self.state.lock().unpoisoned().is_closed {
                return None;
            }
            is_over = tokio::time::timeout_at(until.into(), place.woken.notified()).await.is_err();
        }
    }

    fn enter(self: &Arc<Self>, wanted: &WorkWanted, until: Instant) -> WaitingPuller {
        let (mut state, woken) = (self.state.lock().unpoisoned(), Arc::<Notify>::default());
        let number = state.next;
        state.next += 1;
        let (tenant, types) = (wanted.tenant.clone(), wanted.types.clone());
        state.waiting.push_back(Puller { number, tenant, types, woken: Arc::clone(&woken), has_job: false });
        state.promise();
        if !state.is_closed && state.waiting.back().is_some_and(|puller| !puller.has_job) {
            state.unsaid.push(wanted.clone());
        }
        let waits = until.saturating_duration_since(Instant::now());
        state.expect(&wanted.tenant, &wanted.types, waits + ASKS_AGAIN_WITHIN);
        drop(state);
        self.for_receiver.notify_one();
        WaitingPuller { pullers: Arc::clone(self), number, woken }
    }

    /// Whether so many types more can be received.
    fn has_room(&self, wanted: &WorkWanted) -> bool {
        let state = self.state.lock().unpoisoned();
        let new = wanted.types.iter().filter(|of| !state.received.contains_key(&offer(&wanted.tenant, of))).count();
        state.received.len() + new <= MAX_TYPES
    }

    /// A puller works on a job of this type for so long.
    fn works(&self, tenant: &Tenant, job_type: &JobType, lease: Duration) {
        let lasts = lease.clamp(ASKS_AGAIN_WITHIN, AT_WORK_MAX);
        self.state.lock().unpoisoned().expect(tenant, std::slice::from_ref(job_type), lasts);
    }

    fn take(&self, number: u64) -> Option<Box<IncomingCall>> {
        let mut state = self.state.lock().unpoisoned();
        let at = state.held.iter().position(|held| held.promised == Some(number))?;
        state.held.remove(at).map(|held| held.call)
    }

    /// A job has come. Returns it with the node to pass it on to, if a puller waits only there.
    fn arrived(&self, call: Box<IncomingCall>) -> Option<(Box<IncomingCall>, String)> {
        let (mut state, at) = (self.state.lock().unpoisoned(), Instant::now());
        let half = call.deadline.since(now()) / 2;
        state.held.push_back(PulledJob { call, until: at + half.min(HELD_FOR), promised: None });
        state.promise();
        let held = state.held.pop_back()?;
        let elsewhere = if held.promised.is_none() { state.elsewhere(&held.call.job, at) } else { None };
        let Some(node) = elsewhere else {
            state.held.push_back(held);
            return None;
        };
        Some((held.call, node))
    }

    /// Whether any waits here, for which another node may have a job.
    fn any_wait(&self) -> bool {
        let state = self.state.lock().unpoisoned();
        !state.is_closed && state.waiting.iter().any(|puller| !puller.has_job)
    }

    /// A puller of another node waits, or those that do still wait. Returns a job for it.
    fn wanted(&self, wanted: WorkWanted) -> Option<Box<IncomingCall>> {
        let (mut state, at) = (self.state.lock().unpoisoned(), Instant::now());
        state.heard.retain(|_, heard| at.duration_since(*heard) < SILENT_AFTER);
        state.heard.insert(wanted.node.clone(), at);
        if wanted.types.is_empty() {
            return state.held_for(&wanted.node, at);
        }
        let unpromised =
            |held: &PulledJob| held.promised.is_none() && fits(&held.call.job, &wanted.tenant, &wanted.types);
        if let Some(at) = state.held.iter().position(unpromised) {
            return state.held.remove(at).map(|held| held.call);
        }
        if state.wanted.len() >= MAX_WANTED {
            state.wanted.pop_front();
        }
        let until = at + Duration::from_millis(wanted.wait_ms);
        state.wanted.push_back((wanted, until));
        None
    }

    /// The jobs that have waited for too long, or all once the node drains; the others are still waited for.
    fn overdue(&self) -> (Vec<IncomingCall>, Vec<ReplyTo>) {
        let (mut state, at) = (self.state.lock().unpoisoned(), Instant::now());
        let is_closed = state.is_closed;
        let (over, held) = std::mem::take(&mut state.held)
            .into_iter()
            .partition::<VecDeque<_>, _>(|held| held.promised.is_none() && (is_closed || held.until <= at));
        let waits = held.iter().map(|held| held.call.reply_to.clone()).collect();
        state.held = held;
        (over.into_iter().map(|held| *held.call).collect(), waits)
    }

    /// The job of this run that waits here.
    fn cancelled(&self, tenant: &Tenant, run: &RunId) -> Option<Box<IncomingCall>> {
        let mut state = self.state.lock().unpoisoned();
        let is_it = |held: &PulledJob| {
            held.promised.is_none() && held.call.job.tenant == *tenant && held.call.job.run_id == *run
        };
        let at = state.held.iter().position(is_it)?;
        state.held.remove(at).map(|held| held.call)
    }

    /// The types that are received now, and the notices for other nodes.
    fn changes(&self) -> (Vec<Offer>, Vec<WorkWanted>) {
        let (mut state, at) = (self.state.lock().unpoisoned(), Instant::now());
        state.received.retain(|_, until| *until > at);
        let is_closed = state.is_closed;
        let received = state.received.keys().filter(|_| !is_closed).cloned().collect();
        (received, std::mem::take(&mut state.unsaid))
    }

    fn close(&self) {
        let mut state = self.state.lock().unpoisoned();
        state.is_closed = true;
        state.waiting.iter().for_each(|puller| puller.woken.notify_one());
    }
}

impl PullerTable {
    /// Promises each job to the first puller of its type that has none.
    fn promise(&mut self) {
        for held in self.held.iter_mut().filter(|held| held.promised.is_none()) {
            let fitting = |puller: &&mut Puller| !puller.has_job && fits(&held.call.job, &puller.tenant, &puller.types);
            if let Some(puller) = self.waiting.iter_mut().find(fitting) {
                (held.promised, puller.has_job) = (Some(puller.number), true);
                puller.woken.notify_one();
            }
        }
    }

    /// The node of the puller that has waited longest for such a job elsewhere. It does not count again.
    fn elsewhere(&mut self, job: &Job, at: Instant) -> Option<String> {
        self.wanted.retain(|(_, until)| *until > at);
        let is_there = |node: &str| self.heard.get(node).is_some_and(|heard| at.duration_since(*heard) < SILENT_AFTER);
        let fitting = |wanted: &WorkWanted| fits(job, &wanted.tenant, &wanted.types) && is_there(&wanted.node);
        let first = self.wanted.iter().position(|(wanted, _)| fitting(wanted))?;
        self.wanted.remove(first).map(|(wanted, _)| wanted.node)
    }

    /// A job that is held although a puller of that node waits for it: the node was silent as it came. The notice does
    /// not count again.
    fn held_for(&mut self, node: &str, at: Instant) -> Option<Box<IncomingCall>> {
        self.wanted.retain(|(_, until)| *until > at);
        let waits = |job: &Job| {
            let fitting = |wanted: &WorkWanted| wanted.node == node && fits(job, &wanted.tenant, &wanted.types);
            self.wanted.iter().position(|(wanted, _)| fitting(wanted))
        };
        let unpromised = self.held.iter().enumerate().filter(|(_, held)| held.promised.is_none());
        let (nth, notice) = unpromised.filter_map(|(nth, held)| Some((nth, waits(&held.call.job)?))).next()?;
        self.wanted.remove(notice);
        self.held.remove(nth).map(|held| held.call)
    }

    /// Has these types received for so long at least.
    fn expect(&mut self, tenant: &Tenant, types: &[JobType], lasts: Duration) {
        let until = Instant::now() + lasts;
        for job_type in types {
            let received = self.received.entry(offer(tenant, job_type)).or_insert(until);
            *received = until.max(*received);
        }
    }
}

fn fits(job: &Job, tenant: &Tenant, types: &[JobType]) -> bool {
    job.tenant == *tenant && types.contains(&job.job_type)
}

impl Drop for WaitingPuller {
    fn drop(&mut self) {
        let mut state = self.pullers.state.lock().unpoisoned();
        state.waiting.retain(|puller| puller.number != self.number);
        if let Some(held) = state.held.iter_mut().find(|held| held.promised == Some(self.number)) {
            held.promised = None;
            state.promise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::handler::Context;

    #[test]
    fn a_notice_counts_once_and_only_while_its_node_is_heard() {
        let (pullers, at) = (Arc::<Pullers>::default(), Instant::now());
        let job = Context::for_test("pulled", "").job;
        let notice = |types: &[JobType]| {
            let (node, tenant, types) = ("other".to_owned(), job.tenant.clone(), types.to_vec());
            WorkWanted { node, tenant, types, wait_ms: 60_000 }
        };
        let of_type = notice(std::slice::from_ref(&job.job_type));
        let elsewhere = |after: Duration| pullers.state.lock().unwrap().elsewhere(&job, at + after);
        assert!(pullers.wanted(of_type.clone()).is_none());
        assert_eq!(elsewhere(SILENT_AFTER * 2), None, "the node may be dead");
        assert!(pullers.wanted(notice(&[])).is_none(), "it is there");
        assert_eq!(elsewhere(Duration::ZERO).as_deref(), Some("other"));
        assert_eq!(elsewhere(Duration::ZERO), None);

        let place = pullers.enter(&of_type, at);
        assert!(pullers.any_wait() && pullers.changes().1.len() == 1);
        pullers.close();
        drop((place, pullers.enter(&of_type, at)));
        assert!(!pullers.any_wait() && pullers.changes().1.is_empty(), "a node that drains asks for no job");
    }
}
