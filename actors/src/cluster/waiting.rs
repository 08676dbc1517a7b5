//! Admission by the number of waiting jobs: whether `submit` takes one more job of a tenant or into a queue with
//! `max_waiting`. Where nothing is bounded, nothing is counted.
//!
//! The jobs of the whole cluster are counted at most every [`FRESH_FOR`], or every [`AGAIN_AFTER`] while jobs are
//! refused; in between each node counts what it takes itself (`longshore_domain::admission::Room` has the bound that
//! follows). A job waits from when it is enqueued until its attempt begins: also while a node has it buffered or it is
//! parked, but not while it waits for its time or for its next attempt.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use longshore_backbone::backlog::StoredJobs;
use longshore_backbone::control::{Presence, QueueLoad};
use longshore_backbone::{Backbone, Error};
use longshore_domain::admission::{Room, RoomScope};
use longshore_domain::policy::Policies;
use longshore_domain::run::DeferReason;
use longshore_domain::{Job, Queue, QueueLane, Run, SmolStr, Tenant};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::queue::served::ServedQueues;
use crate::runtime::kind::Kind;
use crate::runtime::{Unpoisoned as _, now};

/// For how long a count is good.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// For how long it is good once there is no place left.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// How long a submission waits for a count. Without one, the last count stays, and what this node takes counts on.
const WITHIN: Duration = Duration::from_secs(1);

/// The scopes whose waiting jobs are bounded.
pub(crate) struct WaitingJobs {
    backbone: Backbone,
    node: SmolStr,
    policies: Arc<Policies>,
    pub(crate) queues: Arc<ServedQueues>,
    rooms: Mutex<HashMap<RoomScope, Room>>,
    /// When the last count began; who holds it counts.
    last: tokio::sync::Mutex<Option<Instant>>,
}

type Scopes = SmallVec<[RoomScope; 2]>;

/// The place of one job; if the job is not stored, it goes back.
pub(crate) struct Reservation {
    of: Arc<WaitingJobs>,
    scopes: Scopes,
}

impl Reservation {
    pub(crate) fn stored(mut self) {
        let scopes = std::mem::take(&mut self.scopes);
        self.of.of_each(&scopes, Room::stored);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.of.of_each(&self.scopes, Room::put_back);
    }
}

/// A scope in which as many jobs wait as may.
#[derive(Debug)]
pub(crate) struct Full {
    pub(crate) scope: RoomScope,
    pub(crate) max: u64,
}

fn change_each(rooms: &mut HashMap<RoomScope, Room>, scopes: &[RoomScope], change: fn(&mut Room)) {
    for scope in scopes {
        if let Some(room) = rooms.get_mut(scope) {
            change(room);
        }
    }
}

/// The jobs that a node says have begun.
struct Begun<'a> {
    of_queues: &'a BTreeMap<String, QueueLoad>,
    of_tenants: &'a BTreeMap<Tenant, usize>,
}

impl<'a> Begun<'a> {
    fn of(node: &'a Presence) -> Self {
        Self { of_queues: &node.queues, of_tenants: &node.running_of }
    }
}

