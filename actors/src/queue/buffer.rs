//! The buffered jobs of a queue, in their order.
//!
//! The scheduler puts jobs in and gives idle workers their first one; a worker that is done takes its next one itself,
//! so that under load a job costs neither a message nor a change of tasks. Each take returns the job that is next in
//! order at that moment: no job is assigned beforehand. The buffer outlives the scheduler, and a job that is dropped
//! here is returned.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use longshore_backbone::delivery::AckToken;
use longshore_domain::merge::Merge;
use longshore_domain::policy::QueuePolicy;
use longshore_domain::run::DeferReason;
use longshore_domain::{Job, Queue, QueueLane, Run, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::first_claims::FirstClaims;
use crate::attempt::keys::order;
use crate::queue::blocked::wanted::Want;
use crate::queue::blocked::{Blocked, Goes};
use crate::queue::gates::{Gates, HeldUp};
use crate::queue::held::HasPayload;
use crate::queue::lookahead::Lookahead;
use crate::runtime::Unpoisoned as _;
use crate::runtime::gate_news::Wakes;
use crate::runtime::kind::{Kind, Room};
use crate::runtime::park_permits::ParkGate;

/// After workers have taken so many jobs, the scheduler is called to top up.
const NOTIFY_AFTER: usize = 32;

pub(crate) struct JobBuffer {
    queue: Queue,
    policy: QueuePolicy,
    lease: Duration,
    pub(crate) gates: Gates,
    /// Cancelled once the node drains, or serves this queue no longer.
    pub(crate) closing: CancellationToken,
    jobs: Mutex<Jobs>,
    first_claims: Arc<FirstClaims>,
    /// Notified when workers have taken so many jobs that the lanes may need topping up.
    pub(crate) taken: Notify,
    /// Notified when parked jobs of some kind are wanted back.
    pub(crate) wanted_back: Arc<Notify>,
}

struct Jobs {
    merge: Merge<Box<Assignment>>,
    coming: Lookahead,
    /// How long the next job waits for a more urgent one that is on its way.
    hold_off: Option<Instant>,
    blocked: Blocked<Box<Assignment>>,
    started: u64,
    /// How many jobs workers have taken since the scheduler was last notified.
    unreported: usize,
}

/// A job that arrived: its lane, and how many more wait there.
pub(crate) struct Arrived {
    pub(crate) lane: usize,
    pub(crate) behind: u64,
    pub(crate) assignment: Box<Assignment>,
}

/// How many jobs are buffered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffered {
    pub(crate) of: [usize; QueueLane::COUNT],
    /// Those that wait for capacity at their handlers.
    pub(crate) back: usize,
    /// How many were taken out so far.
    pub(crate) started: u64,
}

impl Jobs {
    fn new(lease: Duration, now: Instant) -> Self {
        Self {
            merge: Merge::new(QueueLane::COUNT),
            coming: Lookahead::new(QueueLane::COUNT, now),
            hold_off: None,
            blocked: Blocked::new(lease),
            started: 0,
            unreported: 0,
        }
    }
}

impl JobBuffer {
    pub(crate) fn new(
        queue: Queue,
        policy: QueuePolicy,
        lease: Duration,
        gates: Gates,
        closing: CancellationToken,
    ) -> Self {
        let jobs = Mutex::new(Jobs::new(lease, Instant::now()));
        let first_claims = Arc::default();
        let (taken, wanted_back) = (Notify::new(), Arc::default());
        Self { queue, policy, lease, gates, closing, jobs, first_claims, taken, wanted_back }
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unpoisoned()
    }

    /// Returns every job and forgets all it knew.
    pub(crate) fn clear(&self, now: Instant) {
        let lease = self.lease;
        let mut jobs = self.jobs();
        let started = jobs.started;
        let mut old = std::mem::replace(&mut *jobs, Jobs { started, ..Jobs::new(lease, now) });
        drop(jobs);
        let blocked = old.blocked.take_all();
        let back = old.merge.take_where(|_| true).into_iter().chain(blocked);
        back.for_each(|assignment| assignment.return_or_abandon(now, lease));
    }

    /// The scheduler has sent its first pulls.
    pub(crate) fn lanes_asked(&self, now: Instant) {
        self.jobs().coming.asked(now);
    }

    pub(crate) fn came(&self, came: impl Iterator<Item = Arrived>) {
        let mut jobs = self.jobs();
        for Arrived { lane, behind, assignment } in came {
            let rank = assignment.rank(self.policy.aging);
            jobs.coming.came(lane, rank, behind);
            if assignment.is_returned {
                jobs.blocked.has_arrived(&Kind::of(&assignment.job));
            }
            jobs.merge.push(lane, rank, assignment);
        }
    }

