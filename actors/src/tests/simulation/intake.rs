//! The intake, and the timekeeper as far as it moves jobs into their lane: by the code that ships.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bytes::Bytes;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Code, Submitted};
use longshore_backbone::wire::header::{JobHeaders, Moved, names};
use longshore_backbone::{Error, Headers};
use longshore_domain::protocol::{Repeat, on_repeat};
use longshore_domain::{Job, Run, RunId};

use crate::api::keyed;
use crate::api::submission::{OnConflict, Submission, SubmitPorts};
use crate::commit::Commit;
use crate::ports::Unlogged;
use crate::queue::due::{self, DueJob, DuePorts, StoredPorts};
use crate::tests::simulation::attempt::schedule_of;
use crate::tests::simulation::client::{Client, Unclear};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{Due, Message, MessageId, Place, Schedule};
use crate::tests::simulation::worker::{Delivery, Hand, seal_text};
use crate::tests::simulation::world::{LEASE, World, stamp};

/// A job at its first attempt, just published.
pub(crate) fn job(plan: usize, at: i64) -> Message {
    let place = Place { plan, round: 1, attempt: 1, deferrals: 0, timed: false };
    Message { sequence: 0, at, place, plan, moved: false, returned: false, seal: 0, since: at, delivered: 0, until: at }
}

/// Accepts a job. A client that got no answer asks again.
pub(crate) async fn submit(world: &World, node: usize, index: usize) {
    let now = world.clock.get();
    let hand = Hand::new(world, node, Delivery::of_stored(job(index, now), now));
    let plan = &world.plans[index];
    let submission = Submission {
        job: plan.job().clone(),
        own_id: Some(plan.job().run_id.clone()),
        on_conflict: if plan.replaces { OnConflict::Replace } else { OnConflict::Return },
        debounce: None,
        headers: Headers::new(),
        payload: Bytes::from_static(plan.payload),
        trace: None,
        over: 0,
        fingerprint: std::sync::OnceLock::new(),
    };
    let due = plan.options.as_ref().and_then(|options| options.run_at).map(|when| when.from(world.now()));
    match keyed::submit(&hand, submission, due).await {
        Ok(Submitted { run_id, .. }) => {
            check_answer(&hand, &run_id);
            world.submitted(index);
        }
        // Another job has the key. If this one was published by an earlier try, it ends as the duplicate of that one.
        Err(error) if error.error == Code::IdempotencyMismatch.as_str() => world.submitted(index),
        Err(_) => {}
    }
}

/// There is a run whose id was answered, and it stays.
fn check_answer(hand: &Hand<'_>, answered: &RunId) {
    let world = hand.world;
    let (plan, key) = hand.place_of(answered);
    let (server, mut ledger) = (world.server.borrow(), world.ledger.borrow_mut());
    match server.read(key) {
        Some(stored) if on_repeat(&stored.run) != Repeat::Nothing => {
            ledger.accuse(plan, "its client was answered, but its record goes away by itself");
        }
        None if !ledger.has_run(plan) && !server.has_message_of(plan) => {
            ledger.accuse(plan, "its client was answered, but it does not exist: lost as nothing");
        }
        _ => {}
    }
}

impl SubmitPorts for Hand<'_> {
    async fn publish_job(&self, job: &Job, headers: Headers, _: Bytes, _: &str) -> Result<(), ApiError> {
        let world = self.world;
        let plan = self.place_of(&job.run_id).0;
        let seal = headers.get(names::SEAL).map_or("", |seal| seal.as_str());
        let seal = u64::from_str_radix(seal, 16).expect("every submitted job has a seal");
        let sealed = if world.is(Mutation::SubmittedUnsealed) { 0 } else { seal };
        let message = Message { seal: sealed, ..self::job(plan, world.clock.get()) };
        self.client.publish(message, MessageId::Submitted(seal)).await;
        // Often the node does no more for a job that replaces another one; then the job does the rest as it begins.
        if self.plan.replaces && world.chance.hits(3_000) {
            return Err(ApiError::unavailable("its node has died"));
        }
        Ok(())
    }

    async fn carry_out(&self, commit: Commit) -> Result<u64, Unlogged> {
        self.wait_for(commit).await
    }

    async fn has_schedule(&self, run: &Run) -> Result<bool, Error> {
        let plan = self.place_of(&run.run_id).0;
        Ok(self.client.has_schedule(schedule_of(self.world, plan, run).place).await)
    }

    async fn unschedule(&self, run: &Run) -> Result<(), Error> {
        let plan = self.place_of(&run.run_id).0;
        self.client.unschedule(schedule_of(self.world, plan, run).place).await;
        Ok(())
    }
}

