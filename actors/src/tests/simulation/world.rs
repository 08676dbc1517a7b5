//! The state that all tasks of a world share: the clock, chance, the server, the nodes and the ledger; and how a task
//! waits.
//!
//! A task is an async function that runs on no runtime. At every wait, its node may die, freeze or be overtaken, and
//! every access to the server lies between two waits. A world is single-threaded: nothing here locks.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use longshore_backbone::delivery::AckToken;
use longshore_backbone::renewal::ReplyTo;
use longshore_chance::Chance;
use longshore_domain::freshness::Freshness;
use longshore_domain::policy::Policies;
use longshore_domain::{Priority, Queue, RunId, SmolStr, Timestamp};
use tokio::sync::mpsc;

use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::attempt::unclear_claims::UnclearClaims;
use crate::attempt::unstored_ends::UnstoredEnds;
use crate::lease_keeper::{Book, Renewing};
use crate::metrics::Metrics;
use crate::runtime::clock::simulated;
use crate::runtime::permits::LocalRetryPermits;
use crate::tests::simulation::breaking::Breaking;
use crate::tests::simulation::committer::{Committing, Origin};
use crate::tests::simulation::encoded::Encoded;
use crate::tests::simulation::gated::{Bucket, Gated};
use crate::tests::simulation::ledger::Ledger;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::Plan;
use crate::tests::simulation::ports::{METRICS, NAMES};
use crate::tests::simulation::queue::{NodeQueue, Paused};
use crate::tests::simulation::server::{DERIVED, Key, Message, NEVER, Server, Stored, TIMED};
use crate::tests::simulation::slots::Keeping;
use crate::tests::simulation::slow_work::Slow;
use crate::tests::simulation::sweep::Sweep;
use crate::tests::simulation::tokens::Limiting;
use crate::tests::simulation::window::OnItsWay;
use crate::tests::simulation::worker::LENGTH;

/// The number of runs in a world.
pub(crate) const RUNS: usize = 12;
/// One of ten worlds has this many more, after all others have ended and the lane was created again.
const LATER_RUNS: usize = 4;

/// How long a delivery belongs to its node, in milliseconds. Everything else is drawn in relation to it.
pub(crate) const LEASE: i64 = 1_000;
/// Faults end after this long; everything that is still under way then has to come to its end.
pub(crate) const STORM: i64 = 25_000;
/// A handler that lasts longer gets a `running` record.
pub(crate) const LASTS: i64 = 120;

/// One in this many worlds is calm: nothing goes wrong except in handlers.
const ONE_IN_CALM: u64 = 32;

/// How often a node reports its presence: as rarely, compared with the lease, as in the product.
pub(crate) const PRESENCE_EVERY: i64 = LEASE / 15;
/// No read is older than this: a node takes a message for aged after a lease, and believes a record about it then.
pub(crate) const OLD_READ_MAX: i64 = LEASE;
/// How long nodes have to confirm that they received a cancel.
pub(crate) const HEARD_WITHIN: i64 = LEASE / 5;

/// What a world has more of than others. A rule that seldom matters is broken on purpose where it matters more often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mixed,
    /// Most runs share keys, and many of those are cancelled.
    Keys,
    /// Most runs share keys and replace others.
    Replacing,
    /// Most runs follow others in chains.
    Chains,
    /// Nearly all jobs are bare, and the lane is made anew again and again.
    LanesMadeAnew,
    /// Jobs are parked again and again, and schedules fire twice.
    Waits,
    /// Runs that fit a filter are cancelled again and again; jobs are parked and fall due meanwhile.
    Filters,
    /// Attempts last, and those who ask for their holders are slow to judge.
    LongAttempts,
    /// Most jobs have concurrency keys.
    Slots,
    /// Most jobs have such keys, and an order.
    Ordered,
    /// Jobs start at a rate.
    Limited,
    /// Their type has a circuit breaker.
    Breaks,
    /// Nodes freeze again and again, for no longer than they may hold a job, and runs are cancelled as they begin.
    ShortFreezes,
}

impl Kind {
    /// Whether jobs are parked all the time.
    pub(crate) fn parks(self) -> bool {
        matches!(self, Self::Waits | Self::Filters)
    }
}

/// An order to a node to stop a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderToStop {
    pub(crate) plan: usize,
    /// The world's number of the order.
    pub(crate) number: u64,
    /// When the node reads it.
    pub(crate) from: i64,
    /// It goes on if it runs.
    pub(crate) only_if_waiting: bool,
}

