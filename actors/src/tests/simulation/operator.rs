//! The operations of people: they cancel runs, and replay or discard dead letters.

use bytes::Bytes;
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::wire::header::{self, Moved};
use longshore_backbone::{Error, Headers};
use longshore_domain::Run;
use longshore_domain::settlement::Settlement;

use crate::api::letter::{self, Action, Change};
use crate::attempt::keys;
use crate::ports::LetterPorts;
use crate::tests::simulation::attempt::schedule_of;
use crate::tests::simulation::client::Client;
use crate::tests::simulation::intake::job;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::Letter;
use crate::tests::simulation::server::{DeadLetter, Key, Message, MessageId, Place, Stored};
use crate::tests::simulation::worker::{Delivery, Hand};
use crate::tests::simulation::world::{HEARD_WITHIN, ToldToStop, World, stamp};
use crate::trace::Tracer;

/// A run is replayed at most this often.
pub(crate) const REPLAYS: u32 = 2;

/// A node that says that it works on a run has this long to end it.
const ENDS_WITHIN: i64 = 5_000;

/// Cancels a run in any state, unless it has ended. Only its own node can end an attempt that began without a record,
/// so the nodes are asked first, once.
pub(crate) async fn cancel(world: &World, node: usize, index: usize, published_at: i64) {
    let client = Client { world, node };
    let mut asked = false;
    loop {
        let Some((before, key, revision)) = present(&client, index, published_at).await else { return };
        if before.state.is_terminal() {
            return;
        }
        if before.is_unseen() && !std::mem::replace(&mut asked, true) {
            if !world.is(Mutation::CancelNotNoted) {
                client.note_cancel(index).await;
            }
            if ask_who_runs(&client, index).await {
                wait_for_end(&client, key).await;
            }
            continue;
        }
        let is_carried_on =
            before.state.wait().is_some() && client.has_schedule(schedule_of(world, index, &before).place).await;
        let mut run = before.clone();
        run.settle(Settlement::Cancel, world.now());
        if world.is(Mutation::CancelledTakenOutBeforeItIsOnRecord) {
            clear_away(&client, index, &before).await;
        }
        if client.write(index, key, revision, &mut run).await.is_ok() {
            if world.is(Mutation::CancelledTakenOutUntold) {
                clear_away(&client, index, &before).await;
            }
            client.publish_events(index, &run, world.published_at_cancel(&before, &run, is_carried_on)).await;
            if !is_taking_over(&client, index, &before).await {
                clear_away(&client, index, &before).await;
            }
            return;
        }
    }
}

/// Whether a node has begun to take a key over for the run's job, as the code that ships finds out.
async fn is_taking_over(client: &Client<'_>, index: usize, before: &Run) -> bool {
    let Client { world, node } = *client;
    let may = before.key_claimed_ms.is_none() && before.round == 1 && !before.has_started();
    if !may || world.plans[index].key.is_none() || world.is(Mutation::JobThatTakesAKeyOverTakenOut) {
        return false;
    }
    let now = world.clock.get();
    let hand = Hand::new(world, node, Delivery::of_stored(job(index, now), now));
    keys::is_taking_over(&hand, world.plans[index].job()).await.unwrap_or(true)
}

/// Has a run that waits for its time start at another one. No event says so.
pub(crate) async fn reschedule(world: &World, node: usize, index: usize, by: i64) {
    let client = Client { world, node };
    loop {
        let Some((mut run, key, revision)) = present(&client, index, world.published_at(index)).await else { return };
        let Some(before) = run.state.run_at() else { return };
        let at = stamp((before.millis() + by).max(world.clock.get()));
        if at == before || !run.reschedule(at) {
            return;
        }
        // It has the job; without it, the job is on its way, and the record says what becomes of it.
        let place = schedule_of(world, index, &run).place;
        let stands = client.has_schedule(place).await;
        if !stands && run.is_only_noted() {
            return;
        }
        // `submit` cannot mark the record any more.
        run.published |= stands && !world.is(Mutation::RescheduledRecordNotMarkedPublished);
        if client.write(index, key, revision, &mut run).await.is_ok() {
            world.ledger.borrow_mut().was_rescheduled(index);
            if stands {
                client.schedule(schedule_of(world, index, &run)).await;
            }
            return;
        }
    }
}

/// The run in its present state, and where it is to be written; if no record is stored, the run as it waits in its
/// lane.
async fn present(client: &Client<'_>, index: usize, published_at: i64) -> Option<(Run, Key, u64)> {
    let world = client.world;
    let plan = &world.plans[index];
    let timed = World::timed_key(index);
    if let Some(found) = client.read(timed).await {
        return Some(((*found.run).clone(), timed, found.revision));
    }
    let key = world.key(index);
    let found = client.read(key).await;
    let revision = found.as_ref().map_or(0, |stored| stored.revision);
    let is_anothers = |stored: &Stored| plan.has_derived_id() && stored.run.origin != stamp(published_at);
    if found.as_ref().is_some_and(|stored| is_anothers(stored) && !stored.run.state.is_terminal()) {
        // Until that run has ended, it owns the id, and the waiting job will get another.
        return None;
    }
    // Under a derived id, the record may be of a lane that is gone: the waiting message says which run is meant.
    match found.filter(|stored| !is_anothers(stored)) {
        Some(own) => Some(((*own.run).clone(), key, revision)),
        None => {
            let waiting = client.look_in_lane(|message| message.plan == index && message.seal == 0).await?;
            Some((Run::new(plan.job(), plan.max_attempts, stamp(waiting.at)), key, revision))
        }
    }
}

