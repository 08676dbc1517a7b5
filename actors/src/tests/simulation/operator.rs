//! The operations of people, by the code that ships: they cancel and reschedule runs, and replay or discard dead
//! letters.

use std::sync::Arc;

use bytes::Bytes;
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::records::Found;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Code};
use longshore_backbone::wire::header::{self, Moved};
use longshore_backbone::{Error, Headers};
use longshore_domain::job::Unique;
use longshore_domain::protocol::{Repeat, on_repeat};
use longshore_domain::{Run, RunId, Tenant};

use crate::api::cancellation::comes_by_a_node;
use crate::api::dead_letter::{self, Action, ReplayChange as Replay};
use crate::api::{cancellation, reschedule};
use crate::ports::{CancelPorts, DeadLetterPorts, InLane, RunPorts as _, Server as _, WaitingPorts};
use crate::tests::simulation::attempt::schedule_of;
use crate::tests::simulation::intake::job;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::Letter;
use crate::tests::simulation::server::{DeadLetter, Message, MessageId, Place};
use crate::tests::simulation::worker::{Delivery, Does, Hand, seal_of};
use crate::tests::simulation::world::{HEARD_WITHIN, OrderToStop, World, stamp};

/// A run is replayed at most this often.
pub(crate) const REPLAYS: u32 = 2;

/// A node that says that it works on a run has this long to end it.
const ENDS_WITHIN: i64 = 5_000;

/// Cancels a run in any state. A person whose request could not be carried out asks again.
pub(crate) async fn cancel(world: &World, node: usize, index: usize) {
    let (hand, run_id) = hand_on_run(world, node, index, Does::Cancels).await;
    let tenant = &world.plans[index].job().tenant;
    while let Err(error) = cancellation::one(&hand, tenant, &run_id, None).await {
        world.say(|| format!("{} cannot cancel run {index}: {error}", hand.client.name()));
        if error.error == Code::WrongState.as_str() {
            return;
        }
        world.pause(world.chance.between(10, 1_000)).await;
    }
}

/// Has a run that waits for its time start at another one. No event says so.
pub(crate) async fn reschedule(world: &World, node: usize, index: usize, by: i64) {
    let (hand, run_id) = hand_on_run(world, node, index, Does::Reschedules).await;
    let Some(before) = world.record(index).and_then(|stored| stored.run.state.run_at()) else { return };
    let run_at = Some(stamp(before.millis() + by));
    let change = reschedule::Change { run_at, ..reschedule::Change::default() };
    match reschedule::one(&hand, &world.plans[index].job().tenant, &run_id, &change).await {
        Ok(run) => {
            let key = hand.place_of_run(&run).1;
            if world.server.borrow().read(key).is_some_and(|stored| on_repeat(&stored.run) != Repeat::Nothing) {
                world.ledger.borrow_mut().accuse(index, "it was rescheduled, but its record goes away by itself");
            }
        }
        Err(error) => world.say(|| format!("{} cannot reschedule run {index}: {error}", hand.client.name())),
    }
}

/// The run of a job may have the id with the time.
async fn hand_on_run(world: &World, node: usize, index: usize, does: Does) -> (Hand<'_>, RunId) {
    let at = world.published_at(index);
    let hand = Hand::new(world, node, Delivery::of_stored(job(index, at), world.clock.get()));
    hand.does.set(does);
    let plan = &world.plans[index];
    let job = match hand.client.read(World::timed_key(index)).await {
        Some(_) => plan.timed_job(stamp(at)),
        None => plan.job(),
    };
    (hand, job.run_id.clone())
}

