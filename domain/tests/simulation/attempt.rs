//! An attempt, from its clearance to its settlement on record, and what follows from that.

use longshore_domain::clearance::{Clearance, Waiting, clear};
use longshore_domain::job::When;
use longshore_domain::run::DeferReason;
use longshore_domain::settlement::{Outcome, Settlement, Terms, settle};
use longshore_domain::{ErrorKind, Failure, Run, RunState, Timestamp};

use std::time::Duration;

use crate::handler::{End, Script, script};
use crate::ledger::Call;
use crate::mutation::Mutation;
use crate::server::Place;
use crate::worker::{Hand, Lost, Work};
use crate::world::{IN_HAND, LASTS, World, stamp};

/// How long a job waits for a handler before that counts as a failed attempt.
const GRACE: Duration = Duration::from_millis(2_500);

/// Whether the run is still in this node's hand once a decision is carried out.
#[derive(PartialEq, Eq)]
pub(crate) enum Then {
    Done,
    NextAttempt,
}

enum Waited {
    UntilDue,
    UntilDrained,
    /// The lease is lost: the message comes to somebody else, who goes on from the record.
    TooLong,
}

/// What has to be done about a decision; done in another order, something is lost.
#[derive(Clone, Copy)]
enum Step {
    Tell,
    MakePossibleWhatFollows,
    Ack,
}

