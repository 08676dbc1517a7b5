//! A delivery in a node's hand: what it means, and what is done about it. Every decision is the domain's.

use std::cell::Cell;
use std::time::Duration;

use longshore_domain::lease::Lease;
use longshore_domain::protocol::{Arrival, Verdict, on_arrival};
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::settlement::Outcome;
use longshore_domain::{ErrorKind, Failure, Run, RunState};

use crate::client::Client;
use crate::mutation::Mutation;
use crate::plan::Plan;
use crate::server::Message;
use crate::world::{LEASE, World, stamp};

const LENGTH: Duration = Duration::from_millis(LEASE.unsigned_abs());

/// Somebody else's write came first, before any work was done: the record has to be looked at again.
pub(crate) struct Lost;

/// How the server handed a message out.
#[derive(Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) message: Message,
    pub(crate) sent_at: i64,
    pub(crate) server_life: u32,
    /// What lay in the lane when the node last had to connect again.
    pub(crate) floor: u64,
}

pub(crate) struct Hand<'w> {
    pub(crate) world: &'w World,
    pub(crate) client: Client<'w>,
    pub(crate) index: usize,
    pub(crate) plan: &'w Plan,
    pub(crate) delivery: Delivery,
    pub(crate) arrival: Arrival,
    lease: Cell<Lease>,
    leased_until: Cell<i64>,
}

/// A run as its worker has it.
pub(crate) struct Work {
    pub(crate) run: Run,
    /// The record's, as it was read or written last; 0 for none.
    pub(crate) revision: u64,
}

/// Sees a delivery through.
pub(crate) async fn work(world: &World, node: usize, delivery: Delivery) {
    let hand = Hand::new(world, node, delivery);
    if hand.is_lost() {
        return;
    }
    if hand.takes_the_short_way() {
        world.say(|| format!("{} takes {} the short way", hand.client.name(), hand.sequence()));
        let work = Work { run: hand.fresh(), revision: delivery.message.revision.unwrap_or(0) };
        let _ = hand.start(work, false).await;
        return;
    }
    while hand.judge().await.is_err() {}
}

impl<'w> Hand<'w> {
    fn new(world: &'w World, node: usize, delivery: Delivery) -> Self {
        let Message { place, sequence, at, moved, delivered, .. } = delivery.message;
        let plan = &world.plans[place.plan];
        let message = MessageId { stream: world.stream.clone(), sequence, at: stamp(at) };
        let arrival = Arrival {
            holding: Holding { message, delivery: delivered },
            round: place.round,
            attempt: place.attempt,
            deferrals: place.deferrals,
            moved,
            minted: plan.minted(),
        };
        // A lease runs from when the server may have sent the delivery, not from when a frozen node came to read it.
        let from = if world.is(Mutation::LeaseClockFromReading) { world.clock.get() } else { delivery.sent_at };
        let lease = Cell::new(Lease::new(world.instant(from)));
        let client = Client { world, node };
        let leased_until = Cell::new(from + LEASE);
        Self { world, client, index: place.plan, plan, delivery, arrival, lease, leased_until }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.delivery.message.sequence
    }

    pub(crate) fn fresh(&self) -> Run {
        Run::new(self.plan.job(), self.plan.max_attempts, stamp(self.delivery.message.at))
    }

    /// Nothing is read or written before the work: only where nothing can be on record.
    fn takes_the_short_way(&self) -> bool {
        let Message { sequence, moved, must_claim, revision, delivered, .. } = self.delivery.message;
        let world = self.world;
        let first = !moved && !must_claim && delivered == 1;
        let own = self.plan.minted() || revision.is_some() || world.is(Mutation::ShortWayForNamedRuns);
        let sure = sequence > self.delivery.floor || world.is(Mutation::ShortWayAfterTheServerDied);
        first && own && sure && !self.is_told_to_stop(0)
    }

    /// Whether this node heard that the run is to be stopped, after the world's number `since`.
    pub(crate) fn is_told_to_stop(&self, since: u64) -> bool {
        let told = self.world.nodes[self.client.node].told_to_stop.borrow();
        told.iter().any(|(plan, told_as)| *plan == self.index && *told_as > since)
    }

    /// The record turned out to be another's when an attempt was to be written there. A cancelled run's end is told and
    /// acknowledged at once; an end that was lost to others is acknowledged if another message answers for the run.
    pub(crate) async fn give_up(&self, end: bool) {
        let found = self.client.read(self.world.key(self.index)).await;
        match self.verdict(found.as_ref().map(|stored| &*stored.run)) {
            Verdict::TellEnd => {
                let Some(found) = found else { return };
                self.client.tell(self.index, &found.run).await;
                self.client.ack(self.sequence()).await;
            }
            Verdict::Drop if end => self.client.ack(self.sequence()).await,
            _ => {}
        }
    }