    /// Takes in a job that was held locally until now.
    pub(crate) fn again(&self, assignment: Box<Assignment>) {
        let lane = QueueLane::Of(assignment.job.priority).index();
        let rank = assignment.rank(self.policy.aging);
        self.jobs().merge.push(lane, rank, assignment);
    }

    /// Whether any job may start: the node takes new work, and the queue is not paused as far as this node knows.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        !self.closing.is_cancelled() && self.gates.run_time_settings.may_start_in(&self.queue, now)
    }

    /// The next job in order that may start, or is to be parked; none while the node drains, or the queue is paused.
    pub(crate) fn next(&self, now: Instant) -> Option<Box<Assignment>> {
        if !self.is_open(now) {
            return None;
        }
        self.jobs().next(self, now)
    }

    /// The same for a worker that is done; the scheduler is notified after every [`NOTIFY_AFTER`] such jobs, and when
    /// none is left.
    pub(crate) fn next_after(&self, now: Instant) -> Option<Box<Assignment>> {
        if !self.is_open(now) {
            return None;
        }
        let mut jobs = self.jobs();
        let next = jobs.next(self, now)?;
        jobs.unreported += 1;
        if jobs.unreported >= NOTIFY_AFTER || jobs.merge.held() == 0 {
            jobs.unreported = 0;
            self.taken.notify_one();
        }
        debug_assert!(jobs.unreported < NOTIFY_AFTER, "the scheduler is not notified");
        Some(next)
    }

    /// Notifies the scheduler if a worker found that the next job waits for a more urgent one, or for its time.
    pub(crate) fn notify_if_held_off(&self) {
        let jobs = self.jobs();
        if jobs.hold_off.is_some() || jobs.blocked.opens_at_new_time() {
            self.taken.notify_one();
        }
    }

    /// Until when the next job waits for a more urgent one, or for a gate to open; answered once.
    pub(crate) fn hold_off(&self) -> Option<Instant> {
        let mut jobs = self.jobs();
        jobs.hold_off.take().into_iter().chain(jobs.blocked.opens()).min()
    }

    pub(crate) fn held(&self) -> Buffered {
        let jobs = self.jobs();
        Buffered {
            of: std::array::from_fn(|lane| jobs.merge.held_of(lane)),
            back: jobs.blocked.held(),
            started: jobs.started,
        }
    }

    /// Why a run's job that is buffered here cannot start, as far as that is known.
    pub(crate) fn reason_of(&self, run: &Run) -> Option<DeferReason> {
        let jobs = self.jobs();
        let is_its = |job: &Job| job.run_id == run.run_id && job.tenant == run.tenant;
        let (assignment, reason) = jobs.blocked.find(|assignment| is_its(&assignment.job))?;
        if self.gates.handlers_are_full(assignment) { Some(DeferReason::Busy) } else { reason }
    }

    /// The kind of a job that is buffered here and cannot start.
    pub(crate) fn kind_of(&self, run: &Run) -> Option<Kind> {
        let is_its = |job: &Job| job.run_id == run.run_id && job.tenant == run.tenant;
        let jobs = self.jobs();
        jobs.blocked.find(|assignment| is_its(&assignment.job)).map(|(assignment, _)| Kind::of(&assignment.job))
    }

    /// Since when the job has waited that has waited longest of those buffered here.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let jobs = self.jobs();
        jobs.merge.heads().chain(jobs.blocked.fronts()).map(|assignment| assignment.since).min()
    }

    /// The connection was made anew: the server may have forgotten what it delivered to us. Retries that are held
    /// locally stay, as their records say.
    pub(crate) fn forget_deliveries(&self, now: Instant) {
        let mut jobs = self.jobs();
        let mut back = jobs.merge.take_where(|assignment| !assignment.is_held_locally());
        back.extend(jobs.blocked.take_all());
        drop(jobs);
        back.into_iter().for_each(|assignment| assignment.return_or_abandon(now, self.lease));
    }

    /// Has each job claim its run before it starts, those that are about to come here included: the server may have
    /// given it to another node, or to this one twice.
    pub(crate) fn claim_all(&self, coming: &mut [Arrived]) {
        let mut jobs = self.jobs();
        let Jobs { merge, blocked, .. } = &mut *jobs;
        let coming = coming.iter_mut().map(|arrived| &mut arrived.assignment);
        for assignment in merge.iter_mut().chain(blocked.iter_mut()).chain(coming) {
            if matches!(assignment.start, Start::Unread { .. }) {
                assignment.start = Start::Claim;
            }
        }
    }

    /// Takes out the jobs that have waited for a third of their lease, so that a node with free capacity may have them:
    /// what returns them, by lane. Jobs that cannot start there either are parked.
    pub(crate) fn give_back(&self, now: Instant) -> Vec<(usize, Vec<AckToken>)> {
        let lease = self.lease;
        let waited = |assignment: &Assignment| {
            !assignment.is_held_locally() && now.duration_since(assignment.leased_from) > lease / 3
        };
        let mut jobs = self.jobs();
        let back = jobs.merge.take_where(|assignment| waited(assignment));
        let mut not_parked = Vec::new();
        while let Some((_, assignment)) = jobs.blocked.take_overdue() {
            not_parked.push(assignment);
        }
        jobs.blocked.set_aside(|assignment| waited(assignment));
        drop(jobs);
        not_parked.into_iter().for_each(|assignment| assignment.return_or_abandon(now, lease));
        let mut by_lane: Vec<(usize, Vec<AckToken>)> = Vec::new();
        for assignment in back {
            if assignment.lease_is_over(now, lease) {
                assignment.ack_token.abandon();
                continue;
            }
            let lane =
                if assignment.is_returned { QueueLane::Returned } else { QueueLane::Of(assignment.job.priority) }
                    .index();
            match by_lane.last_mut().filter(|(last, _)| *last == lane) {
                Some((_, of_lane)) => of_lane.push(assignment.ack_token),
                None => by_lane.push((lane, vec![assignment.ack_token])),
            }
        }
        by_lane
    }

    /// The stream has parked jobs of exactly these kinds. Says what is wanted back of each, and whether any of a kind
    /// could start of which none is here; `room` says how many of a kind could.
    pub(crate) fn are_parked(&self, kinds: &[Kind], now: Instant, room: impl Fn(&Kind) -> Room) -> (Vec<Want>, bool) {
        // Asked before the lock is taken, because every worker that takes a job waits for that lock.
        let with_room: Vec<(&Kind, Room)> = kinds.iter().map(|kind| (kind, room(kind))).collect();
        let mut jobs = self.jobs();
        jobs.blocked.are_parked(kinds, now);
        let is_short = with_room.iter().any(|(kind, room)| jobs.blocked.is_short_of(kind, *room));
        (jobs.blocked.wanted(&with_room, now), is_short)
    }

    pub(crate) fn room_for(&self, kind: &Kind, now: Instant) -> Room {
        self.gates.room_for(&self.queue, kind, self.policy.concurrency, now)
    }

    /// What parking says, or has to know, of the jobs that cannot start.
    pub(crate) fn blocked<T>(&self, ask: impl FnOnce(&mut Blocked<Box<Assignment>>) -> T) -> T {
        ask(&mut self.jobs().blocked)
    }
}