impl Hand<'_> {
    /// Begins an attempt and sees it, and what follows in this node's hand, through.
    pub(crate) async fn start(&self, mut work: Work, must_claim: bool) -> Result<(), Lost> {
        if self.attempt(&mut work, must_claim).await? {
            self.go_on(work).await;
        }
        Ok(())
    }

    /// Carries a decision out that was just written, and goes on for as long as the run stays in hand.
    pub(crate) async fn go_on(&self, mut work: Work) {
        while self.carry_out(&work.run, true).await == Then::NextAttempt {
            if !matches!(self.attempt(&mut work, true).await, Ok(true)) {
                return;
            }
        }
    }

    /// One attempt; whether its settlement is on record.
    async fn attempt(&self, work: &mut Work, must_claim: bool) -> Result<bool, Lost> {
        work.run.fall_due(stamp(self.delivery.message.at));
        if self.plan.is_unreadable() && work.run.round == 1 {
            // It has one event only, that of its dead letter.
            work.run.enqueued_at = None;
        }
        if let Some(settlement) = self.turned_away(&work.run) {
            work.run.settle(settlement, self.world.now());
            return self.write(work).await.map(|()| true);
        }
        work.run.begin(work.run.next_attempt(), &self.world.names[self.client.node], self.world.now());
        if must_claim {
            self.write(work).await?;
        }
        if self.world.is(Mutation::ClaimIsTold) {
            self.client.tell(self.index, &work.run).await;
        }
        if self.is_lost() && !self.world.is(Mutation::NoLookAtTheLeaseBeforeTheWork) {
            return Ok(false);
        }
        let Some(outcome) = self.perform(work, must_claim).await else { return Ok(false) };
        let settlement = self.settlement(outcome, &work.run);
        work.run.settle(settlement, self.world.now());
        let won = self.write(work).await.is_ok();
        if !won && self.world.is(Mutation::LostEndIsAcked) {
            self.client.ack(self.sequence()).await;
        }
        if !won {
            self.give_up(true).await;
        }
        Ok(won)
    }

    /// What follows if the job may not start now.
    fn turned_away(&self, run: &Run) -> Option<Settlement> {
        if self.plan.is_unreadable() {
            return Some(Settlement::Dead { failure: Failure::new(ErrorKind::Invalid, "x") });
        }
        let waiting = Waiting {
            options: self.plan.options.as_deref(),
            enqueued_at: enqueued_at(run),
            fell_due: self.arrival.moved,
            started_before: run.has_started(),
        };
        match clear(waiting, self.world.now()) {
            Clearance::Start => None,
            Clearance::NotBefore(at) => Some(Settlement::Schedule { at }),
            Clearance::Expired => Some(Settlement::Expire),
            Clearance::TooLate => {
                let failure = Failure::new(ErrorKind::Timeout, "too late to begin");
                Some(Settlement::Dead { failure })
            }
        }
    }

    pub(crate) fn settlement(&self, outcome: Outcome, run: &Run) -> Settlement {
        let deadline = self.plan.options.as_ref().and_then(|options| options.deadline);
        let unserved = run.deferral.as_ref().filter(|deferral| deferral.reason == DeferReason::NoHandlerOnline);
        let busy = run.deferral.as_ref().filter(|deferral| deferral.reason == DeferReason::Busy);
        let terms = Terms {
            attempt: run.attempt,
            max_attempts: run.max_attempts,
            backoff: &self.plan.backoff,
            deadline: deadline.map(|deadline: When| deadline.from(enqueued_at(run))),
            snoozes: 0,
            max_snoozes: u32::MAX,
            busy: busy.map_or(0, |deferral| deferral.count),
            no_handler: unserved.map(|deferral| (deferral.since, deferral.count)),
            no_handler_grace: GRACE,
        };
        settle(outcome, terms, self.world.now(), self.world.chance.unit())
    }

    /// Calls the handler. `None`: the lease or the race for the record was lost, the attempt is somebody else's.
    async fn perform(&self, work: &mut Work, mut on_record: bool) -> Option<Outcome> {
        let world = self.world;
        let Some(Script { lasts, ends }) = script(world, self.index, &work.run) else {
            return Some(Outcome::NoHandler);
        };
        let call = Calling::new(self, on_record);
        let from = world.clock.get();
        world.say(|| format!("{} calls the handler of run {} for {lasts} ms", self.client.name(), self.index));
        while world.clock.get() < from + lasts {
            let until = if on_record { from + lasts } else { from + lasts.min(LASTS + 1) };
            self.hold_until(until).await;
            call.holds(self, on_record);
            if self.is_lost() {
                return None;
            }
            if self.is_drained() {
                return Some(Outcome::Released);
            }
            if self.is_told_to_stop(call.id) {
                return Some(Outcome::Cancelled);
            }
            if !on_record && world.clock.get() > from + LASTS {
                if self.write(work).await.is_err() {
                    drop(call);
                    self.give_up(false).await;
                    return None;
                }
                on_record = true;
            }
        }
        match ends {
            End::Returns(outcome) => Some(outcome),
            End::KillsItsNode => {
                world.nodes[self.client.node].doomed.set(true);
                world.pause(1).await;
                None
            }
        }
    }

    /// Does what follows from a decision on record: the events, then what makes the next thing possible, the ack last.
    /// A run that waits for a short while may stay in hand, if the decision was this delivery's own.
    pub(crate) async fn carry_out(&self, run: &Run, own: bool) -> Then {
        for step in self.order(run) {
            match step {
                Step::Tell => self.client.tell(self.index, run).await,
                Step::MakePossibleWhatFollows => match self.in_hand_for(run).filter(|_| own) {
                    Some(until) => match self.wait_in_hand(until).await {
                        Waited::UntilDue => return Then::NextAttempt,
                        Waited::UntilDrained => self.make_possible(run).await,
                        Waited::TooLong => return Then::Done,
                    },
                    None => self.make_possible(run).await,
                },
                // Put back, it has to come again.
                Step::Ack if run.state == RunState::Enqueued && run.run_at.is_none() => self.hand_back().await,
                Step::Ack => self.client.ack(self.sequence()).await,
            }
        }
        Then::Done
    }

    fn order(&self, run: &Run) -> [Step; 3] {
        use Step::{Ack, MakePossibleWhatFollows, Tell};
        let dead = run.state == RunState::Dead;
        match self.world.mutation {
            Some(Mutation::AckBeforeEvents) => [Ack, Tell, MakePossibleWhatFollows],
            Some(Mutation::ScheduleBeforeEvents) if !dead => [MakePossibleWhatFollows, Tell, Ack],
            Some(Mutation::LetterBeforeEvents) if dead => [MakePossibleWhatFollows, Tell, Ack],
            Some(Mutation::AckBeforeSchedule) if !dead => [Tell, Ack, MakePossibleWhatFollows],
            Some(Mutation::AckBeforeLetter) if dead => [Tell, Ack, MakePossibleWhatFollows],
            _ => [Tell, MakePossibleWhatFollows, Ack],
        }
    }

    async fn make_possible(&self, run: &Run) {
        match run.run_at {
            Some(at) if !run.state.is_ended() => {
                let place =
                    Place { plan: self.index, round: run.round, attempt: run.next_attempt(), deferrals: run.deferrals };
                self.client.schedule(place, at.millis()).await;
            }
            _ if run.state == RunState::Dead => self.client.put_letter(self.index, run.round).await,
            _ => {}
        }
    }

    /// Until when the run may stay in hand: only a short wait is worth it.
    fn in_hand_for(&self, run: &Run) -> Option<Timestamp> {
        let at = run.run_at.filter(|_| matches!(run.state, RunState::Enqueued | RunState::Retrying))?;
        let short = at.since(self.world.now()) <= Duration::from_millis(IN_HAND);
        (short && self.world.chance.hits(8_000)).then_some(at)
    }

    async fn wait_in_hand(&self, until: Timestamp) -> Waited {
        loop {
            if self.is_lost() {
                return Waited::TooLong;
            }
            if self.is_drained() {
                return Waited::UntilDrained;
            }
            if self.world.now() >= until {
                return Waited::UntilDue;
            }
            self.hold_until(until.millis()).await;
        }
    }

    /// Back to its lane, where it keeps its place; sent only while the delivery is this node's. A server that was killed
    /// since may have handed it to another already.
    async fn hand_back(&self) {
        let mutation = self.world.mutation;
        let may = || {
            (!self.is_lost() || mutation == Some(Mutation::HandedBackPastTheLease))
                && (self.is_of_this_server() || mutation == Some(Mutation::HandedBackAcrossServers))
        };
        self.client.nak(self.sequence(), may).await;
        if mutation == Some(Mutation::HandedBackTwice) {
            self.client.nak(self.sequence(), may).await;
        }
    }
}

