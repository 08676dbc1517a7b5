//! Decides whether the holder of a running attempt has lost it, after the attempt's message was delivered again.

use longshore_domain::protocol::{Holder, last_sign, lease_is_lost};
use longshore_domain::settlement::Outcome;
use longshore_domain::{ErrorKind, Failure, Run};

use crate::client::Written;
use crate::mutation::Mutation;
use crate::server::{Stored, Word};
use crate::worker::{Hand, LENGTH, Work};
use crate::world::{LEASE, stamp};

/// A node has this long to say whether it holds a job.
const ANSWERS_WITHIN: i64 = 60;
/// A job whose holder is silent comes again this often while a lease lasts.
const LOOKS_PER_LEASE: u32 = 4;

impl Hand<'_> {
    /// Time decides, from the holder's last sign of life.
    pub(crate) async fn held_elsewhere(&self, found: &Stored) {
        let world = self.world;
        let run = (*found.run).clone();
        // The time of the question counts: this node may freeze before it judges the answer.
        let asked_at = world.now();
        let holder = self.ask_holder(&run).await;
        if world.chance.hits(500) {
            world.pause(world.chance.between(1, 2 * LEASE)).await;
        }
        if matches!(holder, Holder::NeverStarted) {
            // A claim whose answer was lost, this node's own or another's.
            let published = world.published_at_unclear_claim(&run);
            let work = Work { is_stored: true, ..Work::new(run, found.revision, published) };
            return Box::pin(self.take_up_claim(work)).await;
        }
        let judged_at = if world.is(Mutation::HolderJudgedByALaterClock) { world.now() } else { asked_at };
        let lost = lease_is_lost(&run, holder, judged_at, LENGTH);
        world
            .say(|| format!("{} finds the holder of run {}: {holder:?}, lost: {lost}", self.client.name(), self.index));
        let by_count = world.is(Mutation::LeaseJudgedByCount) && self.delivery.message.delivered > 1;
        if lost || by_count {
            self.lease_lost(self.found(found)).await;
        } else if let Holder::Silent(seen_at) = holder {
            let over_at = last_sign(&run, seen_at).plus(LENGTH);
            let again_after = over_at.since(world.now()).min(LENGTH / LOOKS_PER_LEASE);
            let wait = i64::try_from(again_after.as_millis()).unwrap_or(0);
            self.send(Word::HandBack(wait)).await;
        }
    }

    fn take_unclear_claim(&self, node: usize, run: &Run) -> bool {
        let mut tokens = self.world.nodes[node].unclear_claims.borrow_mut();
        let at = tokens.iter().position(|token| *token == run.token);
        at.map(|at| tokens.swap_remove(at)).is_some()
    }

    /// The claim is written again first: another node may be about to settle it as lost.
    async fn take_up_claim(&self, mut work: Work) {
        let world = self.world;
        if !world.is(Mutation::UnclearClaimNotWrittenAgain) {
            work.run.held_by = Some(self.holding());
            work.run.begin_instead(&world.names[self.client.node], world.now());
            match self.client.claim(self.index, self.key(), work.revision, &mut work.run).await {
                Written::Won(revision) => work.revision = revision,
                Written::Lost(_) => return,
                Written::Unclear => return self.put_off(&work.run).await,
            }
        }
        self.start(work).await;
    }

    async fn lease_lost(&self, mut work: Work) {
        let failure = Failure::new(ErrorKind::LeaseExpired, "its node fell silent");
        let settlement = self.settlement(Outcome::Failed { failure, retry_after: None }, &work.run);
        work.run.settle(settlement, self.world.now());
        if self.put_on_record(&mut work).await {
            self.carry_out(&work, false).await;
        }
    }

    /// Asks the node that the record of a running attempt names.
    async fn ask_holder(&self, run: &Run) -> Holder {
        let world = self.world;
        let (Some(name), Some(held_by)) = (&run.node, &run.held_by) else { return Holder::Silent(None) };
        let Some(node) = world.names.iter().position(|other| other == name) else { return Holder::Silent(None) };
        let writer = run.token.split_once('-').map_or(run.token.as_str(), |(writer, _)| writer);
        let own = node == self.client.node;
        if !own {
            world.travel().await;
        }
        let (state, now) = (&world.nodes[node], world.clock.get());
        let answers = state.dead_until.get() <= now && state.frozen_until.get() <= now;
        if own || answers && !world.chance.hits(world.weather.get().unclear) {
            let message = (held_by.message.sequence, held_by.message.at.millis());
            let holds = state.book.borrow().contains(&message);
            let never_started = !holds && self.take_unclear_claim(node, run);
            let is_same = writer == format!("{name}{}", state.life.get());
            if !own {
                world.travel().await;
            }
            return match holds {
                _ if !is_same => Holder::Gone,
                true => Holder::Holds,
                false if never_started => Holder::NeverStarted,
                false => Holder::Silent(None),
            };
        }
        world.pause(ANSWERS_WITHIN).await;
        if world.is(Mutation::SilentHolderTakenForDead) {
            return Holder::Gone;
        }
        let started_at = run.attempts.last().map(|attempt| attempt.started_at);
        match world.presence(node) {
            Some((_, since)) if Some(stamp(since)) > started_at => Holder::Gone,
            presence => Holder::Silent(presence.map(|(seen, _)| stamp(seen))),
        }
    }
}
