//! An attempt that has begun, until it is judged: the handler, its start, its lease, and the record that says that it
//! runs.

use longshore_domain::job::Unique;
use longshore_domain::outcome::Outcome;
use longshore_domain::run::DeferReason;
use longshore_domain::{Run, RunState};

use crate::attempt::announce::announce;
use crate::attempt::conclude::{self, HeldRetry};
use crate::attempt::permits::Permits;
use crate::attempt::running::RunningAttempt;
use crate::attempt::stop::{self, AttemptEvent, Handler, Owner};
use crate::attempt::watch::claim_running;
use crate::tests::simulation::gated::Gated;
use crate::tests::simulation::handler::{End, Script, millis, script};
use crate::tests::simulation::ledger::Call;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{Place, Schedule};
use crate::tests::simulation::worker::{Hand, LENGTH, seal_of};
use crate::tests::simulation::world::{LASTS, LEASE, World, stamp};

impl Hand<'_> {
    /// Performs an attempt that has begun, and has it judged; returns its retry, if that is held locally.
    pub(crate) async fn attempt(&self, mut running: RunningAttempt) -> Option<Box<HeldRetry>> {
        self.check_time(&running.attempt_state.run);
        if let Some(lacks) = self.lacks(&mut running.assignment.permits) {
            let RunningAttempt { assignment, attempt_state, .. } = running;
            conclude::judge(self, assignment, attempt_state, Outcome::OverLimit(lacks)).await;
            return None;
        }
        let is_over = running.assignment.lease_is_over(self.clock(), LENGTH);
        let may_begin = !is_over || self.world.is(Mutation::NoLookAtTheLeaseBeforeTheWork);
        *self.current() = Some(running);
        let outcome = if may_begin { self.perform().await } else { None };
        let RunningAttempt { assignment, attempt_state, .. } = self.current().take()?;
        let Some(outcome) = outcome else {
            assignment.ack_token.abandon();
            return None;
        };
        if self.world.chance.hits(8_000) {
            return conclude::judge_or_hold(self, assignment, attempt_state, outcome).await;
        }
        conclude::judge(self, assignment, attempt_state, outcome).await;
        None
    }

    /// What the attempt that is to start has no more, if beginning took longer than it was good for.
    fn lacks(&self, permits: &mut Permits) -> Option<DeferReason> {
        if !permits.has_slots(self.clock()) {
            return Some(DeferReason::Concurrency);
        }
        let are_good = permits.spend(self.clock()) || self.world.is(Mutation::TokensUsedAfterTheirLease);
        (!are_good).then_some(DeferReason::RateLimited)
    }

    /// An attempt that was judged had the time then that it needs. One whose claim was taken up was judged before that.
    fn check_time(&self, run: &Run) {
        let (Some(judged_at), Some(needs)) = (self.judged_at.take(), self.plan.needs()) else { return };
        let left = run.deadline(self.plan.options.as_deref()).map(|deadline| deadline.since(stamp(judged_at)));
        if left.is_some_and(|left| left < needs) {
            let mut ledger = self.world.ledger.borrow_mut();
            ledger.accuse(self.index, format!("started with too little time: {left:?} of {needs:?}"));
        }
    }

    /// Enters the attempt among the leases of its node.
    fn enter(&self) {
        let mut current = self.current();
        let Some(RunningAttempt { assignment, .. }) = current.as_mut() else { return };
        if assignment.entry.is_none() {
            assignment.entry =
                self.book.enter(&assignment.ack_token, self.message(), &assignment.job, assignment.leased_from);
        }
    }

    fn is_stored(&self) -> bool {
        self.current().as_ref().is_some_and(|running| running.attempt_state.is_stored)
    }

    /// Calls the handler. `None`: the lease or the race for the record was lost; another node has the attempt.
    async fn perform(&self) -> Option<Outcome> {
        let world = self.world;
        let (script, round) = self.current().as_ref().map(|running| {
            let run = &running.attempt_state.run;
            (script(world, self.index, run), run.round)
        })?;
        let Some(Script { lasts, ends }) = script else { return Some(Outcome::NoHandler) };
        let call = Calling::new(self, round, self.is_stored());
        self.enter();
        let from = world.clock.get();
        world.say(|| format!("{} calls the handler of run {} for {lasts} ms", self.client.name(), self.index));
        // A handler without capacity says so before its start could be published.
        let started = !matches!(ends, End::Returns(Outcome::Busy { started: false }));
        if started {
            self.announce().await;
        }
        let until = from + lasts;
        let mut work = Work { call, ends, from, until, started, asked: self.is_stored(), is_cancelled: false };
        let (end, handler) = loop {
            let event = self.next_event(&mut work).await?;
            if let Some(ended) = event.and_then(stop::by) {
                break ended;
            }
        };
        if handler == Handler::Stops {
            self.stops().await;
        }
        let is_lost = self.is_lost() && !world.is(Mutation::EndedWithoutTheLease);
        let stop::End::Outcome(outcome) = stop::at_last(end, Owner::Us, is_lost) else { return None };
        if matches!(outcome, Outcome::Cancelled) && !work.is_cancelled && !self.has_order_to_end(work.call.id) {
            world.ledger.borrow_mut().accuse(self.index, "its attempt is cancelled, though nobody asked for that");
        }
        Some(outcome)
    }

    /// Waits until something happens to the attempt, or only for a while. `None`: its node dies.
    async fn next_event(&self, work: &mut Work<'_>) -> Option<Option<AttemptEvent>> {
        let now = || self.world.clock.get();
        if self.has_lost_slots() {
            return Some(Some(AttemptEvent::SlotsLost));
        }
        work.call.takes_step();
        if now() >= work.until {
            return Some(Some(match &work.ends {
                End::Returns(Outcome::Busy { .. }) => AttemptEvent::Done(Outcome::Busy { started: work.started }),
                End::Returns(outcome) => AttemptEvent::Done(outcome.clone()),
                End::RunsOutOfTime => AttemptEvent::OutOfTime { limit: millis(work.until - work.from) },
                End::KillsItsNode => {
                    self.world.nodes[self.client.node].doomed.set(true);
                    self.world.pause(1).await;
                    return None;
                }
            }));
        }
        let until = if work.asked { work.until } else { work.until.min(work.from + LASTS + 1) };
        self.hold_until(until).await;
        if self.has_lost_slots() {
            return Some(Some(AttemptEvent::SlotsLost));
        }
        work.call.holds(self.is_stored());
        if self.is_lost() || self.is_released() || self.has_order_to_end(work.call.id) {
            return Some(Some(AttemptEvent::Stopped { released: self.is_released() }));
        }
        if work.asked || now() <= work.from + LASTS {
            return Some(None);
        }
        work.asked = true;
        let owner = claim_running(self, &self.current).await;
        work.call.holds(self.is_stored());
        work.is_cancelled |= owner == Owner::Cancelled;
        Some(Some(AttemptEvent::Owned(owner)))
    }

    /// A handler that is asked to stop takes some time for that, often none.
    async fn stops(&self) {
        if self.world.chance.hits(3_000) {
            self.world.pause(self.world.chance.between(1, LEASE / 15)).await;
        }
    }

    async fn announce(&self) {
        if !self.world.is(Mutation::StartLoggedBeforeItsRecord) {
            return announce(self, &self.current).await;
        }
        let is_stored = self.lies_about_its_record(true);
        announce(self, &self.current).await;
        self.lies_about_its_record(is_stored);
    }

    fn lies_about_its_record(&self, is_stored: bool) -> bool {
        let mut current = self.current();
        current.as_mut().is_some_and(|running| std::mem::replace(&mut running.attempt_state.is_stored, is_stored))
    }
}