/// Tells every node to stop a run, and waits for a while until each has received the order; returns whether one of them
/// runs it. A frozen node reads the order when it wakes, and not before everything else.
async fn ask_who_runs(client: &Client<'_>, plan: usize) -> bool {
    let world = client.world;
    world.travel().await;
    let asked_at = world.clock.get();
    let until = asked_at + HEARD_WITHIN;
    let mut all_heard = asked_at;
    let mut heard_by = [None; 3];
    for (number, node) in world.nodes.iter().enumerate() {
        if node.dead_until.get() > asked_at {
            // It reads the noted cancel when it starts.
            all_heard = until;
            continue;
        }
        let slow = if world.chance.hits(4_000) { world.chance.between(10, HEARD_WITHIN) } else { 5 };
        let from = asked_at.max(node.frozen_until.get()) + world.chance.between(1, slow);
        node.told_to_stop.borrow_mut().push(ToldToStop { plan, told_as: world.number(), from });
        all_heard = all_heard.max(from);
        heard_by[number] = Some((node.life.get(), from));
    }
    if !world.is(Mutation::NodesNotWaitedFor) {
        world.pause(all_heard.min(until) - asked_at + 1).await;
    }
    world.travel().await;
    let ledger = world.ledger.borrow();
    ledger.calls.iter().any(|call| {
        let heard = heard_by[call.node];
        call.plan == plan
            && heard.is_some_and(|(life, from)| from <= until && world.nodes[call.node].life.get() == life)
    })
}

/// Tells every node to stop a run.
async fn tell_to_stop(client: &Client<'_>, plan: usize) {
    let world = client.world;
    world.travel().await;
    let now = world.clock.get();
    for node in world.nodes.iter().filter(|node| node.dead_until.get() <= now) {
        let from = now.max(node.frozen_until.get()) + 1;
        node.told_to_stop.borrow_mut().push(ToldToStop { plan, told_as: world.number(), from });
    }
}

async fn wait_for_end(client: &Client<'_>, key: Key) {
    let world = client.world;
    let until = world.clock.get() + ENDS_WITHIN;
    while world.clock.get() < until {
        world.pause(250).await;
        let found = client.read(key).await;
        if found.is_some_and(|stored| stored.run.state.is_terminal()) {
            return;
        }
    }
}

/// Stops the nodes that run it, and removes its waiting job or schedule: the run needs no message any more, because all
/// its events are published.
async fn clear_away(client: &Client<'_>, index: usize, before: &Run) {
    tell_to_stop(client, index).await;
    if before.state.wait().is_some() {
        client.unschedule(schedule_of(client.world, index, before).place).await;
    } else if before.is_unseen() && client.take_out(|message| message.plan == index).await {
        client.forget_cancel(index).await;
    }
}

/// Attends to a dead letter: replays or discards it, as its plan says, completes what another node began, removes it if
/// it is stale; by the code that ships.
pub(crate) async fn attend(world: &World, node: usize, dead: DeadLetter) {
    let DeadLetter { sequence, plan: index, run, origin, .. } = dead;
    let action = match world.plans[index].letter {
        Letter::Discard => Action::Discard,
        // Asked to keep it, a person does no more than finish what was begun.
        Letter::Replay | Letter::Keep => Action::Replay(Change::default()),
    };
    let at = origin.millis();
    let hand = Hand::new(world, node, Delivery::of_stored(job(index, at), world.clock.get()));
    hand.letter.set(Some(sequence));
    let mut headers = Headers::new();
    if let Some(options) = &world.plans[index].job().options {
        header::write_options(options, &mut headers);
    }
    let payload = Bytes::from_static(world.plans[index].payload);
    let letter = StoredDeadLetter { sequence, run: (*run).clone(), headers, payload, left_out: None };
    // What could not be done is tried again.
    if let Err(error) = letter::one(&hand, letter, &action).await {
        world.say(|| format!("{} cannot do it to the dead letter of run {index}: {error}", hand.client.name()));
    }
}

impl LetterPorts for Hand<'_> {
    fn tracer(&self) -> Option<&Tracer> {
        None
    }

    async fn move_to_lane(&self, run: &Run, headers: Headers, _: Bytes, _: &str) -> Result<(), Error> {
        let world = self.world;
        if let Some(letter) = self.letter.get().filter(|_| world.is(Mutation::LetterDeletedBeforeTheJobIsPublished)) {
            self.client.delete_letter(letter).await;
        }
        let read = header::read_job(&headers).expect("a node's headers can be read");
        let (plan, key) = self.place_of_run(run);
        let Some(Moved { round, attempt, deferrals, .. }) = read.moved else {
            world.ledger.borrow_mut().accuse(plan, "a replayed job does not say which round it is");
            return Ok(());
        };
        let seal = read.seal.and_then(|seal| u64::from_str_radix(&seal, 16).ok()).unwrap_or(0);
        let place = Place { plan, round, attempt, deferrals, timed: key == World::timed_key(plan) };
        let message = Message { place, moved: true, seal, ..job(plan, world.clock.get()) };
        self.client.publish(message, MessageId::Replayed(seal, round)).await;
        Ok(())
    }

    async fn remove_letter(&self, sequence: u64) -> Result<(), Error> {
        if !(self.is_stale.get() && self.world.is(Mutation::StaleLetterKept)) {
            self.client.delete_letter(sequence).await;
        }
        Ok(())
    }
}
