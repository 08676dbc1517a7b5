//! What people do to runs: cancel them, replay or discard their dead letters.

use longshore_domain::Run;
use longshore_domain::protocol::{LetterVerdict, on_letter};
use longshore_domain::settlement::Settlement;

use crate::client::Client;
use crate::intake::job;
use crate::mutation::Mutation;
use crate::plan::Letter;
use crate::server::{DeadLetter, Message, MessageId, Place};
use crate::world::{World, stamp};

/// A run is replayed this often at most.
pub(crate) const REPLAYS: u32 = 2;

/// Cancels a run, wherever it stands, unless it has ended.
pub(crate) async fn cancel(world: &World, node: usize, index: usize, published_at: i64) {
    let client = Client { world, node };
    let plan = &world.plans[index];
    loop {
        let found = client.read(world.key(index)).await;
        let revision = found.as_ref().map_or(0, |stored| stored.revision);
        // Under a minted id the record may be of a lane that is gone: the waiting message says which run is meant.
        let own = found.filter(|stored| !plan.minted() || stored.run.origin == stamp(published_at));
        let fresh = || Run::new(plan.job(), plan.max_attempts, stamp(published_at));
        let mut run = own.map_or_else(fresh, |stored| (*stored.run).clone());
        if run.state.is_ended() {
            return;
        }
        run.settle(Settlement::Cancel, world.now());
        if client.write(index, revision, &mut run).await.is_some() {
            client.announce_cancelled(index).await;
            client.tell(index, &run).await;
            client.unschedule(index).await;
            return;
        }
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
