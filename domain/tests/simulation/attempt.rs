//! An attempt, from its clearance to its stored settlement, and the follow-up.

use longshore_domain::clearance::{Waiting, clear};
use longshore_domain::follow_up::{self, AckAction, FollowUp};
use longshore_domain::protocol::Verdict;
use longshore_domain::publication::Published;
use longshore_domain::run::{DeferReason, Wait};
use longshore_domain::settlement::{Outcome, Settlement, Terms, settle};
use longshore_domain::{Run, RunState, State, Timestamp, protocol};

use std::time::Duration;

use crate::client::Written;
use crate::handler::{End, Script, script};
use crate::ledger::Call;
use crate::mutation::Mutation;
use crate::server::{Place, Schedule, Stored, Word};
use crate::worker::{Hand, Work, seal_of, seal_text};
use crate::world::{LASTS, LEASE, MAX_LOCAL_RETRIES, World, stamp};

/// How long a job waits for a handler before that counts as a failed attempt.
const GRACE: Duration = Duration::from_millis(2_500);

/// Whether this node still holds the run after it has carried out a decision.
#[derive(PartialEq, Eq)]
pub(crate) enum Then {
    Done,
    NextAttempt,
}

enum Waited {
    UntilDue,
    UntilDrained,
    /// The lease is lost: another node gets the message and continues from the record.
    TooLong,
}

/// The owner of a run that was begun without a record.
enum Owner {
    Ours,
    Cancelled,
    OtherRun,
}

/// The steps that carry out a decision; in another order, something is lost.
#[derive(Clone, Copy)]
enum Step {
    Tell,
    MakePossibleWhatFollows,
    Ack,
}