#[derive(Default)]
pub(crate) struct Node {
    /// It starts at this time; after that it is alive.
    pub(crate) dead_until: Cell<i64>,
    pub(crate) frozen_until: Cell<i64>,
    pub(crate) draining: Cell<bool>,
    /// Its handler kills it at the next instruction.
    pub(crate) doomed: Cell<bool>,
    /// How often it was started: another process each time.
    pub(crate) life: Cell<u32>,
    /// The part of this process's tokens that names it.
    pub(crate) writer: RefCell<SmolStr>,
    /// When it last reported its presence, before it died or froze; `None`: it withdrew its presence as it ended.
    last_seen: Cell<Option<i64>>,
    /// Since its start it has read which runs are being cancelled.
    pub(crate) learned: Cell<bool>,
    /// Until the second time, the leaders that it reaches answer with the state that they knew at the first, and take
    /// no write.
    pub(crate) cut: Cell<(i64, i64)>,
    /// Runs that it was ordered to stop, only in its memory.
    pub(crate) orders_to_stop: RefCell<Vec<OrderToStop>>,
    /// The leases of messages that it works on, and what renews them.
    pub(crate) book: RefCell<Arc<Book>>,
    pub(crate) renewing: RefCell<Option<Renewing>>,
    /// When its lease-keeper looks through them next.
    pub(crate) keeps_at: Cell<i64>,
    /// Tokens of its claims whose answers were lost.
    pub(crate) unclear_claims: RefCell<Rc<UnclearClaims>>,
    /// The cancels that it has heard of.
    pub(crate) recently_cancelled: RefCell<Rc<RecentlyCancelled>>,
    /// How old its deliveries may be.
    pub(crate) freshness: RefCell<Option<Freshness>>,
    /// Its committer has something to do.
    pub(crate) is_called: Cell<bool>,
    /// What carries out its commits.
    committing: RefCell<Option<Rc<Committing>>>,
    /// Its queue, once there was something for it.
    pub(crate) queue: RefCell<Option<Rc<NodeQueue>>>,
    pub(crate) sweep: Sweep,
}

/// Ack tokens for the deliveries of a world.
pub(crate) struct AckTokens {
    make: Box<dyn Fn(&str) -> AckToken>,
    next_dropped: RefCell<Box<dyn FnMut() -> Option<u64>>>,
    /// The sequence of each one's message.
    of: RefCell<Vec<(u64, u64)>>,
}

impl AckTokens {
    fn new() -> Self {
        let (returns, mut returned) = mpsc::unbounded_channel();
        let make = Box::new(AckToken::without_connection(returns));
        let next = move || returned.try_recv().ok().and_then(|reply| reply.as_str().parse().ok());
        Self { make, next_dropped: RefCell::new(Box::new(next)), of: RefCell::default() }
    }

    /// The ack token that has this number, of a delivery of this message.
    pub(crate) fn make(&self, number: u64, sequence: u64) -> AckToken {
        self.of.borrow_mut().push((number, sequence));
        (self.make)(&number.to_string())
    }

    /// The message of its delivery.
    pub(crate) fn sequence_of(&self, number: u64) -> Option<u64> {
        self.of.borrow().iter().rev().find(|(other, _)| *other == number).map(|(_, sequence)| *sequence)
    }

    /// The number of the ack token whose lease is renewed.
    pub(crate) fn number_of(renewal: &ReplyTo) -> u64 {
        renewal.as_str().parse().expect("ack tokens of these worlds are numbers")
    }

    /// The number of one more ack token that was dropped, which returns its job.
    pub(crate) fn take_dropped(&self) -> Option<u64> {
        self.next_dropped.borrow_mut()()
    }
}

/// How often each fault happens, in shares of 10,000 of each step.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    pub(crate) dies: u32,
    pub(crate) freezes: u32,
    pub(crate) unclear: u32,
    /// Late replies to deliveries.
    pub(crate) late: u32,
    pub(crate) cut: u32,
}

pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) chance: Chance,
    /// Read by all, and set by [`World::comes_to`].
    pub(crate) clock: Cell<i64>,
    /// What holds jobs up.
    pub(crate) gated: Gated,
    /// The settings of the type by which the gates go, if they have something to hold up.
    pub(crate) policies: Option<Arc<Policies>>,
    pub(crate) bucket: RefCell<Bucket>,
    pub(crate) server: RefCell<Server>,
    pub(crate) nodes: [Node; 3],
    pub(crate) ack_tokens: AckTokens,
    /// What nodes keep in memory, and nothing in these worlds is added to.
    pub(crate) unstored_ends: UnstoredEnds,
    pub(crate) local_retries: Arc<LocalRetryPermits>,
    pub(crate) names: [SmolStr; 3],
    pub(crate) plans: Vec<Plan>,
    pub(crate) ledger: RefCell<Ledger>,
    pub(crate) weather: Cell<Weather>,
    pub(crate) storm: Weather,
    /// Nothing has gone wrong: every event goes out live once.
    pub(crate) calm: Cell<bool>,
    /// Records and events are written as text.
    pub(crate) encodes: bool,
    pub(crate) quiet_from: Cell<i64>,
    /// Dead letters whose key another run has for as long as the world lasts: nobody goes on asking for their replay.
    pub(crate) without_key: RefCell<Vec<u64>>,
    pub(crate) mutation: Option<Mutation>,
    /// How many deliveries one node holds at once.
    pub(crate) room: usize,
    /// How many jobs of a node its remote handlers take at once; `None`: it has the handlers itself.
    pub(crate) slots: Option<u32>,
    /// What an operator has paused.
    pub(crate) paused: RefCell<Vec<Paused>>,
    stream: SmolStr,
    /// How often the server was killed.
    pub(crate) server_life: Cell<u32>,
    /// Any moment: leases count from it on the nodes' own clocks.
    start: Instant,
    /// When each run was first published, and whether its `submit` was answered.
    published: RefCell<Vec<Option<i64>>>,
    submitted: RefCell<Vec<bool>>,
    numbers: Cell<u64>,
    wait: Cell<i64>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whose each commit is.
    pub(crate) origins: RefCell<Vec<Origin>>,
    /// What committers have begun, and no task does yet.
    pub(crate) slow: RefCell<Vec<(usize, Slow)>>,
    /// Messages of committers, and their answers.
    pub(crate) on_its_way: RefCell<Vec<OnItsWay>>,
    /// When the next of them arrives.
    pub(crate) next_arrival: Cell<i64>,
    /// Events that were written, with their plans and the last attempts of their runs then.
    pub(crate) encoded: RefCell<Vec<Encoded>>,
    /// Bytes of a message of the log.
    max_payload: usize,
    pub(crate) talks: bool,
}

impl World {
    pub(crate) fn new((seed, kind): (u64, Kind), mutation: Option<Mutation>, talks: bool) -> Self {
        let chance = Chance::new(seed);
        let calm = seed.is_multiple_of(ONE_IN_CALM);
        let storm = if calm { Weather::default() } else { Self::draw_storm(&chance, kind) };
        let mut plans = Plan::draw_all(&chance, RUNS, kind);
        if chance.hits(1_000) {
            plans.extend((0..LATER_RUNS).map(|_| Plan::draw_bare(&chance)));
        }
        let (runs, gated) = (plans.len(), Gated::draw((seed, kind), &mut plans));
        let world = Self {
            kind,
            clock: Cell::new(0),
            gated,
            policies: gated.policies(mutation),
            bucket: RefCell::default(),
            server: RefCell::default(),
            nodes: Default::default(),
            ack_tokens: AckTokens::new(),
            unstored_ends: UnstoredEnds::default(),
            local_retries: Arc::default(),
            names: ["a", "b", "c"].map(SmolStr::from),
            ledger: RefCell::new(Ledger::new(runs)),
            plans,
            weather: Cell::new(storm),
            storm,
            calm: Cell::new(calm),
            encodes: calm,
            quiet_from: Cell::new(STORM),
            without_key: RefCell::default(),
            mutation,
            room: chance.pick(&[4, 4, 4, 1]),
            slots: if kind.parks() { Some(1) } else { chance.pick(&[None, None, Some(1), Some(2), Some(4)]) },
            paused: RefCell::default(),
            stream: SmolStr::from(NAMES.lane_stream(&Queue::main(), Priority::DEFAULT)),
            server_life: Cell::new(0),
            start: Instant::now(),
            published: RefCell::new(vec![None; runs]),
            submitted: RefCell::new(vec![false; runs]),
            numbers: Cell::new(0),
            wait: Cell::new(NEVER),
            metrics: METRICS.with(Arc::clone),
            origins: RefCell::default(),
            slow: RefCell::default(),
            on_its_way: RefCell::default(),
            next_arrival: Cell::new(NEVER),
            encoded: RefCell::default(),
            max_payload: if calm { 2_000 } else { chance.pick(&[10, 30, 100]) },
            talks,
            chance,
        };
        world.comes_to(0);
        (0..world.nodes.len()).for_each(|node| world.starts(node));
        world
    }

