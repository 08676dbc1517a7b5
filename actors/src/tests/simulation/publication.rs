//! Decides which events of a run are still to be published: with the rules of the domain, each of which a mutation may
//! break on purpose.

use longshore_domain::publication::{Carrier, Published};
use longshore_domain::{Run, events};

use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::world::World;

impl World {
    /// The record of a waiting run, found by the message that allows its next attempt.
    pub(crate) fn published_at_arrival(&self, found: &Run) -> Published {
        match self.mutation {
            Some(Mutation::NotedRunTakenForPublished) => Published::held_locally(found),
            Some(Mutation::ClaimedRunPublishedLiveAgain)
                if Published::at_arrival(found) == Published::held_locally(found) =>
            {
                Published::nothing().all_logged(found)
            }
            Some(Mutation::ArrivalTakenForNoProof) => Published::nothing(),
            _ => Published::at_arrival(found),
        }
    }

    /// When attempt `attempt` starts.
    pub(crate) fn published_at_start(&self, published: Published, waiting: &Run, attempt: u32) -> Published {
        if self.is(Mutation::NoRoomMadeForTheStart) { published } else { published.at_start(waiting, attempt) }
    }

    /// When another wait begins without a start since the one before.
    pub(crate) fn published_at_new_wait(&self, published: Published, waiting: &Run) -> Published {
        if self.is(Mutation::NoRoomMadeForTheNextWait) { published } else { published.at_new_wait(waiting) }
    }

    /// A record that another node wrote, or this one before it died.
    pub(crate) fn published_at_redelivery(&self, found: &Run) -> Published {
        let all = events::of_round(found).len();
        let first = is_first(found);
        // As if the log had this many events.
        let logged = |events: usize| Published::nothing().after_live(events, true);
        match self.mutation {
            Some(Mutation::RedeliveredRunTakenForPublished) => Published::held_locally(found),
            Some(Mutation::WholeRoundPublishedAgain) => Published::nothing().after_live(all, false),
            Some(Mutation::FirstAttemptTakenForProof) if first => logged(all.min(1)),
            Some(Mutation::LastStartTakenForProven) if !first => {
                let last = found.attempts_of_round().last().map_or(0, |last| last.attempt);
                let started = events::of_round(found).iter().position(|event| event.attempt >= last);
                logged(started.map_or(all, |started| started + 1))
            }
            _ => Published::at_redelivery(found),
        }
    }

    /// A claim whose answer was lost to the node that made it.
    pub(crate) fn published_at_unclear_claim(&self, run: &Run) -> Published {
        match self.mutation {
            Some(Mutation::OwnClaimTakenForPublished) => Published::held_locally(run),
            _ => Published::at_unclear_claim(run),
        }
    }

    /// A retry that this node held locally.
    pub(crate) fn published_when_held(&self, run: &Run) -> Published {
        match self.mutation {
            Some(Mutation::HeldRetryTakenForRedelivered) => Published::at_redelivery(run),
            _ => Published::held_locally(run),
        }
    }

    /// A run that was just cancelled.
    pub(crate) fn published_at_cancel(&self, before: &Run, cancelled: &Run, carrier: Carrier) -> Published {
        match self.mutation {
            Some(Mutation::CancelPublishedAlone) => {
                Published::nothing().after_live(events::of_round(cancelled).len() - 1, true)
            }
            Some(Mutation::CancelledRunTakenForUnseen) if is_first(cancelled) => Published::nothing(),
            Some(Mutation::CancelledRunTakenForSeen) => Published::at_cancel(cancelled, cancelled, carrier),
            Some(Mutation::AnyWaitingRunTakenForCarriedOn) => {
                let is_waiting = before.state.wait().is_some();
                Published::at_cancel(before, cancelled, if is_waiting { Carrier::Stands } else { carrier })
            }
            _ => Published::at_cancel(before, cancelled, carrier),
        }
    }

    /// A run whose dead letter a node attends to.
    pub(crate) fn published_at_dead_letter(&self, run: &Run, round: u32) -> Published {
        match self.mutation {
            Some(Mutation::DeadLetterTakenForPublished) => Published::held_locally(run),
            Some(Mutation::DeadLetterPublishedLiveAgain) if is_first(run) => Published::nothing(),
            _ => Published::at_dead_letter(run, round),
        }
    }
}

/// Whether no second attempt of the round has been claimed: then nothing proves what the log has.
fn is_first(run: &Run) -> bool {
    run.attempts_of_round().last().is_none_or(|last| last.attempt == 1)
}
