//! The intake and the timekeeper, as far as they move jobs into their lane.

use longshore_domain::Run;
use longshore_domain::settlement::Settlement;

use crate::client::Client;
use crate::mutation::Mutation;
use crate::server::{Due, Message, MessageId, Place};
use crate::world::{World, stamp};

/// A job at its first attempt, just published.
pub(crate) fn job(plan: usize, at: i64) -> Message {
    let place = Place { plan, round: 1, attempt: 1, deferrals: 0 };
    Message { sequence: 0, at, place, moved: false, revision: None, must_claim: false, delivered: 0, until: at }
}

/// Takes a job in: the record first, then its message or schedule. A client that got no answer asks again.
pub(crate) async fn submit(world: &World, node: usize, index: usize) {
    let client = Client { world, node };
    let plan = &world.plans[index];
    let now = world.clock.get();
    let mut run = Run::new(plan.job(), plan.max_attempts, stamp(now));
    let run_at = plan.options.as_ref().and_then(|options| options.run_at);
    if let Some(at) = run_at {
        run.settle(Settlement::Schedule { at: at.from(stamp(now)) }, stamp(now));
    }
    let mut message = job(index, now);
    if let Some(revision) = client.write(index, 0, &mut run).await {
        message.revision = Some(revision);
    } else {
        // The record says that it was taken in before; whether its message was published it cannot say.
        let Some(found) = client.read(world.key(index)).await else { return };
        run = (*found.run).clone();
        message.must_claim = true;
    }
    let untouched = run.held_by.is_none() && run.round == 1 && !run.state.is_ended();
    match run.run_at {
        Some(_) if message.must_claim && world.is(Mutation::ScheduledRunNeverScheduledAgain) => {}
        Some(at) if untouched => {
            client.tell(index, &run).await;
            client.schedule(message.place, at.millis()).await;
        }
        None if untouched => client.publish(message, MessageId::Submitted(index)).await,
        // Somebody may have ended it and died before telling.
        _ if run.state.is_ended() => client.tell(index, &run).await,
        _ => {}
    }
    world.submitted(index);
}

/// Moves a due job into its lane, then acknowledges it.
pub(crate) async fn take_due(world: &World, node: usize, due: Due) {
    let client = Client { world, node };
    let message = Message { place: due.place, moved: true, ..job(due.place.plan, 0) };
    let mut known_as = due.place;
    if world.is(Mutation::MovedUnderTheSameIdAfterADeferral) {
        known_as.deferrals = 0;
    }
    if world.is(Mutation::DueAckedBeforeItIsMoved) {
        client.ack_due(due).await;
    }
    client.publish(message, MessageId::Moved(known_as)).await;
    client.ack_due(due).await;
}