    /// The stream of a message.
    pub(crate) fn stream(&self, message: &Message) -> SmolStr {
        if message.returned { SmolStr::new_static("RETURNED") } else { self.stream.clone() }
    }

    /// All clocks show this time from now on.
    pub(crate) fn comes_to(&self, now: i64) {
        self.clock.set(now);
        simulated::set(Some((self.instant(now), self.now())));
    }

    /// A node's process starts, with nothing in its memory.
    pub(crate) fn starts(&self, node: usize) {
        self.names_writer(node);
        let (state, book) = (&self.nodes[node], Arc::<Book>::default());
        *state.renewing.borrow_mut() = Some(Renewing::new(Arc::clone(&book), LENGTH));
        *state.book.borrow_mut() = book;
        *state.unclear_claims.borrow_mut() = Rc::default();
        state.is_called.set(false);
        *state.recently_cancelled.borrow_mut() = Rc::default();
        *state.freshness.borrow_mut() = Some(self.fresh_since(state.dead_until.get()));
        *state.committing.borrow_mut() = Some(Rc::new(Committing::new(self.max_payload, Arc::clone(&self.metrics))));
        state.orders_to_stop.borrow_mut().clear();
        state.learned.set(false);
        state.sweep.starts();
        *state.queue.borrow_mut() = None;
    }

    /// The process of a node has a part of its tokens that no other has.
    fn names_writer(&self, node: usize) {
        let (name, state) = (&self.names[node], &self.nodes[node]);
        *state.writer.borrow_mut() = SmolStr::from(format!("{name}{}", state.life.get()));
    }

    fn draw_storm(chance: &Chance, kind: Kind) -> Weather {
        Weather {
            dies: chance.pick(&[0, 20, 60, 200, 500]),
            freezes: if kind == Kind::ShortFreezes { 500 } else { chance.pick(&[0, 20, 60, 200]) },
            unclear: chance.pick(&[0, 50, 300]),
            late: chance.pick(&[0, 300, 2_000]),
            cut: chance.pick(&[0, 0, 50, 200]),
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        stamp(self.clock.get())
    }

    /// The slots of a node's process, if jobs of this world have concurrency keys and there was something for it.
    pub(crate) fn keeping(&self, node: usize) -> Option<Rc<Keeping>> {
        self.nodes[node].queue.borrow().as_ref()?.keeping.clone()
    }

    /// The same of its limits, in a world that has one.
    pub(crate) fn limiting(&self, node: usize) -> Option<Rc<Limiting>> {
        self.nodes[node].queue.borrow().as_ref()?.limiting.clone()
    }

    /// The same of its breakers.
    pub(crate) fn breaking(&self, node: usize) -> Option<Rc<Breaking>> {
        self.nodes[node].queue.borrow().as_ref()?.breaking.clone()
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.ledger.borrow().broken().is_some()
    }

    /// The first broken promise, if any.
    pub(crate) fn broken(&self) -> Option<String> {
        self.ledger.borrow().broken().map(str::to_owned)
    }

    pub(crate) fn accuse_stuck(&self) {
        let server = self.server.borrow();
        let (lane, schedules, due, letters) = (&server.lane, &server.schedules, &server.due, &server.letters);
        let parked = &server.parked;
        self.ledger.borrow_mut().accuse_all(format!(
            "stuck: lane {lane:?}, schedules {schedules:?}, letters {letters:?}, due {due:?}, parked {parked:?}"
        ));
    }

    /// A moment on the nodes' monotonic clocks.
    pub(crate) fn instant(&self, at: i64) -> Instant {
        self.start + Duration::from_millis(u64::try_from(at).unwrap_or(0))
    }

    /// The same moment on the world's clock.
    pub(crate) fn millis(&self, at: Instant) -> i64 {
        i64::try_from(at.duration_since(self.start).as_millis()).unwrap_or(i64::MAX)
    }

    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.talks {
            crate::tests::simulation::say(&format!("{:>6}  {}", self.clock.get(), what()));
        }
    }

    /// The key of a run's record. A derived id contains its sequence, and so does its key.
    pub(crate) fn key(&self, plan: usize) -> Key {
        let sequence = self.plans[plan].derived_from();
        sequence.map_or(plan, |sequence| DERIVED + usize::try_from(sequence).expect("a world has few messages"))
    }