/// The schedule of a run's next wait.
pub(crate) fn schedule_of(world: &World, plan: usize, run: &Run) -> Schedule {
    let timed = world.plans[plan].has_derived_id() && run.run_id.as_derived().is_none();
    let (round, attempt, deferrals) = (run.round, run.next_attempt(), run.deferrals);
    let at = run.state.run_at().unwrap_or_default().millis();
    Schedule::new(Place { plan, round, attempt, deferrals, timed }, seal_of(run), at)
}

/// The work of an attempt, as its script has it.
struct Work<'w> {
    call: Calling<'w>,
    ends: End,
    from: i64,
    until: i64,
    /// Its start is published.
    started: bool,
    /// The record was asked to say that it runs.
    asked: bool,
    /// The record has said that the run is cancelled.
    is_cancelled: bool,
}

/// A running handler; the ledger lists it for as long as it runs.
struct Calling<'w> {
    world: &'w World,
    id: u64,
}

impl<'w> Calling<'w> {
    fn new(hand: &Hand<'w>, round: u32, claimed: bool) -> Self {
        let world = hand.world;
        let id = world.number();
        let mut ledger = world.ledger.borrow_mut();
        let now = world.clock.get();
        let record = world.record(hand.index).filter(|stored| stored.run.state.is_terminal());
        if let Some(stored) = record {
            let (state, ended_at) = (stored.run.state.name(), stored.run.state.ended_at().unwrap_or_default());
            // A claimed run had not been cancelled by then.
            let cancelled_before = state == RunState::Cancelled && !claimed && ended_at < stamp(now);
            let ended_before = state != RunState::Cancelled && ended_at < stamp(hand.delivery.sent_at);
            // Nor does a job begin that lay in a frozen node's socket for longer than the lease.
            let lay_long = !claimed && ended_at < stamp(now) && now - hand.delivery.sent_at >= LEASE;
            if cancelled_before || ended_before || lay_long {
                ledger.accuse(hand.index, format!("its handler was called after its end: {}", state.as_str()));
            }
        }
        if let Some(other) = world.comes_before(hand.index) {
            ledger.accuse(hand.index, format!("it is called before run {other} of its key, which comes first"));
        }
        match (hand.plan.key, hand.plan.scope) {
            (Some(key), Unique::Window) if round == 1 => ledger.called_for_key(key, hand.index),
            (Some(key), Unique::Active) => {
                let of_key = |plan: &usize| *plan != hand.index && world.plans[*plan].key == Some(key);
                let is_live = |plan: &usize| {
                    let is_published = world.plans[*plan].job.get().is_some();
                    let stored = is_published.then(|| world.record(*plan)).flatten();
                    stored.is_some_and(|stored| stored.run.has_started() && !stored.run.state.is_terminal())
                };
                if let Some(other) = (0..world.plans.len()).filter(of_key).find(is_live) {
                    ledger.accuse(hand.index, format!("it is called while run {other} of its key has not ended"));
                }
            }
            _ => {}
        }
        let is_of_this_server = hand.delivery.server_life == world.server_life.get();
        let (plan, node, leased_until) = (hand.index, hand.client.node, hand.leased_until());
        let ack_token = hand.ack_token_number();
        if let Some(slots) = world.slots.filter(|slots| ledger.calls_on(node) >= *slots as usize) {
            ledger.accuse(plan, format!("called though its handlers are full: they take {slots}"));
        }
        let slots = hand.plan.group.zip(hand.slots());
        if world.is_open_to_all(node) {
            ledger.accuse(plan, "its handler is called though its breaker is open");
        }
        if let Gated::Limited(limit) = world.gated {
            ledger.starts(plan, &limit, now);
        }
        ledger.called(Call { id, plan, node, ack_token, claimed, leased_until, slots }, is_of_this_server, now);
        Self { world, id }
    }

    fn takes_step(&self) {
        let (world, now) = (self.world, self.world.instant(self.world.clock.get()));
        world.ledger.borrow_mut().takes_step(self.id, world.gated.most_of_a_key(), now);
    }

    fn holds(&self, claimed: bool) {
        let mut ledger = self.world.ledger.borrow_mut();
        if let Some(call) = ledger.calls.iter_mut().find(|call| call.id == self.id) {
            call.claimed = claimed;
        }
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.world.ledger.borrow_mut().calls.retain(|call| call.id != self.id);
    }
}