impl Jobs {
    fn next(&mut self, buffer: &JobBuffer, now: Instant) -> Option<Box<Assignment>> {
        let lease = buffer.lease;
        loop {
            let Some(mut assignment) = self.next_of_any_kind(buffer, now)?.in_time(now, lease) else { continue };
            self.started += 1;
            assignment.place = match assignment.arrival.moved {
                true => None,
                false => buffer.first_claims.enter(&assignment.job),
            };
            return Some(assignment);
        }
    }

    /// The next job to start or to park, whether or not its lease is over.
    fn next_of_any_kind(&mut self, buffer: &JobBuffer, now: Instant) -> Option<Box<Assignment>> {
        if self.blocked.held() > 0 {
            // Handlers may start while jobs wait for them: discovery must go on.
            buffer.gates.routing.discovery.saw_remote();
            if let Some(next) = self.next_blocked(buffer, now) {
                return Some(next);
            }
        }
        loop {
            self.hold_off = self.coming.hold_off(self.merge.next_rank()?, now, |lane| self.merge.held_of(lane) == 0);
            if self.hold_off.is_some() || !self.has_room(buffer) {
                return None;
            }
            let mut assignment = self.merge.take_next()?;
            let Some(kind) = buffer.gates.kind_of(&assignment) else { return Some(assignment) };
            let held_up = match self.blocked.has_others_before(&kind, assignment.is_returned) {
                true => None,
                false => match pass(&buffer.gates, &mut assignment, now) {
                    Ok(()) => {
                        self.starts(&kind, &mut assignment, buffer, now);
                        return Some(assignment);
                    }
                    Err(held_up) => Some(held_up),
                },
            };
            let reason = held_up.and_then(|held_up| held_up.reason).or_else(|| self.blocked.reason(&kind));
            let reason = reason.or_else(|| buffer.gates.usual_reason(&buffer.queue, &kind));
            let is_judged = match held_up {
                Some(held_up) => held_up.is_judged,
                None => !self.blocked.asks_for_slot(&kind) && buffer.gates.is_judged_at_once(&assignment),
            };
            let goes = match is_judged {
                true => Goes::Parked,
                false => self.blocked.place_for(&kind, assignment.is_returned, held_up, now),
            };
            if goes == Goes::Parked && may_park(&buffer.gates.park, &mut assignment, reason) {
                self.parks(&kind, &mut assignment, buffer, now);
                return Some(assignment);
            }
            let position = assignment.place(buffer.policy.aging);
            if goes == Goes::Parked && self.blocked.has_parked_before(&kind, assignment.is_returned) {
                self.blocked.keep_behind(kind, position, assignment);
                continue;
            }
            self.blocked.keep(kind.clone(), position, assignment);
            if let Some(held_up) = held_up {
                self.blocked.held_up(&kind, held_up);
            }
        }
    }

