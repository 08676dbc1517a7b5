//! A delivery that a node holds, and how its worker handles it: with the functions that ship.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use longshore_backbone::delivery::AckToken;
use longshore_domain::Run;
use longshore_domain::protocol::Arrival;
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::{Job, RunId, SmolStr, format_smolstr};

use crate::api::filter::RunFilter;
use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::begin::begin;
use crate::attempt::permits::Permits;
use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::attempt::running::{CurrentAttempt, RunningAttempt};
use crate::attempt::unclear_claims::UnclearClaims;
use crate::lease_keeper::{Book, Stop};
use crate::runtime::Unpoisoned as _;
use crate::tests::simulation::client::Client;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::Plan;
use crate::tests::simulation::server::{Key, Message, Word};
use crate::tests::simulation::world::{LEASE, World, stamp};

pub(crate) const LENGTH: Duration = Duration::from_millis(LEASE.unsigned_abs());

/// How the server delivered a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) message: Message,
    pub(crate) sent_at: i64,
    /// How often the server had been killed by then: only for the ledger.
    pub(crate) server_life: u32,
    /// The last sequence in the lane when the node last had to connect again.
    pub(crate) floor: u64,
    /// How many more messages waited behind it in its lane.
    pub(crate) behind: u64,
}

/// A delivery whose job is in the buffer.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) delivery: Delivery,
    /// The number of its ack token.
    pub(crate) number: u64,
    leased_from: i64,
}

impl Delivery {
    /// A message that a node only looks at in its lane.
    pub(crate) fn of_stored(message: Message, now: i64) -> Self {
        Self { message, sent_at: now, server_life: 0, floor: 0, behind: 0 }
    }
}

/// What a hand does to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    /// It works on its job, submits it, or attends to its dead letter.
    Works,
    Cancels,
    Reschedules,
}

/// A worker's hand on one delivery: the ports of its attempts.
pub(crate) struct Hand<'w> {
    pub(crate) world: &'w World,
    pub(crate) client: Client<'w>,
    /// The run that the message names.
    pub(crate) index: usize,
    pub(crate) plan: &'w Plan,
    pub(crate) delivery: Delivery,
    pub(crate) writer: SmolStr,
    /// The earliest time at which the server may have delivered it.
    leased_from: i64,
    pub(crate) book: Arc<Book>,
    pub(crate) unclear_claims: Rc<UnclearClaims>,
    pub(crate) recently_cancelled: Rc<RecentlyCancelled>,
    /// The number of its ack token; `None`: it has had none.
    ack_token: Cell<Option<u64>>,
    pub(crate) does: Cell<Does>,
    /// The runs that it cancels are to fit this.
    pub(crate) filter: RefCell<Option<RunFilter>>,
    /// What a mutation has to know: the last verdict was to take over; another id is looked up; a claim is taken up.
    pub(crate) takes_over: Cell<bool>,
    pub(crate) looks_up: Cell<bool>,
    pub(crate) takes_up: Cell<bool>,
    /// When it was last judged whether the attempt may start, for the ledger.
    pub(crate) judged_at: Cell<Option<i64>>,
    /// The dead letter that is attended to, and whether the run is past it.
    pub(crate) letter: Cell<Option<u64>>,
    pub(crate) is_stale: Cell<bool>,
    /// The attempt that it works on.
    pub(crate) current: CurrentAttempt,
}

/// Works on a job, and on what it holds locally after that: for a mutation that has an attempt of its own.
pub(crate) async fn work_on(hand: &Hand<'_>, mut next: Option<Box<Assignment>>) {
    while let Some(assignment) = next.take() {
        if let Some(running) = begin(hand, assignment).await
            && let Some(held) = hand.attempt(running).await
        {
            next = held.wait(hand).await.map(Box::new);
        }
    }
}

impl<'w> Hand<'w> {
    pub(crate) fn new(world: &'w World, node: usize, delivery: Delivery) -> Self {
        let index = delivery.message.place.plan;
        let (state, client) = (&world.nodes[node], Client { world, node });
        Self {
            world,
            client,
            index,
            plan: &world.plans[index],
            delivery,
            writer: client.writer(),
            leased_from: world.clock.get(),
            book: Arc::clone(&state.book.borrow()),
            unclear_claims: Rc::clone(&state.unclear_claims.borrow()),
            recently_cancelled: Rc::clone(&state.recently_cancelled.borrow()),
            ack_token: Cell::new(None),
            does: Cell::new(Does::Works),
            filter: RefCell::new(None),
            takes_over: Cell::new(false),
            looks_up: Cell::new(false),
            takes_up: Cell::new(false),
            judged_at: Cell::new(None),
            letter: Cell::new(None),
            is_stale: Cell::new(false),
            current: CurrentAttempt::default(),
        }
    }