impl Hand<'_> {
    /// Begins without a claim, or continues after one.
    pub(crate) async fn start(&self, mut work: Work) {
        if !work.is_stored {
            if let Some(settlement) = self.turned_away(&work).or_else(|| self.parked(&work)) {
                return self.settle(work, settlement).await;
            }
            self.begin(&mut work);
        }
        if let Some(work) = self.attempt(work).await {
            self.go_on(work).await;
        }
    }

    /// Carries out a decision that was just written, and continues as long as this node holds the run.
    pub(crate) async fn go_on(&self, mut work: Work) {
        while self.carry_out(&work, true).await == Then::NextAttempt {
            work.published = self.world.published_when_held(&work.run);
            (work.is_stored, work.fell_due) = (true, true);
            if let Some(settlement) = self.turned_away(&work) {
                return Box::pin(self.settle(work, settlement)).await;
            }
            self.begin(&mut work);
            match self.client.claim(self.index, self.key(), work.revision, &mut work.run).await {
                Written::Won(revision) => work.revision = revision,
                Written::Lost(_) => return self.send(Word::HandBack(0)).await,
                Written::Unclear => return self.put_off(&work.run).await,
            }
            match self.attempt(work).await {
                Some(next) => work = next,
                None => return,
            }
        }
    }

    /// Claims the attempt. The error is the stored record, if another write was first; `None`: nothing is to begin.
    pub(crate) async fn claim_on(&self, mut work: Work) -> Result<Option<Work>, Option<Stored>> {
        let refused = match self.turned_away(&work).or_else(|| self.parked(&work)) {
            Some(settlement @ (Settlement::Expire | Settlement::Dead { .. })) => Some(settlement),
            other => match self.claim_own_key(&mut work.run).await {
                Ok(Some(of)) => Some(Settlement::Duplicate { of }),
                Ok(None) => other,
                Err(_) => {
                    self.send(Word::HandBack(0)).await;
                    return Ok(None);
                }
            },
        };
        if let Some(settlement) = refused {
            self.settle(work, settlement).await;
            return Ok(None);
        }
        self.begin(&mut work);
        work.is_stored = true;
        if self.world.is(Mutation::ClaimOverwrites) {
            work.revision = self.client.read(self.key()).await.map_or(0, |stored| stored.revision);
        }
        match self.client.claim(self.index, self.key(), work.revision, &mut work.run).await {
            Written::Won(revision) => work.revision = revision,
            Written::Lost(found) => return Err(found),
            Written::Unclear => {
                self.put_off(&work.run).await;
                return Ok(None);
            }
        }
        if self.world.is(Mutation::ClaimIsTold) {
            self.client.publish_events(self.index, &work.run, work.published).await;
        }
        Ok(Some(work))
    }

    /// A claim got no answer: the job goes back to its lane, and the node remembers the claim, in case it was stored.
    pub(crate) async fn put_off(&self, run: &Run) {
        self.world.nodes[self.client.node].unclear_claims.borrow_mut().push(run.token.clone());
        self.send(Word::HandBack(0)).await;
    }

    fn begin(&self, work: &mut Work) {
        let attempt = work.run.next_attempt();
        work.published = self.world.published_at_start(work.published, &work.run, attempt);
        work.run.begin(attempt, &self.world.names[self.client.node], self.world.now());
        work.run.held_by = Some(self.holding());
    }

    /// Performs one attempt that has begun; returns the stored result, if this node has to carry it out.
    pub(crate) async fn attempt(&self, mut work: Work) -> Option<Work> {
        if self.is_lost() && !self.world.is(Mutation::NoLookAtTheLeaseBeforeTheWork) {
            return None;
        }
        let outcome = self.perform(&mut work).await?;
        let settlement = self.settlement(outcome, &work.run);
        work.run.settle(settlement, self.world.now());
        self.put_on_record(&mut work).await.then_some(work)
    }

    /// Stores a settlement that follows without an attempt, and carries it out.
    pub(crate) async fn settle(&self, mut work: Work, settlement: Settlement) {
        let waits_anew = matches!(settlement, Settlement::Park { reason: Some(_), .. });
        if waits_anew && !self.world.is(Mutation::NoRoomMadeForTheNextWait) {
            work.published = work.published.at_new_wait(&work.run);
        }
        work.run.settle(settlement, self.world.now());
        if self.put_on_record(&mut work).await {
            self.carry_out(&work, false).await;
        }
    }

    /// Writes a decision under this delivery, over the record that is really stored, as long as the run may still write
    /// it. Returns whether the decision is stored; if not, the delivery is already dealt with.
    pub(crate) async fn put_on_record(&self, work: &mut Work) -> bool {
        work.run.held_by = Some(self.holding());
        if follow_up::needs_seal(&work.run) {
            work.run.seal = seal_text(self.world.number());
        }
        if self.world.is(Mutation::EndOverwrites) {
            work.revision = self.client.read(self.key()).await.map_or(0, |stored| stored.revision);
        }
        let lost = loop {
            let found = match self.client.write(self.index, self.key(), work.revision, &mut work.run).await {
                Ok(revision) => {
                    work.revision = revision;
                    self.strike_out_of_book();
                    return true;
                }
                Err(found) => found,
            };
            match &found {
                None if work.revision != 0 => work.revision = 0,
                Some(_) if self.verdict(found.as_ref()) == Verdict::Occupied => {
                    self.rename(&mut work.run);
                    (work.revision, work.published) = (0, Published::nothing());
                }
                Some(stored) if stored.revision != work.revision && self.may_overwrite(stored, work).await => {
                    work.revision = stored.revision;
                }
                _ => break found,
            }
        };
        self.strike_out_of_book();
        if self.world.is(Mutation::LostEndIsAcked) {
            self.send(Word::Ack).await;
        }
        self.give_up(lost.as_ref(), work).await;
        false
    }

    /// Whether the stored record may be overwritten: it is of a run of a lane that is gone, or a write of this very
    /// attempt whose answer was lost.
    async fn may_overwrite(&self, found: &Stored, work: &Work) -> bool {
        work.unclear.as_ref().is_some_and(|token| protocol::was_mine(Some(&found.run), token))
            || self.verdict(Some(found)) == Verdict::BeginAnew && !self.goes_under_another_id().await
    }

    /// Some jobs find no handler with capacity, or are over their rate limit, and are parked. They return at any time.
    fn parked(&self, work: &Work) -> Option<Settlement> {
        let since = work.run.waits_since();
        let parks = work.run.deferrals < 3 && self.world.chance.hits(self.world.parks);
        let reason = (parks && self.world.chance.hits(5_000)).then_some(DeferReason::RateLimited);
        parks.then_some(Settlement::Park { since, reason })
    }

    /// The settlement if the job may not start now.
    fn turned_away(&self, work: &Work) -> Option<Settlement> {
        let waiting = Waiting {
            options: self.plan.options.as_deref(),
            enqueued_at: work.run.waits_since(),
            fell_due: work.fell_due,
            started_before: work.run.has_started(),
        };
        clear(waiting, self.world.now()).refusal()
    }

    pub(crate) fn settlement(&self, outcome: Outcome, run: &Run) -> Settlement {
        let (options, backoff) = (self.plan.options.as_deref(), &self.plan.backoff);
        let terms = Terms::of(run, options, backoff, u32::MAX, GRACE);
        settle(outcome, terms, self.world.now(), self.world.chance.unit())
    }

    /// Calls the handler. `None`: the lease or the race for the record was lost; another node has the attempt.
    async fn perform(&self, work: &mut Work) -> Option<Outcome> {
        let world = self.world;
        let Some(Script { lasts, ends }) = script(world, self.index, &work.run) else {
            return Some(Outcome::NoHandler);
        };
        let call = Calling::new(self, work.run.round, work.is_stored);
        self.enter_in_book();
        let from = world.clock.get();
        world.say(|| format!("{} calls the handler of run {} for {lasts} ms", self.client.name(), self.index));
        // A handler without capacity says so before its start could be published.
        let mut started = !matches!(ends, End::Returns(Outcome::Busy { started: false }));
        if started {
            self.announce(work).await;
        }
        let mut asked = work.is_stored;
        while world.clock.get() < from + lasts {
            let until = if asked { from + lasts } else { from + lasts.min(LASTS + 1) };
            self.hold_until(until).await;
            call.holds(self, work.is_stored);
            if self.is_lost() {
                return None;
            }
            if self.is_drained() {
                return Some(Outcome::Released);
            }
            if self.is_told_to_stop(call.id) {
                return Some(Outcome::Cancelled);
            }
            if !asked && world.clock.get() > from + LASTS {
                asked = true;
                match self.claim_running(work).await {
                    Owner::Ours => {
                        call.holds(self, work.is_stored);
                        started = true;
                        self.announce(work).await;
                    }
                    // Its end is stored already; judged once more, it is published and acknowledged.
                    Owner::Cancelled => return Some(Outcome::Cancelled),
                    Owner::OtherRun => return None,
                }
            }
        }
        match ends {
            End::Returns(Outcome::Busy { .. }) => Some(Outcome::Busy { started }),
            End::Returns(outcome) => Some(outcome),
            End::KillsItsNode => {
                world.nodes[self.client.node].doomed.set(true);
                world.pause(1).await;
                None
            }
        }
    }

    /// Publishes the start of an attempt live. If the attempt is stored, its start goes into the log, now or with the
    /// later events: the committer is slow at times.
    async fn announce(&self, work: &mut Work) {
        let is_stored = work.is_stored || self.world.is(Mutation::StartLoggedBeforeItsRecord);
        let logs = is_stored && self.world.chance.hits(5_000);
        let publishes = if logs { work.published } else { work.published.for_live_only() };
        let live = self.client.publish_events(self.index, &work.run, publishes).await;
        work.published = work.published.after_live(live, logs);
    }

    /// The attempt takes long: stores that it runs. Returns whether the run is still this node's.
    async fn claim_running(&self, work: &mut Work) -> Owner {
        let (mut run, mut expected) = (work.run.clone(), work.revision);
        let id = self.id();
        loop {
            let found = match self.client.claim(self.index, self.key(), expected, &mut run).await {
                Written::Won(revision) => {
                    if work.run.run_id != run.run_id {
                        work.published = Published::nothing();
                    }
                    (work.run, work.revision, work.is_stored) = (run, revision, true);
                    return Owner::Ours;
                }
                Written::Unclear => {
                    // Its end is written over the same revision, or over this very write if it was stored.
                    work.unclear = Some(run.token.clone());
                    // The id under which it continues is determined again then.
                    self.set_id(id);
                    return Owner::Ours;
                }
                Written::Lost(found) => found,
            };
            match (self.verdict(found.as_ref()), found) {
                (_, None) if expected != 0 => expected = 0,
                (Verdict::BeginAnew, Some(found)) if expected != found.revision => {
                    if self.goes_under_another_id().await {
                        return Owner::OtherRun;
                    }
                    expected = found.revision;
                }
                (Verdict::Occupied, _) => {
                    self.rename(&mut run);
                    expected = 0;
                }
                (_, Some(found)) if found.run.state == RunState::Cancelled => return Owner::Cancelled,
                _ => return Owner::OtherRun,
            }
        }
    }

    /// Carries out a stored decision: the events, then the follow-up, the ack last. The node may hold a retry that is
    /// due soon locally, if the decision was this delivery's own.
    pub(crate) async fn carry_out(&self, work: &Work, own: bool) -> Then {
        let run = &work.run;
        for step in self.order(run) {
            match step {
                Step::Tell => drop(self.client.publish_events(self.index, run, work.published).await),
                Step::MakePossibleWhatFollows => match self.local_retry_until(run).filter(|_| own) {
                    Some(until) => match self.wait_locally(until).await {
                        Waited::UntilDue => return Then::NextAttempt,
                        // The next holder finds the retry in the record and schedules it.
                        Waited::UntilDrained => {
                            self.send(Word::HandBack(0)).await;
                            return Then::Done;
                        }
                        Waited::TooLong => return Then::Done,
                    },
                    None => self.make_possible(run).await,
                },
                Step::Ack => match follow_up::plan(run).ack {
                    AckAction::Ack => self.send(Word::Ack).await,
                    AckAction::Return => self.send(Word::HandBack(0)).await,
                },
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
        match follow_up::plan(run).follow_up {
            Some(FollowUp::Schedule(_) | FollowUp::Park(_)) => {
                self.client.schedule(schedule_of(self.world, self.index, run)).await
            }
            Some(FollowUp::DeadLetter) => self.client.put_letter(self.index, run).await,
            None => {}
        }
    }

    /// Until when the node may hold the run locally: only a retry after a short wait.
    fn local_retry_until(&self, run: &Run) -> Option<Timestamp> {
        let State::Retrying { wait: Wait::Until(at) } = run.state else { return None };
        let short = run.deferral.is_none() && at.since(self.world.now()) <= Duration::from_millis(MAX_LOCAL_RETRIES);
        (short && self.world.chance.hits(8_000)).then_some(at)
    }

    async fn wait_locally(&self, until: Timestamp) -> Waited {
        self.enter_in_book();
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
}

/// The schedule of a run's next wait.
pub(crate) fn schedule_of(world: &World, plan: usize, run: &Run) -> Schedule {
    let timed = world.plans[plan].has_derived_id() && run.run_id.as_derived().is_none();
    let (round, attempt, deferrals) = (run.round, run.next_attempt(), run.deferrals);
    let at = run.state.run_at().unwrap_or_default().millis();
    Schedule { place: Place { plan, round, attempt, deferrals, timed }, seal: seal_of(run), at }
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
        if let Some(key) = hand.plan.key.filter(|_| round == 1) {
            ledger.called_for_key(key, hand.index);
        }
        let is_of_this_server = hand.delivery.server_life == world.server_life.get();
        let (plan, node, leased_until) = (hand.index, hand.client.node, hand.leased_until());
        ledger.called(Call { id, plan, node, claimed, leased_until }, is_of_this_server, now);
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