    /// The first in order of the jobs that could not start before and can now; else one that has waited for too long.
    fn next_blocked(&mut self, buffer: &JobBuffer, now: Instant) -> Option<Box<Assignment>> {
        let news = buffer.gates.news.count();
        if let Some((kind, mut assignment)) = self.blocked.take(
            now,
            news,
            |front| buffer.gates.may_be_asked(&front.permits),
            |front| pass(&buffer.gates, front, now),
        ) {
            self.starts(&kind, &mut assignment, buffer, now);
            return Some(assignment);
        }
        let (kind, mut late) = match buffer.gates.park.is_open().then(|| self.blocked.take_behind()).flatten() {
            Some(behind) => behind,
            None => self.blocked.take_overdue()?,
        };
        let reason = self.blocked.reason(&kind).or_else(|| buffer.gates.usual_reason(&buffer.queue, &kind));
        if may_park(&buffer.gates.park, &mut late, reason) {
            self.parks(&kind, &mut late, buffer, now);
            return Some(late);
        }
        late.return_or_abandon(now, buffer.lease);
        None
    }

    /// A job of this kind is being parked. If it could start but for the others that are, they are wanted back at once.
    fn parks(&mut self, kind: &Kind, assignment: &mut Assignment, buffer: &JobBuffer, now: Instant) {
        let on_its_way = self.blocked.parks(kind.clone(), assignment.place(buffer.policy.aging));
        let Some(permit) = &mut assignment.park else { return };
        permit.on_its_way = Some(on_its_way);
        if matches!(buffer.gates.room_for(&buffer.queue, kind, 0, now), Room::For(1..)) {
            permit.wanted_back = Some(Arc::clone(&buffer.wanted_back));
        }
    }

    /// A job of this kind starts: if parked jobs are to follow it, parking is notified, and as it ends, because they
    /// may wait for that.
    fn starts(&mut self, kind: &Kind, assignment: &mut Assignment, buffer: &JobBuffer, now: Instant) {
        if self.blocked.has_parked(&kind.job_type) || order::has_order(&buffer.gates.routing.policies, kind) {
            assignment.permits.wakes = Some(Wakes::new(Arc::clone(&buffer.wanted_back)));
        }
        if self.blocked.started(kind, now) {
            buffer.wanted_back.notify_one();
        }
    }

    /// Whether another job may be taken out of the order: if it can neither start nor be parked, it stays here, and
    /// there is a bound on those. Jobs whose slots the cluster is about to be asked for wait in their order, too:
    /// beyond those kept here they would be parked for an answer that comes in a moment.
    fn has_room(&self, buffer: &JobBuffer) -> bool {
        let Gates { park, slots, .. } = &buffer.gates;
        (park.is_open() || self.blocked.held() < buffer.policy.concurrency) && !slots.are_behind()
    }
}

impl HasPayload for Box<Assignment> {
    fn payload_bytes(&self) -> usize {
        self.payload.body.len()
    }
}

/// Has the job start, with the gates' permits, if they let it. While the cluster is asked for its slot, it has the
/// trial whether there are handlers, if that is not known: each of thousands of keys would have its slot brought
/// otherwise.
fn pass(gates: &Gates, assignment: &mut Assignment, now: Instant) -> Result<(), HeldUp> {
    match gates.ask(assignment, now) {
        Ok(mut permits) => {
            permits.capacity = permits.capacity.or_else(|| assignment.permits.capacity.take());
            assignment.permits = permits;
            Ok(())
        }
        Err(held_up) => {
            assignment.permits.waits = held_up.waits;
            if !held_up.asks_for_slot() {
                assignment.permits.capacity = None;
            } else if assignment.permits.capacity.is_none() {
                assignment.permits.capacity = gates.trial(assignment);
            }
            Err(held_up)
        }
    }
}

/// Marks the job to be parked instead of started, if that is possible now.
fn may_park(park: &ParkGate, assignment: &mut Assignment, reason: Option<DeferReason>) -> bool {
    assignment.park = park.take(reason);
    assignment.park.is_some()
}