    pub(crate) fn current(&self) -> MutexGuard<'_, Option<RunningAttempt>> {
        self.current.lock().unpoisoned()
    }

    /// A hand on the job that leaves the buffer.
    pub(crate) fn of(world: &'w World, node: usize, kept: Kept) -> Self {
        let hand = Self::new(world, node, kept.delivery);
        hand.ack_token.set(Some(kept.number));
        Self { leased_from: kept.leased_from, ..hand }
    }

    /// What of it is kept while its job is in the buffer.
    pub(crate) fn kept(&self) -> Kept {
        let number = self.ack_token.get().expect("it was read");
        Kept { delivery: self.delivery, number, leased_from: self.leased_from }
    }

    /// The delivery, read as a job. Its lease runs from when the server may have sent it, not from when a frozen node
    /// came to read it.
    pub(crate) fn read(&mut self) -> (Kept, Box<Assignment>) {
        if !self.world.is(Mutation::LeaseClockFromReading) {
            self.leased_from = self.world.read_since(self.client.node, self.delivery.sent_at);
        }
        let assignment = self.assignment();
        (self.kept(), assignment)
    }

    fn assignment(&self) -> Box<Assignment> {
        let Message { place, at, since, returned, .. } = self.delivery.message;
        let job = if place.timed { self.plan.timed_job(stamp(at)) } else { self.plan.job() };
        Box::new(Assignment {
            job: Arc::new(job.clone()),
            payload: self.plan.payload(),
            arrival: self.arrival(),
            since: stamp(since),
            leased_from: self.world.instant(self.leased_from),
            entry: None,
            permits: Permits::default(),
            park: None,
            place: None,
            is_returned: returned,
            ack_token: self.ack_token(),
            start: self.start(),
        })
    }

    fn ack_token(&self) -> AckToken {
        let number = self.world.number();
        self.ack_token.set(Some(number));
        self.world.ack_tokens.make(number, self.sequence())
    }

    fn arrival(&self) -> Arrival {
        let Message { place, moved, seal, since, delivered, .. } = self.delivery.message;
        Arrival {
            holding: Holding { message: self.message(), delivery: delivered },
            round: place.round,
            attempt: place.attempt,
            deferrals: place.deferrals,
            due_at: moved.then(|| stamp(since)),
            moved,
            seal: (seal > 0).then(|| seal_text(seal)),
            has_derived_id: self.plan.has_derived_id() && !place.timed,
            has_aged: false,
        }
    }

    fn start(&self) -> Start {
        if self.plan.is_unreadable() && !self.delivery.message.moved {
            Start::Invalid("x".to_owned())
        } else {
            Start::Unread { mark: self.delivery.floor }
        }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.delivery.message.sequence
    }

    /// Identifies the message.
    pub(crate) fn message(&self) -> MessageId {
        let Message { sequence, at, .. } = self.delivery.message;
        MessageId { stream: self.world.stream(&self.delivery.message), sequence, at: stamp(at) }
    }

    /// Whose run this is, and the key of its record. If the message names another's run, two may be meant.
    pub(crate) fn place_of(&self, run_id: &RunId) -> (usize, Key) {
        let Message { plan: own, at, .. } = self.delivery.message;
        // A forged job may have the very id of the run that it names, if that is of a lane that is gone: the time in
        // the other id is the forged job's own.
        if own != self.index && *run_id == RunId::derived_at(&self.world.plans[own].job().run_id, stamp(at)) {
            return (own, World::timed_key(own));
        }
        let is_of = |job: &Job| {
            let rest = run_id.as_str().strip_prefix(job.run_id.as_str())?;
            if rest.is_empty() { Some(false) } else { rest.starts_with("-at-").then_some(true) }
        };
        for plan in [self.index, own] {
            if let Some(timed) = is_of(self.world.plans[plan].job()) {
                return (plan, if timed { World::timed_key(plan) } else { self.world.key(plan) });
            }
        }
        if let Some(plan) = self.world.plans.iter().position(|plan| plan.is_timed_as(run_id)) {
            return (plan, World::timed_key(plan));
        }
        let plan = self.world.plan_named(run_id).unwrap_or_else(|| panic!("no run has the id {run_id}"));
        (plan, self.world.key(plan))
    }

    /// Whose run is written, and its key. A forged job may have the very id of the run that it names, if that is of a
    /// lane that is gone: then the time of the message says which is meant.
    pub(crate) fn place_of_run(&self, run: &Run) -> (usize, Key) {
        let Message { plan: own, at, .. } = self.delivery.message;
        let (plan, key) = self.place_of(&run.run_id);
        let is_own = own != plan && run.origin == stamp(at) && self.world.plans[own].job().run_id == run.run_id;
        // A person who names a derived id may mean the run of a lane that is gone.
        let is_its = |other: &usize| {
            let job = self.world.plans[*other].job.get();
            job.is_some_and(|job| job.run_id == run.run_id) && run.origin == stamp(self.world.published_at(*other))
        };
        let has_derived_id = || self.world.plans[plan].has_derived_id();
        let is_anothers = self.does.get() != Does::Works && has_derived_id() && !is_its(&plan);
        let anothers = if is_anothers { (0..self.world.plans.len()).find(is_its) } else { None };
        (anothers.unwrap_or(if is_own { own } else { plan }), key)
    }

    /// Whether this node received an order to stop the run although it runs, after the world's number `since`.
    pub(crate) fn has_order_to_end(&self, since: u64) -> bool {
        let (orders, now) = (self.world.nodes[self.client.node].orders_to_stop.borrow(), self.world.clock.get());
        let mut orders = orders.iter().filter(|order| !order.only_if_waiting);
        orders.any(|order| order.plan == self.index && order.number > since && order.from <= now)
    }

    pub(crate) fn send(&self, word: Word) {
        self.client.send(self.sequence(), word);
    }

    /// What the node's monotonic clock shows.
    pub(crate) fn clock(&self) -> Instant {
        self.world.instant(self.world.clock.get())
    }

    /// Whether the lease-keeper has stopped the attempt, since its lease is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.stopped(Stop::is_lost)
    }

    /// Whether it has stopped it because the node ends.
    pub(crate) fn is_released(&self) -> bool {
        self.stopped(Stop::is_released)
    }

    fn stopped(&self, why: impl Fn(&Stop) -> bool) -> bool {
        self.current()
            .as_ref()
            .and_then(|running| running.assignment.entry.as_ref())
            .is_some_and(|entry| why(&entry.stop))
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.world.nodes[self.client.node].draining.get()
    }

    pub(crate) fn leased_from(&self) -> Instant {
        self.world.instant(self.leased_from)
    }

    /// When its lease ends, as the node believes.
    pub(crate) fn leased_until(&self) -> i64 {
        let current = self.current();
        let entry = current.as_ref().and_then(|running| running.assignment.entry.as_ref());
        let ends_at = entry.and_then(|entry| entry.ends_at(LENGTH));
        ends_at.map_or(self.leased_from + LEASE, |at| self.world.millis(at))
    }

    pub(crate) fn ack_token_number(&self) -> Option<u64> {
        self.ack_token.get()
    }

    /// Lets time pass until `until`, for at most a part of the lease, or until the lease-keeper stops the attempt.
    pub(crate) async fn hold_until(&self, until: i64) {
        let (slots, now) = (self.slots(), self.world.clock.get());
        let lasts_until = slots.map_or(until, |slots| until.min(self.world.millis(slots.lasts_until())));
        let mut pause = pin!(self.world.pause((lasts_until - now).clamp(1, LEASE / 6)));
        let is_stopped = || self.is_lost() || self.has_lost_slots();
        poll_fn(|context| if is_stopped() { Poll::Ready(()) } else { pause.as_mut().poll(context) }).await;
    }
}

/// Renews the lease with this number, of the delivery whose ack token has the other one.
pub(crate) async fn renew(world: &World, node: usize, (number, ack_token): (u64, u64)) {
    let Some(sequence) = world.ack_tokens.sequence_of(ack_token) else { return };
    if !(Client { world, node }.renew(sequence).await) {
        return;
    }
    let (state, now) = (&world.nodes[node], world.instant(world.clock.get()));
    if let Some(renewing) = state.renewing.borrow_mut().as_mut() {
        renewing.confirmed(number, now);
    }
    if let Some(until) = state.book.borrow().ends_at(number, LENGTH) {
        world.ledger.borrow_mut().renewed(ack_token, world.millis(until));
    }
}

/// A seal as records store it.
pub(crate) fn seal_text(seal: u64) -> SmolStr {
    format_smolstr!("{seal:x}")
}

/// A seal as messages carry it.
pub(crate) fn seal_of(run: &Run) -> u64 {
    u64::from_str_radix(&run.seal, 16).unwrap_or(0)
}