/// A due job that a timekeeper moves.
struct Move<'w> {
    client: Client<'w>,
    due: Due,
    is_parked: bool,
}

/// Moves a due job into its lane, or puts it off if the lane does not confirm it.
pub(crate) async fn take_due(world: &World, node: usize, due: Due) {
    let job = due_job(world, due);
    let ports = Move { client: Client { world, node }, due, is_parked: false };
    let ack_token = AckToken::none();
    if let Err((Unclear, ack_token)) = due::move_to_lane(&ports, &job, ack_token).await {
        ack_token.abandon();
        ports.client.put_off(due, world.chance.between(1, LEASE)).await;
    }
}

/// Takes a parked job back into its lane; says whether it was still parked.
pub(crate) async fn take_back(world: &World, node: usize, parked: Due) -> Result<bool, Error> {
    let ports = Move { client: Client { world, node }, due: parked, is_parked: true };
    let taken = due::take_to_lane(&ports, &due_job(world, parked), &Source::Parked, parked.sequence).await;
    world.say(|| format!("{} has taken {:?} back: {taken:?}", ports.client.name(), parked.schedule.place));
    taken
}

/// Moves the job of a schedule that did not fire, if it still stands.
pub(crate) async fn bring_on(world: &World, node: usize, overdue: Schedule) {
    let due = Due { sequence: overdue.sequence, schedule: overdue, until: 0 };
    let ports = Move { client: Client { world, node }, due, is_parked: false };
    if ports.client.find_schedule(overdue.place).await == Some(overdue.sequence) {
        let moved = due::take_to_lane(&ports, &due_job(world, due), &Source::Schedules, due.sequence).await;
        world.say(|| format!("{} has swept {:?}: {moved:?}", ports.client.name(), overdue.place));
    }
}

/// The job that a due, overdue or parked message brings.
fn due_job(world: &World, due: Due) -> DueJob {
    let Schedule { place, seal, at, .. } = due.schedule;
    let plan = &world.plans[place.plan];
    let job = if place.timed { plan.timed_job(stamp(world.published_at(place.plan))) } else { plan.job() };
    let Place { round, attempt, deferrals, .. } = place;
    let moved = Some(Moved {
        round,
        attempt,
        deferrals,
        due_at: Some(stamp(at)),
        deferred_for: None,
        place: None,
        left_out: None,
    });
    let read = JobHeaders { options: None, run_id: Some(job.run_id.clone()), moved, seal: Some(seal_text(seal)) };
    DueJob::of(job.lane(), Some(&read), &job.tenant, due.sequence)
}

impl DuePorts for Move<'_> {
    type Refusal = Unclear;

    async fn move_to_lane(&self, job: &DueJob) -> Result<(), Unclear> {
        let world = self.client.world;
        if world.is(Mutation::DueAckedBeforeItIsMoved) {
            self.client.ack_due(self.due).await;
        }
        self.publish(job).await
    }

    fn moved(&self, _: &DueJob) {}

    async fn ack(&self, ack_token: AckToken) {
        ack_token.abandon();
        self.client.ack_due(self.due).await;
    }
}

impl Move<'_> {
    async fn publish(&self, job: &DueJob) -> Result<(), Unclear> {
        let world = self.client.world;
        // The message's own sequence and the wait come last.
        let parts_left_out = match world.mutation {
            Some(Mutation::MovedUnderTheSameIdAfterADeferral) => 2,
            Some(Mutation::MovedUnderTheSameIdAfterARescheduling) => 1,
            _ => 0,
        };
        let id = job.id.rsplitn(parts_left_out + 1, '/').last().unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let Schedule { place, seal, at, .. } = self.due.schedule;
        let message = self::job(place.plan, 0);
        let message = Message { place, moved: true, returned: self.is_parked, seal, since: at, ..message };
        let is_confirmed = self.client.try_publish(message, MessageId::Moved(hasher.finish())).await;
        is_confirmed.then_some(()).ok_or(Unclear)
    }
}

impl StoredPorts for Move<'_> {
    async fn publish(&self, job: &DueJob) -> Result<(), Error> {
        let (world, sequence) = (self.client.world, self.due.sequence);
        if world.is(Mutation::ParkedJobDeletedBeforeItIsTakenBack) {
            self.client.take_parked(sequence).await;
        }
        if world.is(Mutation::OverdueScheduleDeletedBeforeItIsMoved) {
            self.client.take_schedule(sequence).await;
        }
        Ok(Move::publish(self, job).await?)
    }

    fn published(&self, _: &DueJob) {}

    async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error> {
        Ok(match place {
            Source::Parked => self.client.take_parked(sequence).await,
            _ => self.client.take_schedule(sequence).await,
        })
    }
}
