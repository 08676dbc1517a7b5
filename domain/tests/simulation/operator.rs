//! What people do to runs: cancel them, replay or discard their dead letters.

use longshore_domain::protocol::{LetterVerdict, on_letter};
use longshore_domain::settlement::Settlement;
use longshore_domain::{Run, RunState};

use crate::client::Client;
use crate::intake::job;
use crate::mutation::Mutation;
use crate::plan::Letter;
use crate::server::{DeadLetter, Message, MessageId, Place};
use crate::world::{World, stamp};

/// A run is replayed this often at most.
pub(crate) const REPLAYS: u32 = 2;

/// A node that says it is at work on a run has this long to end it.
const ENDS_WITHIN: i64 = 5_000;
/// How long a silence has to be to mean that no node is.
const ASK_FOR: i64 = 100;

/// Cancels a run, wherever it stands, unless it has ended. An attempt that began without a record is its node's to end:
/// nodes are asked first, once.
pub(crate) async fn cancel(world: &World, node: usize, index: usize, published_at: i64) {
    let client = Client { world, node };
    let mut asked = false;
    loop {
        let Some((before, revision)) = present(&client, index, published_at).await else { return };
        if before.state.is_ended() {
            return;
        }
        if is_unseen(&before) && !std::mem::replace(&mut asked, true) {
            if client.tell_to_stop(index).await {
                wait_for_end(&client, index).await;
            } else {
                world.pause(ASK_FOR).await;
            }
            continue;
        }
        let mut run = before.clone();
        run.settle(Settlement::Cancel, world.now());
        if world.is(Mutation::CancelledTakenOutBeforeItIsOnRecord) {
            clear_away(&client, index, &before).await;
        }
        if client.write(index, revision, &mut run).await.is_some() {
            if world.is(Mutation::CancelledTakenOutUntold) {
                clear_away(&client, index, &before).await;
            }
            client.tell(index, &run).await;
            clear_away(&client, index, &before).await;
            return;
        }
    }
}

/// No attempt is on record, and no message carries the run yet: it waits in its lane, or has just been started.
fn is_unseen(run: &Run) -> bool {
    run.state == RunState::Enqueued && !run.has_started() && run.held_by.is_none()
}

/// The run as it stands, and the revision to write on; as it waits in its lane, where nothing is on record.
async fn present(client: &Client<'_>, index: usize, published_at: i64) -> Option<(Run, u64)> {
    let world = client.world;
    let plan = &world.plans[index];
    let found = client.read(world.key(index)).await;
    let revision = found.as_ref().map_or(0, |stored| stored.revision);
    // Under a minted id the record may be of a lane that is gone: the waiting message says which run is meant.
    match found.filter(|stored| !plan.minted() || stored.run.origin == stamp(published_at)) {
        Some(own) => Some(((*own.run).clone(), revision)),
        None => {
            let waiting = client.look_in_lane(|message| message.place.plan == index).await?;
            Some((Run::new(plan.job(), plan.max_attempts, stamp(waiting.at)), revision))
        }
    }
}

async fn wait_for_end(client: &Client<'_>, index: usize) {
    let world = client.world;
    let until = world.clock.get() + ENDS_WITHIN;
    while world.clock.get() < until {
        world.pause(250).await;
        let found = client.read(world.key(index)).await;
        if found.is_some_and(|stored| stored.run.state.is_ended()) {
            return;
        }
    }
}

/// Stops whoever runs it, and takes out what waits: the run needs no message any more, all of it being told.
async fn clear_away(client: &Client<'_>, index: usize, before: &Run) {
    client.tell_to_stop(index).await;
    if before.run_at.is_some() {
        let (attempt, deferrals) = (before.next_attempt(), before.deferrals);
        client.unschedule(Place { plan: index, round: before.round, attempt, deferrals }).await;
    } else if is_unseen(before) {
        client.take_out(|message| message.place.plan == index).await;
    }
}

/// Looks after a letter: replays or discards it, as is wished, finishes what another began, removes what is stale.
pub(crate) async fn attend(world: &World, node: usize, letter: DeadLetter) {
    let client = Client { world, node };
    let index = letter.plan;
    world.travel().await;
    let Some(found) = world.record(index) else { return };
    let mut run = (*found.run).clone();
    if on_letter(Some(&run), letter.round) == LetterVerdict::Stands {
        match world.plans[index].letter {
            Letter::Replay if letter.round <= REPLAYS => run.replay(world.now()),
            Letter::Discard => run.discard(world.now()),
            _ => return,
        }
        if world.is(Mutation::ReplayPublishedBeforeItIsOnRecord) && !run.state.is_ended() {
            publish_again(&client, &run, index).await;
        }
        if client.write(index, found.revision, &mut run).await.is_none() {
            return;
        }
    }
    match on_letter(Some(&run), letter.round) {
        LetterVerdict::Stands => return,
        LetterVerdict::Replayed if world.is(Mutation::ReplayNeverResumed) => {}
        LetterVerdict::Replayed => {
            client.tell(index, &run).await;
            if world.is(Mutation::LetterDeletedBeforeTheJobIsPublished) {
                client.delete_letter(letter.sequence).await;
            }
            publish_again(&client, &run, index).await;
        }
        LetterVerdict::Stale if world.is(Mutation::StaleLetterKept) => return,
        LetterVerdict::Stale if run.state.is_ended() && !world.is(Mutation::StaleLetterDeletedUntold) => {
            client.tell(index, &run).await;
        }
        LetterVerdict::Stale => {}
    }
    client.delete_letter(letter.sequence).await;
}

async fn publish_again(client: &Client<'_>, run: &Run, index: usize) {
    let place = Place { plan: index, round: run.round, attempt: 1, deferrals: 0 };
    let message = Message { place, moved: true, ..job(index, 0) };
    client.publish(message, MessageId::Replayed(index, run.round)).await;
}
