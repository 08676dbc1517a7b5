//! A delivery that a node holds: what it means, and how the node handles it. The domain makes every decision.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use longshore_domain::lease::Lease;
use longshore_domain::protocol::{Arrival, Verdict, on_arrival};
use longshore_domain::publication::Published;
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::{Job, Run, SmolStr};

use crate::client::Client;
use crate::mutation::Mutation;
use crate::plan::Plan;
use crate::server::{Key, Message, Stored, Word};
use crate::world::{HEARD_WITHIN, LEASE, OLD_READ_MAX, World, stamp};

pub(crate) const LENGTH: Duration = Duration::from_millis(LEASE.unsigned_abs());

/// How the server delivered a message.
#[derive(Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) message: Message,
    pub(crate) sent_at: i64,
    /// How often the server had been killed by then: only for the ledger.
    pub(crate) server_life: u32,
    /// The last sequence in the lane when the node last had to connect again.
    pub(crate) floor: u64,
}

pub(crate) struct Hand<'w> {
    pub(crate) world: &'w World,
    pub(crate) client: Client<'w>,
    /// The run that the message names.
    pub(crate) index: usize,
    pub(crate) plan: &'w Plan,
    pub(crate) delivery: Delivery,
    arrival: Arrival,
    /// Another run has the run's id: the run continues under the id with the time its message was stored at.
    timed: Cell<bool>,
    /// Its entry in the node's book.
    entry: RefCell<Option<Entry<'w>>>,
    /// The earliest time at which the server may have delivered it.
    leased_from: i64,
    lease: Cell<Lease>,
    leased_until: Cell<i64>,
}

/// A run as its worker has it.
pub(crate) struct Work {
    pub(crate) run: Run,
    /// The record's revision, as it was read or written last; 0 for none.
    pub(crate) revision: u64,
    /// Which events of the round are published.
    pub(crate) published: Published,
    /// A record says that it runs.
    pub(crate) is_stored: bool,
    /// The token of a write of this attempt whose answer was lost.
    pub(crate) unclear: Option<SmolStr>,
    /// This is not the first check: its time has come.
    pub(crate) fell_due: bool,
}

impl Work {
    pub(crate) fn new(run: Run, revision: u64, published: Published) -> Self {
        Self { run, revision, published, is_stored: false, unclear: None, fell_due: false }
    }
}

/// Handles a delivery until its end.
pub(crate) async fn work(world: &World, node: usize, delivery: Delivery) {
    let hand = Hand::new(world, node, delivery);
    if hand.is_lost() {
        return;
    }
    if hand.plan.is_unreadable() && !hand.arrival.moved {
        hand.refuse().await;
    } else if hand.takes_the_fast_path() {
        world.say(|| format!("{} takes {} on the fast path", hand.client.name(), hand.sequence()));
        hand.start(Work::new(hand.fresh(), 0, Published::nothing())).await;
    } else {
        hand.claim().await;
    }
}

impl<'w> Hand<'w> {
    fn new(world: &'w World, node: usize, delivery: Delivery) -> Self {
        let Message { place, sequence, at, moved, seal, delivered, .. } = delivery.message;
        let plan = &world.plans[place.plan];
        let message = MessageId { stream: world.stream.clone(), sequence, at: stamp(at) };
        let arrival = Arrival {
            holding: Holding { message, delivery: delivered },
            round: place.round,
            attempt: place.attempt,
            deferrals: place.deferrals,
            moved,
            seal: (seal > 0).then(|| seal_text(seal)),
            has_derived_id: plan.has_derived_id(),
            has_aged: world.clock.get() >= at + OLD_READ_MAX,
        };
        // A lease runs from when the server may have sent the delivery, not from when a frozen node came to read it.
        let from = if world.is(Mutation::LeaseClockFromReading) { world.clock.get() } else { delivery.sent_at };
        let lease = Cell::new(Lease::new(world.instant(from)));
        let client = Client { world, node };
        let leased_until = Cell::new(from + LEASE);
        let (timed, entry) = (Cell::new(place.timed), RefCell::new(None));
        let (index, leased_from) = (place.plan, from);
        Self { world, client, index, plan, delivery, arrival, timed, entry, leased_from, lease, leased_until }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.delivery.message.sequence
    }