    /// The run that has this id of its own.
    pub(crate) fn plan_named(&self, run_id: &RunId) -> Option<usize> {
        self.plans.iter().position(|plan| plan.job.get().is_some_and(|job| job.run_id == *run_id))
    }

    /// The key of the run's record if another run has its own id.
    pub(crate) fn timed_key(plan: usize) -> Key {
        TIMED + plan
    }

    /// The stored record of a run. Under a derived id, the record may be another run's, of a lane that is gone.
    pub(crate) fn record(&self, plan: usize) -> Option<Stored> {
        let server = self.server.borrow();
        let has_derived_id = self.plans[plan].has_derived_id();
        let own = |stored: &Stored| !has_derived_id || stored.run.origin == stamp(self.published_at(plan));
        server.read(Self::timed_key(plan)).or_else(|| server.read(self.key(plan)).filter(own))
    }

    /// Whether one job continued as two runs, under its own id and under the id with the time.
    pub(crate) fn has_two_ids(&self, plan: usize) -> bool {
        let server = self.server.borrow();
        let is_own = |stored: Stored| stored.run.origin == stamp(self.published_at(plan));
        self.plans[plan].has_derived_id()
            && server.read(Self::timed_key(plan)).is_some()
            && self.plans[plan].job.get().is_some()
            && server.read(self.key(plan)).is_some_and(is_own)
    }

    /// The node's last presence, as the control bucket has it: when it was last there, and since when.
    pub(crate) fn presence(&self, node: usize) -> Option<(i64, i64)> {
        let (state, now) = (&self.nodes[node], self.clock.get());
        let started_at = state.dead_until.get();
        if started_at > now || state.frozen_until.get() > now {
            return state.last_seen.get().map(|seen| (seen, started_at.min(seen)));
        }
        Some(((now - now % PRESENCE_EVERY).max(started_at), started_at))
    }

    /// The node reports nothing from now on.
    pub(crate) fn falls_silent(&self, node: usize, takes_leave: bool) {
        let seen = self.presence(node).map(|(seen, _)| seen);
        self.nodes[node].last_seen.set(seen.filter(|_| !takes_leave));
    }

    /// A number that no other write, call or task of this world has.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    pub(crate) fn note_published(&self, plan: usize, at: i64) {
        self.published.borrow_mut()[plan].get_or_insert(at);
    }

    pub(crate) fn published_at(&self, plan: usize) -> i64 {
        self.published.borrow()[plan].unwrap_or(self.clock.get())
    }

    /// The client has its answer.
    pub(crate) fn submitted(&self, plan: usize) {
        self.submitted.borrow_mut()[plan] = true;
    }

    pub(crate) fn is_submitted(&self, plan: usize) -> bool {
        self.submitted.borrow()[plan]
    }

    /// Lets `millis` pass and other tasks act.
    pub(crate) fn pause(&self, millis: i64) -> Pause<'_> {
        Pause { world: self, millis, until: None }
    }

    /// How long the task that was just polled waits.
    pub(crate) fn take_wait(&self) -> i64 {
        self.wait.replace(NEVER)
    }

    /// The task that is polled goes on at this time, if nothing else makes it.
    pub(crate) fn wait_until(&self, at: i64) {
        self.wait.set(self.wait.get().min(at - self.clock.get()));
    }

    /// How long a message travels to the server or back.
    pub(crate) fn travel_time(&self) -> i64 {
        if self.chance.hits(9_000) { self.chance.between(1, 10) } else { self.chance.between(10, 150) }
    }

    /// Waits for so long.
    pub(crate) fn travel(&self) -> Pause<'_> {
        self.pause(self.travel_time())
    }

    /// What carries out the commits of a node's process.
    pub(crate) fn committing(&self, node: usize) -> Rc<Committing> {
        Rc::clone(self.nodes[node].committing.borrow().as_ref().expect("every process has one"))
    }
}

pub(crate) fn stamp(at: i64) -> Timestamp {
    Timestamp::from_millis(at)
}

pub(crate) struct Pause<'w> {
    world: &'w World,
    millis: i64,
    until: Option<i64>,
}

impl Future for Pause<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (world, now, millis) = (self.world, self.world.clock.get(), self.millis);
        let is_first = self.until.is_none();
        let until = *self.until.get_or_insert(now + millis);
        if until <= now && !is_first {
            return Poll::Ready(());
        }
        world.wait.set(world.wait.get().min(until - now));
        // Parts of a task that wait at the same time are all looked at when one of them may go on.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}
