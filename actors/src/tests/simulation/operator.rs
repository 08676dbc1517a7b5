//! The operations of people: they cancel runs, and replay or discard dead letters.

use longshore_domain::Run;
use longshore_domain::protocol::{DeadLetterVerdict, on_dead_letter};
use longshore_domain::settlement::Settlement;

use crate::attempt::keys;
use crate::tests::simulation::attempt::schedule_of;
use crate::tests::simulation::client::Client;
use crate::tests::simulation::intake::job;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::Letter;
use crate::tests::simulation::server::{DeadLetter, Key, Message, MessageId, Stored};
use crate::tests::simulation::worker::{Delivery, Hand, seal_of, seal_text};
use crate::tests::simulation::world::{HEARD_WITHIN, ToldToStop, World, stamp};

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
/// it is stale.
pub(crate) async fn attend(world: &World, node: usize, letter: DeadLetter) {
    let client = Client { world, node };
    let index = letter.plan;
    let timed = World::timed_key(index);
    let (key, found) = match client.read(timed).await {
        Some(found) => (timed, Some(found)),
        None => (world.key(index), client.read(world.key(index)).await),
    };
    let Some(found) = found else { return };
    let mut run = (*found.run).clone();
    let mut verdict = on_dead_letter(Some(&run), letter.round, letter.origin);
    if verdict == DeadLetterVerdict::StaleRecord
        && (world.is(Mutation::StaleRecordTakenForTheNewest) || world.is(Mutation::RecordsReadFromAnyReplica))
    {
        verdict = DeadLetterVerdict::Stale;
    }
    if verdict == DeadLetterVerdict::Stands {
        match world.plans[index].letter {
            Letter::Replay if letter.round <= REPLAYS => run.replay(world.now()),
            Letter::Discard => run.discard(world.now()),
            _ => return,
        }
        if run.seal.is_empty() {
            run.seal = seal_text(world.number());
        }
        if world.is(Mutation::ReplayPublishedBeforeItIsOnRecord) && !run.state.is_terminal() {
            publish_again(&client, &run, index).await;
        }
        if client.write(index, key, found.revision, &mut run).await.is_err() {
            return;
        }
        verdict = on_dead_letter(Some(&run), letter.round, letter.origin);
    } else {
        world.ledger.borrow_mut().may_be_live_again(index);
    }
    match verdict {
        DeadLetterVerdict::Stands | DeadLetterVerdict::StaleRecord => return,
        DeadLetterVerdict::OtherRun if world.plans[index].letter == Letter::Discard => {}
        DeadLetterVerdict::OtherRun => return,
        DeadLetterVerdict::Replayed if world.is(Mutation::ReplayNeverResumed) => {}
        DeadLetterVerdict::Replayed => {
            client.publish_events(index, &run, world.published_at_dead_letter(&run, letter.round)).await;
            if world.is(Mutation::LetterDeletedBeforeTheJobIsPublished) {
                client.delete_letter(letter.sequence).await;
            }
            publish_again(&client, &run, index).await;
        }
        DeadLetterVerdict::Stale if world.is(Mutation::StaleLetterKept) => return,
        DeadLetterVerdict::Stale if run.state.is_terminal() && !world.is(Mutation::StaleLetterDeletedUntold) => {
            client.publish_events(index, &run, world.published_at_dead_letter(&run, letter.round)).await;
        }
        DeadLetterVerdict::Stale => {}
    }
    client.delete_letter(letter.sequence).await;
}

async fn publish_again(client: &Client<'_>, run: &Run, index: usize) {
    let place = schedule_of(client.world, index, run).place;
    let message = Message { place, moved: true, seal: seal_of(run), ..job(index, client.world.clock.get()) };
    client.publish(message, MessageId::Replayed(seal_of(run), run.round)).await;
}