    pub(crate) fn is_moved(&self) -> bool {
        self.arrival.moved
    }

    pub(crate) fn holding(&self) -> Holding {
        self.arrival.holding.clone()
    }

    /// Identifies the message: its sequence and its time, because the stream may be another one of the same name.
    pub(crate) fn message(&self) -> (u64, i64) {
        (self.sequence(), self.delivery.message.at)
    }

    /// The key of the run's record.
    pub(crate) fn key(&self) -> Key {
        if self.timed.get() { World::timed_key(self.index) } else { self.world.key(self.index) }
    }

    /// Whether the run continues under the id with the time.
    pub(crate) fn id(&self) -> bool {
        self.timed.get()
    }

    pub(crate) fn set_id(&self, timed: bool) {
        self.timed.set(timed);
    }

    fn job(&self) -> &'w Job {
        let at = stamp(self.delivery.message.at);
        if self.timed.get() { self.plan.timed_job(at) } else { self.plan.job() }
    }

    pub(crate) fn fresh(&self) -> Run {
        Run::new(self.job(), self.plan.max_attempts, stamp(self.delivery.message.at))
    }

    /// Continues under the id with the time.
    pub(crate) fn rename(&self, run: &mut Run) {
        self.timed.set(true);
        self.world.ledger.borrow_mut().may_be_live_again(self.index);
        run.run_id = self.job().run_id.clone();
    }

    /// Whether the job takes the fast path, which reads and writes nothing before the work: only if nothing can be
    /// stored, neither for another message of the run nor for its cancel.
    fn takes_the_fast_path(&self) -> bool {
        let Message { sequence, seal, delivered, .. } = self.delivery.message;
        let world = self.world;
        let first = seal == 0 && delivered == 1;
        let own = self.plan.has_derived_id() || world.is(Mutation::FastPathForNamedRuns);
        let alone = own && (self.plan.key.is_none() || world.is(Mutation::FastPathForKeyedRuns));
        let sure = sequence > self.delivery.floor || world.is(Mutation::FastPathAfterTheServerDied);
        // A delivery that comes to a node just after a freeze counts as sent before the freeze.
        let (now, thawed_at) = (world.clock.get(), world.nodes[self.client.node].frozen_until.get());
        let just_thawed =
            thawed_at > 0 && now - thawed_at <= HEARD_WITHIN && !world.is(Mutation::LeaseClockFromReading);
        let soon =
            !just_thawed && now - self.leased_from <= HEARD_WITHIN || world.is(Mutation::FastPathForJobsLongBuffered);
        first && alone && sure && soon && !self.is_told_to_stop(0)
    }

    /// Whether this node received an order to stop the run, after the world's number `since`.
    pub(crate) fn is_told_to_stop(&self, since: u64) -> bool {
        let (told, now) = (self.world.nodes[self.client.node].told_to_stop.borrow(), self.world.clock.get());
        told.iter().any(|told| told.plan == self.index && told.told_as > since && told.from <= now)
    }

    /// Another write took the record when an attempt was to be written there. A cancelled run's end is published and
    /// acknowledged at once; an end that was lost to other nodes is acknowledged if another message carries the run.
    pub(crate) async fn give_up(&self, found: Option<&Stored>, work: &Work) {
        match (self.verdict(found), found) {
            (Verdict::PublishEnd, Some(found)) => {
                let published = Published::at_overtaken(work.published, &work.run, &found.run);
                self.client.publish_events(self.index, &found.run, published).await;
                self.send(Word::Ack).await;
            }
            (Verdict::Drop, _) => self.send(Word::Ack).await,
            _ => {}
        }
    }

    pub(crate) async fn send(&self, word: Word) {
        self.client.send(self.sequence(), word).await;
    }

    /// Reads the record, claims what this delivery may claim, and judges again whenever another write was faster.
    async fn claim(&self) {
        if self.is_in_book() {
            return;
        }
        let mut found = self.client.read(self.key()).await;
        loop {
            let verdict = self.verdict(found.as_ref());
            let work = match (verdict, found) {
                (Verdict::Begin { .. }, found) => self.based_on(found),
                (Verdict::BeginAgain { .. }, Some(found)) => {
                    if !self.world.is(Mutation::PutBackBeginsAgainUntold) {
                        self.publish_found(&found.run).await;
                    }
                    self.based_on(Some(found))
                }
                (Verdict::BeginAnew, Some(found)) if !self.goes_under_another_id().await => {
                    Work::new(self.fresh(), found.revision, Published::nothing())
                }
                (Verdict::Occupied | Verdict::BeginAnew, _) => {
                    self.timed.set(true);
                    found = self.client.read(self.key()).await;
                    continue;
                }
                (Verdict::Unproven, _) => return self.refuse().await,
                (_, None) => return,
                (verdict, Some(found)) => return self.not_begun(verdict, &found).await,
            };
            match self.claim_on(work).await {
                Ok(Some(work)) => return self.start(work).await,
                Ok(None) => return,
                Err(found_now) => found = found_now,
            }
        }
    }

    /// Whether an earlier delivery of the job found its id taken by an unfinished run, and began under another one.
    pub(crate) async fn goes_under_another_id(&self) -> bool {
        let look = !self.world.is(Mutation::OtherIdNotLookedUp);
        look && self.client.read(World::timed_key(self.index)).await.is_some()
    }

    /// The state on which a claim is made.
    fn based_on(&self, found: Option<Stored>) -> Work {
        let Some(stored) = found else { return Work::new(self.fresh(), 0, Published::nothing()) };
        let mut run = (*stored.run).clone();
        let published = self.world.published_at_arrival(&run);
        run.fall_due(stamp(self.delivery.message.since));
        let fell_due = self.arrival.moved || run.has_started();
        Work { fell_due, ..Work::new(run, stored.revision, published) }
    }

    /// Handles a delivery that, as the record says, must not begin anything.
    pub(crate) async fn not_begun(&self, verdict: Verdict, found: &Stored) {
        let world = self.world;
        match verdict {
            Verdict::Drop => self.send(Word::Ack).await,
            Verdict::HeldElsewhere => self.held_elsewhere(found).await,
            Verdict::TakeOver => {
                let mut work = self.found(found);
                if !world.is(Mutation::CarriedOutWithoutTakingOver) && !self.put_on_record(&mut work).await {
                    return;
                }
                if world.is(Mutation::TakenOverAndHeldLocally) {
                    self.go_on(work).await;
                } else {
                    self.carry_out(&work, false).await;
                }
            }
            Verdict::CarryOut => {
                self.carry_out(&self.found(found), false).await;
            }
            Verdict::PublishEnd => {
                self.publish_found(&found.run).await;
                self.send(Word::Ack).await;
            }
            _ => {}
        }
    }

    /// The stored run, as this node has to continue it.
    pub(crate) fn found(&self, found: &Stored) -> Work {
        Work::new((*found.run).clone(), found.revision, self.world.published_at_redelivery(&found.run))
    }

    /// Publishes the events that the record's writer may not have published.
    async fn publish_found(&self, run: &Run) {
        self.client.publish_events(self.index, run, self.world.published_at_redelivery(run)).await;
    }

    pub(crate) fn verdict(&self, found: Option<&Stored>) -> Verdict {
        let found = found.map(|stored| &*stored.run);
        let mut arrival =
            Arrival { has_derived_id: self.arrival.has_derived_id && !self.timed.get(), ..self.arrival.clone() };
        match (self.world.mutation, found) {
            (Some(Mutation::AnyWaitOfAnAttemptSpeaksForIt), Some(found)) => arrival.deferrals = found.deferrals,
            (Some(Mutation::WrongSealBelieved), Some(found)) if arrival.seal.is_some() && !found.seal.is_empty() => {
                arrival.seal = Some(found.seal.clone());
            }
            _ => {}
        }
        let verdict = on_arrival(found, &arrival);
        self.world.say(|| {
            let Message { sequence, delivered, place, .. } = self.delivery.message;
            let state = found.map_or("no record", |run| run.state.as_str());
            let (name, run) = (self.client.name(), place.plan);
            format!("{name} judges {sequence}#{delivered} of run {run} ({state}): {verdict:?}")
        });
        self.mutated(verdict)
    }

    fn mutated(&self, verdict: Verdict) -> Verdict {
        match (verdict, self.world.mutation) {
            (Verdict::CarryOut | Verdict::TakeOver, Some(Mutation::DropInsteadOfCarryOut))
            | (Verdict::PublishEnd, Some(Mutation::CancelledDroppedUntold))
            | (
                Verdict::StaleRecord,
                Some(Mutation::StaleRecordTakenForTheNewest | Mutation::RecordsReadFromAnyReplica),
            )
            | (Verdict::BeginAnew, Some(Mutation::RunOfALaneThatIsGoneTakenForThisOne)) => Verdict::Drop,
            (Verdict::Occupied, Some(Mutation::RunOfALaneThatIsGoneOverwritten)) => Verdict::BeginAnew,
            (Verdict::BeginAgain { .. }, Some(Mutation::PutBackAckedWhenItComesAgain)) => Verdict::PublishEnd,
            (other, _) => other,
        }
    }

    /// Whether this very node works on the message.
    fn is_in_book(&self) -> bool {
        self.world.nodes[self.client.node].book.borrow().contains(&self.message())
    }

    pub(crate) fn enter_in_book(&self) {
        let mut entry = self.entry.borrow_mut();
        if entry.is_none() {
            *entry = Some(Entry::new(self));
        }
    }

    pub(crate) fn strike_out_of_book(&self) {
        self.entry.take();
    }

    /// Whether another node may have the job by now.
    pub(crate) fn is_lost(&self) -> bool {
        self.lease.get().is_lost(self.world.instant(self.world.clock.get()), LENGTH)
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.world.nodes[self.client.node].draining.get()
    }

    pub(crate) fn leased_until(&self) -> i64 {
        self.leased_until.get()
    }

    /// Lets time pass until `until`, for at most a part of the lease, and renews the lease if that is due.
    pub(crate) async fn hold_until(&self, until: i64) {
        let now = self.world.clock.get();
        self.world.pause((until - now).clamp(1, LEASE / 6)).await;
        let asked = self.world.clock.get();
        let mut lease = self.lease.get();
        if self.is_lost() || !lease.is_due(self.world.instant(asked), LENGTH) {
            return;
        }
        lease.ask(self.world.instant(asked));
        if self.client.send(self.sequence(), Word::Renew).await {
            if !self.is_lost() {
                self.leased_until.set(asked + LEASE);
            }
            lease.confirm(self.world.instant(asked), self.world.instant(self.world.clock.get()), LENGTH);
        }
        self.lease.set(lease);
    }
}

/// A message that its node works on; dropping the entry removes it from the node's book.
struct Entry<'w> {
    world: &'w World,
    node: usize,
    message: (u64, i64),
}

impl<'w> Entry<'w> {
    fn new(hand: &Hand<'w>) -> Self {
        let entry = Self { world: hand.world, node: hand.client.node, message: hand.message() };
        entry.world.nodes[entry.node].book.borrow_mut().push(entry.message);
        entry
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut book = self.world.nodes[self.node].book.borrow_mut();
        if let Some(at) = book.iter().position(|message| *message == self.message) {
            book.swap_remove(at);
        }
    }
}

/// A seal as records store it.
pub(crate) fn seal_text(seal: u64) -> SmolStr {
    SmolStr::from(format!("{seal:x}"))
}

/// A seal as messages carry it.
pub(crate) fn seal_of(run: &Run) -> u64 {
    u64::from_str_radix(&run.seal, 16).unwrap_or(0)
}