impl Hand<'_> {
    /// The headers of a run's job.
    pub(super) fn headers_of(&self, plan: usize) -> Headers {
        let mut headers = Headers::new();
        if let Some(options) = &self.world.plans[plan].job().options {
            header::write_options(options, &mut headers);
        }
        headers
    }

    fn stored(&self, plan: usize, sequence: u64) -> Stored {
        let (subject, at) = (String::new(), String::new());
        let payload = Bytes::from_static(self.world.plans[plan].payload);
        Stored { subject, sequence, at, headers: self.headers_of(plan), payload }
    }

    /// The first message in the lane that is a plan's own.
    async fn in_lane(&self, is_it: impl Fn(&Message) -> bool) -> Option<InLane> {
        let found = self.client.look_in_lane(is_it).await?;
        let plan = &self.world.plans[found.plan];
        let run = Run::new(plan.job(), plan.max_attempts, stamp(found.at));
        Some(InLane { run, job: Arc::new(plan.job().clone()), trace: None })
    }

    /// Mutations delete the message of a run before they may.
    pub(super) async fn clear_away_early(&self, plan: usize) {
        let stored = self.world.record(plan);
        if stored.as_ref().is_some_and(|stored| stored.run.state.wait().is_some()) {
            self.client.unschedule_all(plan).await;
        } else if stored.is_none_or(|stored| stored.run.is_unseen() || stored.run.state.is_terminal()) {
            self.client.take_out(|message| message.plan == plan).await;
        }
    }

    /// Orders every node to stop a run, or some time later if it is slow; returns when each has received the order.
    pub(super) fn order_to_stop(&self, plan: usize, slow: i64, only_if_waiting: bool) -> [Option<(u32, i64)>; 3] {
        let (world, now) = (self.world, self.world.clock.get());
        let mut heard_by = [None; 3];
        for (number, node) in world.nodes.iter().enumerate().filter(|(_, node)| node.dead_until.get() <= now) {
            let from = now.max(node.frozen_until.get()) + if slow > 1 { world.chance.between(1, slow) } else { 1 };
            let order = OrderToStop { plan, number: world.number(), from, only_if_waiting };
            node.orders_to_stop.borrow_mut().push(order);
            heard_by[number] = Some((node.life.get(), from));
        }
        heard_by
    }
}

impl WaitingPorts for Hand<'_> {
    async fn recorded_for_certain(&self, tenant: &Tenant, run: &RunId) -> Result<Option<Found>, ApiError> {
        let asked_at = self.world.clock.get();
        let found = self.server().read_record(tenant, run).await?;
        // A leader that was cut off cannot say so for certain.
        let was_cut = self.world.nodes[self.client.node].cut.get().1 > asked_at;
        if found.is_none() && was_cut {
            return Err(ApiError::unavailable("no majority answers"));
        }
        Ok(found)
    }

    async fn waiting(&self, _: &Tenant, run: &RunId) -> Result<Option<InLane>, ApiError> {
        let Some((_, sequence)) = run.as_derived() else { return Ok(None) };
        let plans = &self.world.plans;
        let is_it = |message: &Message| {
            let has_no_id = plans[message.plan].has_derived_id() && message.seal == 0;
            message.sequence == sequence && message.place.plan == message.plan && has_no_id
        };
        Ok(self.in_lane(is_it).await)
    }

    async fn waiting_by_own_id(&self, _: &Tenant, run: &RunId) -> Result<Option<InLane>, ApiError> {
        let plans = &self.world.plans;
        let is_it = |message: &Message| message.place.plan == message.plan && plans[message.plan].job().run_id == *run;
        Ok(if run.as_derived().is_some() { None } else { self.in_lane(is_it).await })
    }

    async fn find(&self, place: &Source, run: &Run) -> Result<Option<Stored>, Error> {
        let plan = self.place_of_run(run).0;
        let sequence = match place {
            Source::Lane(..) if comes_by_a_node(run) => {
                let place = schedule_of(self.world, plan, run).place;
                let is_it = |message: &Message| message.place == place && message.seal == seal_of(run);
                self.client.look_in_lane(is_it).await.map(|message| message.sequence)
            }
            Source::Lane(..) => {
                let is_it = |message: &Message| message.plan == plan && message.place.plan == plan;
                self.client.look_in_lane(is_it).await.map(|message| message.sequence)
            }
            Source::Parked => self.client.find_parked(schedule_of(self.world, plan, run).place).await,
            _ => self.client.find_schedule(schedule_of(self.world, plan, run).place).await,
        };
        Ok(sequence.map(|sequence| self.stored(plan, sequence)))
    }
}