/// How many jobs wait in each scope: those that are stored and have not begun on any node.
fn waiting(stored: impl Iterator<Item = (Queue, StoredJobs)>, begun: &[Begun<'_>]) -> HashMap<RoomScope, u64> {
    let (mut counts, mut of_tenants) = (HashMap::new(), BTreeMap::<Tenant, u64>::new());
    for (queue, stored) in stored {
        let loads = begun.iter().filter_map(|node| node.of_queues.get(queue.as_str()));
        let running: usize = loads.flat_map(|load| load.by_priority).sum();
        counts.insert(RoomScope::Queue(queue), stored.jobs.saturating_sub(running as u64));
        for (tenant, jobs) in stored.by_tenant {
            *of_tenants.entry(tenant).or_default() += jobs;
        }
    }
    for (tenant, jobs) in of_tenants {
        let running: usize = begun.iter().filter_map(|node| node.of_tenants.get(&tenant)).sum();
        counts.insert(RoomScope::Tenant(tenant), jobs.saturating_sub(running as u64));
    }
    counts
}

impl WaitingJobs {
    /// What is bounded by the policies; nothing is counted yet.
    pub(crate) fn new(backbone: Backbone, node: SmolStr, policies: Arc<Policies>, queues: Arc<ServedQueues>) -> Self {
        let of_queues = policies.queues.iter().map(|(queue, of)| (RoomScope::Queue(queue.clone()), of.max_waiting));
        let of_tenants = policies.tenants.iter().map(|(name, of)| (RoomScope::Tenant(name.clone()), of.max_waiting));
        let rooms = of_queues.chain(of_tenants).filter_map(|(scope, max)| Some((scope, Room::new(max?)))).collect();
        Self { backbone, node, policies, queues, rooms: Mutex::new(rooms), last: tokio::sync::Mutex::default() }
    }

    fn of_each(&self, scopes: &[RoomScope], change: fn(&mut Room)) {
        if !scopes.is_empty() {
            change_each(&mut self.rooms.lock().unpoisoned(), scopes, change);
        }
    }

    /// Those scopes of a job that are bounded.
    fn scopes(&self, job: &Job) -> Scopes {
        let of_queue = self.policies.queues.get(&job.queue).and_then(|of| of.max_waiting);
        let of_tenant = self.policies.tenants.get(&job.tenant).and_then(|of| of.max_waiting);
        let queue = of_queue.map(|_| RoomScope::Queue(job.queue.clone()));
        queue.into_iter().chain(of_tenant.map(|_| RoomScope::Tenant(job.tenant.clone()))).collect()
    }

    /// A place for a job that is to be enqueued, if its number is bounded; may wait for a count.
    ///
    /// # Errors
    /// There is none.
    pub(crate) async fn take(self: &Arc<Self>, job: &Job) -> Result<Option<Reservation>, Full> {
        let scopes = self.scopes(job);
        if scopes.is_empty() {
            return Ok(None);
        }
        self.count(FRESH_FOR).await;
        if let Some(place) = self.place(&scopes) {
            return Ok(Some(place));
        }
        self.count(AGAIN_AFTER).await;
        self.place(&scopes).map(Some).ok_or_else(|| self.full(scopes))
    }

    fn place(self: &Arc<Self>, scopes: &Scopes) -> Option<Reservation> {
        let mut rooms = self.rooms.lock().unpoisoned();
        if !scopes.iter().all(|scope| rooms.get(scope).is_some_and(Room::has_place)) {
            return None;
        }
        change_each(&mut rooms, scopes, Room::take);
        Some(Reservation { of: Arc::clone(self), scopes: scopes.clone() })
    }

    /// The scope that has no place; of two, the first.
    fn full(&self, mut scopes: Scopes) -> Full {
        let rooms = self.rooms.lock().unpoisoned();
        let full = scopes.iter().position(|scope| rooms.get(scope).is_some_and(|room| !room.has_place()));
        let scope = scopes.swap_remove(full.unwrap_or(0));
        Full { max: rooms.get(&scope).map_or(0, Room::max), scope }
    }

    /// Counts, unless the last count is younger than this. Of several callers one counts, and the others wait for it.
    async fn count(&self, max_age: Duration) {
        let mut last = self.last.lock().await;
        if last.is_some_and(|last| last.elapsed() < max_age) {
            return;
        }
        *last = Some(Instant::now());
        self.rooms.lock().unpoisoned().values_mut().for_each(Room::count_begins);
        match tokio::time::timeout(WITHIN, self.counted()).await {
            Ok(Ok((counts, nodes))) => {
                for (scope, room) in self.rooms.lock().unpoisoned().iter_mut() {
                    room.counted(counts.get(scope).copied().unwrap_or(0), nodes);
                }
            }
            Ok(Err(error)) => tracing::debug!("cannot count the waiting jobs: {}", error.with_causes()),
            Err(_) => tracing::debug!("cannot count the waiting jobs within {} s", WITHIN.as_secs()),
        }
    }

    /// Asks the servers: how many jobs wait in each scope, and how many nodes there are.
    async fn counted(&self) -> Result<(HashMap<RoomScope, u64>, u64), Error> {
        let by_tenant = self.bounded_tenants().next().is_some();
        let is_bounded = |queue: &Queue| self.policies.queues.get(queue).is_some_and(|of| of.max_waiting.is_some());
        let presences = self.backbone.nodes();
        let (mut queues, nodes) = tokio::try_join!(self.backbone.declared_queues(), presences.present(now()))?;
        queues.retain(|queue| by_tenant || is_bounded(queue));
        let stored = try_join_all(queues.iter().map(|queue| self.stored_in(queue, by_tenant))).await?;
        let others: Vec<Presence> = nodes.into_iter().filter(|node| node.node != self.node).collect();
        // What this node says of itself is newer than what it last published.
        let own = Begun { of_queues: &self.queues.loads(), of_tenants: &self.running_of() };
        let begun: Vec<Begun<'_>> = others.iter().map(Begun::of).chain([own]).collect();
        Ok((waiting(queues.into_iter().zip(stored), &begun), begun.len() as u64))
    }

    /// The jobs of a queue that are in its lanes or parked. Lanes hold running jobs as well, until their end.
    async fn stored_in(&self, queue: &Queue, by_tenant: bool) -> Result<StoredJobs, Error> {
        let lanes = QueueLane::all().map(|lane| self.backbone.stored_in_lane(queue, lane, by_tenant));
        let (lanes, parked) = tokio::try_join!(try_join_all(lanes), self.backbone.stored_parked(queue))?;
        Ok(lanes.into_iter().fold(parked, StoredJobs::and))
    }

    fn bounded_tenants(&self) -> impl Iterator<Item = &Tenant> {
        let tenants = self.policies.tenants.iter();
        tenants.filter(|(_, of)| of.max_waiting.is_some()).map(|(tenant, _)| tenant)
    }

    /// Why a job that this node has buffered cannot start, as far as that is known.
    pub(crate) fn reason_of(&self, run: &Run) -> Option<DeferReason> {
        self.queues.all().iter().filter(|queue| queue.name == run.queue).find_map(|queue| queue.buffer.reason_of(run))
    }

    /// The kind of a job that this node has buffered and that cannot start.
    pub(crate) fn kind_of(&self, run: &Run) -> Option<Kind> {
        self.queues.all().iter().filter(|queue| queue.name == run.queue).find_map(|queue| queue.buffer.kind_of(run))
    }

    /// How many jobs of the tenants whose waiting jobs are bounded this node runs.
    pub(crate) fn running_of(&self) -> BTreeMap<Tenant, usize> {
        let mut running = BTreeMap::new();
        if self.bounded_tenants().next().is_none() {
            return running;
        }
        for queue in self.queues.all().iter() {
            queue.for_each_running(|job| {
                if self.policies.tenants.get(&job.tenant).is_some_and(|of| of.max_waiting.is_some()) {
                    *running.entry(job.tenant.clone()).or_default() += 1;
                }
            });
        }
        running
    }
}

#[cfg(test)]
mod tests;
