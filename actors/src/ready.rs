//! The jobs that a queue has in hand, in their order.
//!
//! The scheduler puts them in and gives idle workers their first; a worker that is done takes its next one itself, so
//! that under load a job costs neither a message nor a change of tasks. Whoever takes gets what is next in order at that
//! moment: nothing is dealt out beforehand. It outlives the scheduler, and whatever is dropped here hands itself back.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore_domain::merge::Merge;
use longshore_domain::policy::QueuePolicy;
use longshore_domain::{JobType, Priority};
use tokio::sync::Notify;

use crate::assignment::{Assignment, Start};
use crate::coming::Coming;
use crate::shared::Shared;

/// So many jobs taken by workers are worth a look at the lanes.
const WORTH_A_LOOK: usize = 32;

/// What a queue has in hand.
pub(crate) struct Ready {
    policy: QueuePolicy,
    jobs: Mutex<Jobs>,
    taken: Notify,
}

struct Jobs {
    merge: Merge<Box<Assignment>>,
    coming: Coming,
    /// Until when the next job waits for a more urgent one that is on its way.
    hold_off: Option<Instant>,
    /// Jobs whose remote handlers have no room, by type.
    full: HashMap<JobType, VecDeque<Box<Assignment>>>,
    held_back: usize,
    started: u64,
    /// Taken by workers since the scheduler was told.
    untold: usize,
}

/// A job as it came: its lane, and how many more wait there.
pub(crate) struct Came {
    pub(crate) lane: usize,
    pub(crate) behind: u64,
    pub(crate) assignment: Box<Assignment>,
}

/// How many jobs are in hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// By lane.
    pub(crate) of: [usize; Priority::COUNT],
    /// Those that wait for room at their handlers.
    pub(crate) back: usize,
    /// How many were taken out by now.
    pub(crate) started: u64,
}

impl Jobs {
    fn new() -> Self {
        Self {
            merge: Merge::new(Priority::COUNT),
            coming: Coming::new(Priority::COUNT, Instant::now()),
            hold_off: None,
            full: HashMap::new(),
            held_back: 0,
            started: 0,
            untold: 0,
        }
    }
}