impl CancelPorts for Hand<'_> {
    async fn note_cancel(&self, _: &Tenant, run: &RunId) -> Result<(), Error> {
        if !self.world.is(Mutation::CancelNotNoted) {
            self.client.note_cancel(self.place_of(run).0).await;
        }
        Ok(())
    }

    async fn forget_cancel(&self, _: &Tenant, run: &RunId) -> Result<(), Error> {
        self.client.forget_cancel(self.place_of(run).0).await;
        Ok(())
    }

    /// A frozen node reads the order when it wakes, and not before everything else.
    async fn ask_who_runs(&self, _: &Tenant, run: &RunId, only_if_waiting: bool) -> Result<bool, ApiError> {
        let (world, plan) = (self.world, self.place_of(run).0);
        world.travel().await;
        let asked_at = world.clock.get();
        let until = asked_at + HEARD_WITHIN;
        let slow = if world.chance.hits(4_000) { world.chance.between(10, HEARD_WITHIN) } else { 5 };
        let heard_by = self.order_to_stop(plan, slow, only_if_waiting);
        // A dead node reads the noted cancel when it starts.
        let all_heard = heard_by.iter().map(|heard| heard.map_or(until, |(_, from)| from)).max().unwrap_or(until);
        if !world.is(Mutation::NodesNotWaitedFor) {
            world.pause(all_heard.min(until) - asked_at + 1).await;
        }
        world.travel().await;
        let ledger = world.ledger.borrow();
        Ok(ledger.calls.iter().any(|call| {
            let heard = heard_by[call.node];
            call.plan == plan
                && heard.is_some_and(|(life, from)| from <= until && world.nodes[call.node].life.get() == life)
        }))
    }

    async fn wait_for_attempt(&self, _: &Tenant, run: &RunId) -> Result<(), ApiError> {
        let (world, key) = (self.world, self.place_of(run).1);
        let until = world.clock.get() + ENDS_WITHIN;
        while world.clock.get() < until {
            world.pause(250).await;
            let found = self.client.read(key).await;
            if found.is_some_and(|stored| cancellation::is_over(&stored.run)) {
                break;
            }
        }
        Ok(())
    }

    async fn has_no_message(&self, run: &Run) -> Result<bool, Error> {
        let Some(held) = &run.held_by else { return Ok(false) };
        let (sequence, at) = (held.message.sequence, held.message.at);
        let found = self.client.look_in_lane(|message| message.sequence == sequence && stamp(message.at) == at).await;
        Ok(found.is_none())
    }

    async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error> {
        Ok(match place {
            Source::Lane(..) => self.client.take_out(|message| message.sequence == sequence).await,
            Source::Parked => self.client.take_parked(sequence).await,
            _ => self.client.take_schedule(sequence).await,
        })
    }

    async fn remove_record(&self, _: &Tenant, _: &RunId, _: u64) -> Result<(), Error> {
        unreachable!("every record here is one that nodes wrote")
    }
}

/// Attends to a dead letter: replays or discards it, as its plan says, completes what another node began, removes it if
/// it is stale; by the code that ships.
pub(crate) async fn attend(world: &World, node: usize, dead: DeadLetter) {
    let DeadLetter { sequence, plan: index, run, origin, .. } = dead;
    let action = match world.plans[index].letter {
        Letter::Discard => Action::Discard,
        // Asked to keep it, a person does no more than finish what was begun.
        Letter::Replay | Letter::Keep => Action::Replay(Replay::default()),
    };
    let at = origin.millis();
    let hand = Hand::new(world, node, Delivery::of_stored(job(index, at), world.clock.get()));
    hand.letter.set(Some(sequence));
    let headers = hand.headers_of(index);
    let payload = Bytes::from_static(world.plans[index].payload);
    let letter = StoredDeadLetter { sequence, run: (*run).clone(), headers, payload, left_out: None };
    // What could not be done is tried again.
    if let Err(error) = dead_letter::one(&hand, letter, &action).await {
        let unique = world.plans[index].job().options.as_ref().map(|options| options.unique);
        if unique == Some(Unique::Window) && error.contains("its idempotency key belongs to run") {
            world.without_key.borrow_mut().push(sequence);
        }
        world.say(|| format!("{} cannot do it to the dead letter of run {index}: {error}", hand.client.name()));
    }
}

impl DeadLetterPorts for Hand<'_> {
    async fn move_to_lane(&self, run: &Run, headers: Headers, _: Bytes, _: &str) -> Result<bool, Error> {
        let world = self.world;
        if let Some(letter) = self.letter.get().filter(|_| world.is(Mutation::LetterDeletedBeforeTheJobIsPublished)) {
            self.client.delete_letter(letter).await;
        }
        let read = header::read_job(&headers).expect("a node's headers can be read");
        let (plan, key) = self.place_of_run(run);
        let Some(Moved { round, attempt, deferrals, .. }) = read.moved else {
            world.ledger.borrow_mut().accuse(plan, "a replayed job does not say which round it is");
            return Ok(true);
        };
        let seal = read.seal.and_then(|seal| u64::from_str_radix(&seal, 16).ok()).unwrap_or(0);
        let place = Place { plan, round, attempt, deferrals, timed: key == World::timed_key(plan) };
        let message = Message { place, moved: true, seal, ..job(plan, world.clock.get()) };
        self.client.publish(message, MessageId::Replayed(seal, round)).await;
        Ok(true)
    }

    async fn remove_dead_letter(&self, sequence: u64) -> Result<(), Error> {
        if !(self.is_stale.get() && self.world.is(Mutation::StaleLetterKept)) {
            self.client.delete_letter(sequence).await;
        }
        Ok(())
    }
}