fn enqueued_at(run: &Run) -> Timestamp {
    run.enqueued_at.unwrap_or(run.origin)
}

/// A handler at work, in the ledger for as long as it is.
struct Calling<'w> {
    world: &'w World,
    id: u64,
}

impl<'w> Calling<'w> {
    fn new(hand: &Hand<'w>, claimed: bool) -> Self {
        let world = hand.world;
        let id = world.number();
        let mut ledger = world.ledger.borrow_mut();
        let stored_twice = world.server.borrow().stored_twice.contains(&hand.index);
        let record = world.record(hand.index);
        let ended_before = |run: &Run| run.ended_at.is_some_and(|at| at < stamp(hand.delivery.sent_at));
        // A cancel may not be known here yet; a submitted job that is stored twice is beyond what a node can see.
        let known = |run: &Run| run.state != RunState::Cancelled && !stored_twice;
        if record.is_some_and(|stored| ended_before(&stored.run) && known(&stored.run)) {
            ledger.accuse(hand.index, "its handler was called after its end");
        }
        let server_life = hand.delivery.server_life;
        let (plan, node, leased_until) = (hand.index, hand.client.node, hand.leased_until());
        let call = Call { id, plan, node, claimed, stored_twice, leased_until, server_life };
        ledger.called(call, world.clock.get());
        Self { world, id }
    }

    fn holds(&self, hand: &Hand<'_>, claimed: bool) {
        let mut ledger = self.world.ledger.borrow_mut();
        if let Some(call) = ledger.calls.iter_mut().find(|call| call.id == self.id) {
            call.claimed = claimed;
            call.leased_until = hand.leased_until();
        }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.world.ledger.borrow_mut().calls.retain(|call| call.id != self.id);
    }
}