impl Ready {
    /// Nothing is in hand.
    pub(crate) fn new(policy: QueuePolicy) -> Self {
        Self { policy, jobs: Mutex::new(Jobs::new()), taken: Notify::new() }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives everything back, and knows of nothing any more.
    pub(crate) fn clear(&self, lease: Duration) {
        let mut jobs = self.jobs();
        let started = jobs.started;
        let mut old = std::mem::replace(&mut *jobs, Jobs { started, ..Jobs::new() });
        drop(jobs);
        let now = Instant::now();
        let held_back = old.full.into_values().flatten();
        let back = old.merge.take_where(|_| true).into_iter().chain(held_back);
        back.for_each(|assignment| let_go(*assignment, now, lease));
    }

    /// Takes in what came from the lanes.
    pub(crate) fn came(&self, came: impl Iterator<Item = Came>) {
        let mut jobs = self.jobs();
        for Came { lane, behind, assignment } in came {
            let rank = assignment.rank(self.policy.aging);
            jobs.coming.came(lane, rank, behind);
            jobs.merge.push(lane, rank, assignment);
        }
    }

    /// Takes in a job that was kept in hand until now.
    pub(crate) fn again(&self, assignment: Box<Assignment>) {
        let lane = usize::from(assignment.job.priority.number() - 1);
        let rank = assignment.rank(self.policy.aging);
        self.jobs().merge.push(lane, rank, assignment);
    }

    /// The next job in order whose handler has room.
    pub(crate) fn next(&self, shared: &Shared) -> Option<Box<Assignment>> {
        self.jobs().next(shared, &self.policy, Instant::now())
    }

    /// The same for a worker that is done: the scheduler hears of it now and then.
    pub(crate) fn next_after(&self, shared: &Shared) -> Option<Box<Assignment>> {
        if shared.draining.is_cancelled() {
            return None;
        }
        let now = Instant::now();
        let mut jobs = self.jobs();
        let next = jobs.next(shared, &self.policy, now)?;
        jobs.untold += 1;
        if jobs.untold >= WORTH_A_LOOK || jobs.merge.held() == 0 {
            jobs.untold = 0;
            self.taken.notify_one();
        }
        Some(next)
    }

    /// Waits until the scheduler is called: workers have taken so many jobs that the lanes may want topping up.
    pub(crate) async fn taken(&self) {
        self.taken.notified().await;
    }

    /// Calls the scheduler where somebody else found that the next job waits for a more urgent one.
    pub(crate) fn tell_if_held_off(&self) {
        if self.jobs().hold_off.is_some() {
            self.taken.notify_one();
        }
    }

    /// Until when the next job waits for a more urgent one; told once.
    pub(crate) fn hold_off(&self) -> Option<Instant> {
        self.jobs().hold_off.take()
    }

    pub(crate) fn held(&self) -> Held {
        let jobs = self.jobs();
        Held { of: std::array::from_fn(|lane| jobs.merge.held_of(lane)), back: jobs.held_back, started: jobs.started }
    }

    /// The connection was made anew: what the server gave us it may have forgotten. What is kept in hand by its record
    /// stays.
    pub(crate) fn forget_deliveries(&self, now: Instant, lease: Duration) {
        let mut jobs = self.jobs();
        let mut back = jobs.merge.take_where(|assignment| !assignment.is_kept_in_hand());
        back.extend(std::mem::take(&mut jobs.full).into_values().flatten());
        jobs.held_back = 0;
        drop(jobs);
        back.into_iter().for_each(|assignment| let_go(*assignment, now, lease));
    }

    /// What has waited for a third of its lease goes back, so that a node with room may have it.
    pub(crate) fn give_back(&self, now: Instant, lease: Duration) {
        let waited = |assignment: &Assignment| {
            !assignment.is_kept_in_hand() && now.duration_since(assignment.leased_from) > lease / 3
        };
        let mut jobs = self.jobs();
        let mut back = jobs.merge.take_where(|assignment| waited(assignment));
        for list in jobs.full.values_mut() {
            let (old, keep): (VecDeque<Box<Assignment>>, _) =
                std::mem::take(list).into_iter().partition(|assignment| waited(assignment));
            *list = keep;
            back.extend(old);
        }
        jobs.full.retain(|_, list| !list.is_empty());
        jobs.held_back = jobs.full.values().map(VecDeque::len).sum();
        drop(jobs);
        back.into_iter().for_each(|assignment| let_go(*assignment, now, lease));
    }
}

impl Jobs {
    fn next(&mut self, shared: &Shared, policy: &QueuePolicy, now: Instant) -> Option<Box<Assignment>> {
        let lease = shared.backbone.storage().lease;
        loop {
            let assignment = self.next_startable(shared, policy, now)?;
            if assignment.is_anothers(now, lease) {
                assignment.right.leave();
                continue;
            }
            self.started += 1;
            return Some(assignment);
        }
    }

    fn next_startable(&mut self, shared: &Shared, policy: &QueuePolicy, now: Instant) -> Option<Box<Assignment>> {
        if self.held_back > 0 {
            // More handlers may come while jobs wait for them.
            shared.saw_remote();
            // Types may share places: who comes first in order has the next one.
            let lists = self.full.values_mut().filter(|list| !list.is_empty());
            let mut fronts: Vec<&mut VecDeque<Box<Assignment>>> = lists.collect();
            fronts.sort_unstable_by_key(|list| list.front().map(|front| front.rank(policy.aging)));
            for list in fronts {
                let Some(front) = list.front_mut() else { continue };
                front.with_handler = shared.slots.take(shared.room(&front.job));
                if front.with_handler.is_some() {
                    self.held_back -= 1;
                    return list.pop_front();
                }
            }
        }
        while self.held_back < policy.concurrency {
            self.hold_off = self.coming.hold_off(self.merge.next_rank()?, now, |lane| self.merge.held_of(lane) == 0);
            if self.hold_off.is_some() {
                return None;
            }
            let mut assignment = self.merge.take_next()?;
            if matches!(assignment.start, Start::Invalid(_)) || shared.handler(&assignment.job).is_some() {
                return Some(assignment);
            }
            shared.saw_remote();
            let job_type = assignment.job.job_type.clone();
            // Behind those of its type that wait already.
            if self.full.get(&job_type).is_none_or(VecDeque::is_empty) {
                assignment.with_handler = shared.slots.take(shared.room(&assignment.job));
                if assignment.with_handler.is_some() {
                    return Some(assignment);
                }
            }
            self.held_back += 1;
            self.full.entry(job_type).or_default().push_back(assignment);
        }
        None
    }
}

/// A job that waited too long in hand goes back; one whose lease is over by now is no longer ours to give.
fn let_go(assignment: Assignment, now: Instant, lease: Duration) {
    if assignment.is_anothers(now, lease) {
        assignment.right.leave();
    } else {
        assignment.right.hand_back();
    }
}