    /// Reads the record and does what it says.
    pub(crate) async fn judge(&self) -> Result<(), Lost> {
        let world = self.world;
        let found = self.client.read(world.key(self.index)).await;
        let verdict = self.verdict(found.as_ref().map(|stored| &*stored.run));
        let mut work = match found {
            Some(stored) => Work { run: (*stored.run).clone(), revision: stored.revision },
            None => Work { run: self.fresh(), revision: 0 },
        };
        match verdict {
            Verdict::Begin { round, attempt } => {
                assert_eq!((work.run.round, work.run.next_attempt()), (round, attempt), "what is to begin");
                return self.start(work, true).await;
            }
            Verdict::BeginAgain { .. } => {
                if !world.is(Mutation::PutBackBeginsAgainUntold) {
                    self.client.tell(self.index, &work.run).await;
                }
                return self.start(work, true).await;
            }
            Verdict::BeginAnew => return self.start(Work { run: self.fresh(), ..work }, true).await,
            Verdict::LeaseLost => return self.settle_lost_lease(work).await,
            Verdict::CarryOut => {
                self.carry_out(&work.run, false).await;
            }
            Verdict::TakeOver => {
                if !world.is(Mutation::CarriedOutWithoutTakingOver) {
                    self.write(&mut work).await?;
                }
                if world.is(Mutation::TakenOverAndKeptInHand) {
                    self.go_on(work).await;
                } else {
                    self.carry_out(&work.run, false).await;
                }
            }
            Verdict::TellEnd => {
                self.client.tell(self.index, &work.run).await;
                self.client.ack(self.sequence()).await;
            }
            Verdict::Drop => self.client.ack(self.sequence()).await,
            Verdict::Ignore => {}
        }
        Ok(())
    }

    fn verdict(&self, found: Option<&Run>) -> Verdict {
        let mut arrival = self.arrival.clone();
        if let Some(found) = found.filter(|_| self.world.is(Mutation::AnyWaitOfAnAttemptSpeaksForIt)) {
            arrival.deferrals = found.deferrals;
        }
        let verdict = on_arrival(found, &arrival);
        self.world.say(|| {
            let Message { sequence, delivered, place, .. } = self.delivery.message;
            let state = found.map_or("no record", |run| run.state.as_str());
            let (name, run) = (self.client.name(), place.plan);
            format!("{name} judges {sequence}#{delivered} of run {run} ({state}): {verdict:?}")
        });
        match (verdict, self.world.mutation) {
            (Verdict::CarryOut | Verdict::TakeOver, Some(Mutation::DropInsteadOfCarryOut))
            | (Verdict::TellEnd, Some(Mutation::CancelledDroppedUntold))
            | (Verdict::BeginAnew, Some(Mutation::RunOfALaneThatIsGoneTakenForThisOne)) => Verdict::Drop,
            (Verdict::BeginAgain { .. }, Some(Mutation::PutBackAckedWhenItComesAgain)) => Verdict::TellEnd,
            (Verdict::CarryOut, Some(Mutation::UnreadableNeverCarriedOutAgain)) if self.plan.is_unreadable() => {
                Verdict::Ignore
            }
            (Verdict::LeaseLost, Some(Mutation::OldCountsBelievedAfterTheServerDied)) => Verdict::LeaseLost,
            // Delivery counts of a server's earlier life prove nothing against one of this.
            (Verdict::LeaseLost, _) if !self.is_of_this_server() => Verdict::Ignore,
            (other, _) => other,
        }
    }

    async fn settle_lost_lease(&self, mut work: Work) -> Result<(), Lost> {
        let failure = Failure::new(ErrorKind::LeaseExpired, "its node fell silent");
        let settlement = self.settlement(Outcome::Failed { failure, retry_after: None }, &work.run);
        work.run.settle(settlement, self.world.now());
        self.write(&mut work).await?;
        self.go_on(work).await;
        Ok(())
    }

    /// Writes the record under this delivery.
    pub(crate) async fn write(&self, work: &mut Work) -> Result<(), Lost> {
        work.run.held_by = Some(self.arrival.holding.clone());
        let overwrites = match self.world.mutation {
            Some(Mutation::ClaimOverwrites) => work.run.state == RunState::Running,
            Some(Mutation::EndOverwrites) => work.run.state != RunState::Running,
            _ => false,
        };
        if overwrites {
            work.revision = self.client.read(self.world.key(self.index)).await.map_or(0, |stored| stored.revision);
        }
        work.revision = self.client.write(self.index, work.revision, &mut work.run).await.ok_or(Lost)?;
        Ok(())
    }

    /// Whether the server has not been killed since it sent the delivery.
    pub(crate) fn is_of_this_server(&self) -> bool {
        self.delivery.server_life == self.world.server_life.get()
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

    /// Lets time pass until `until`, for a part of the lease at most, and renews it where that is due.
    pub(crate) async fn hold_until(&self, until: i64) {
        let now = self.world.clock.get();
        self.world.pause((until - now).clamp(1, LEASE / 6)).await;
        let asked = self.world.clock.get();
        let mut lease = self.lease.get();
        if self.is_lost() || !lease.is_due(self.world.instant(asked), LENGTH) {
            return;
        }
        lease.ask(self.world.instant(asked));
        if self.client.renew(self.sequence()).await {
            let revived = self.world.is(Mutation::LostLeaseRevivedByALateAnswer);
            let read_at = if revived { asked } else { self.world.clock.get() };
            if revived || !self.is_lost() {
                self.leased_until.set(asked + LEASE);
            }
            lease.confirm(self.world.instant(asked), self.world.instant(read_at), LENGTH);
        }
        self.lease.set(lease);
    }
}
