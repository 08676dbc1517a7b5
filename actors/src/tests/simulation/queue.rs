//! The queue of a simulated node: the buffer, gates, dispatcher and demand that ship say how many jobs the node pulls,
//! which starts, which waits, which is parked and which goes back. Rewritten is what surrounds them: the scheduler's
//! loop, which here runs whenever it might have a reason to, and the puller.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::bucket_space::BucketSpace;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::handlers::Announced;
use longshore_backbone::parked::ParkedSpace;
use longshore_backbone::run_time_settings::SettingChange;
use longshore_backbone::wire::subject::Names;
use longshore_domain::policy::{Policies, QueuePolicy};
use longshore_domain::pressure::HeldBack;
use longshore_domain::setting::{Pause, PauseOf, Setting, SettingKey};
use longshore_domain::{JobType, Priority, Queue, QueueLane, SmolStr, Tenant};
use tokio_util::sync::CancellationToken;

use crate::attempt::assignment::Assignment;
use crate::handlers::capacity::HandlerCapacity;
use crate::handlers::handler::{Context, HandlerError, Handlers};
use crate::handlers::routing::Routing;
use crate::limits::breaker::Breakers;
use crate::limits::concurrency::Slots;
use crate::limits::rate::Limits;
use crate::limits::settings::RunTimeSettings;
use crate::queue::buffer::{Arrived, JobBuffer};
use crate::queue::demand::{Demand, TICK, Workers};
use crate::queue::dispatcher::{Dispatcher, Work};
use crate::queue::gates::Gates;
use crate::queue::parking::rounds::Parking;
use crate::queue::wake_permits::WakePermits;
use crate::runtime::gate_news::GateNews;
use crate::runtime::park_permits::ParkGate;
use crate::tests::simulation::breaking::Breaking;
use crate::tests::simulation::gated::Gated;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{Due, Message, NEVER};
use crate::tests::simulation::slots::Keeping;
use crate::tests::simulation::tokens::Limiting;
use crate::tests::simulation::worker::{Kept, LENGTH};
use crate::tests::simulation::world::{LEASE, World, stamp};

/// How many workers may be awake without waiting.
const WAKE_PERMITS: usize = 2;
/// What a node learned at its start counts for as long as it lives.
const AGES: Duration = Duration::from_secs(86_400);
/// The lanes of these worlds: that which clients publish to, and that of returned jobs.
const LANES: [QueueLane; 2] = [QueueLane::Of(Priority::DEFAULT), QueueLane::Returned];

thread_local! {
    /// The gates that no job of most worlds comes to: those share them, as nothing in them changes.
    static UNUSED: Unused = Unused::new();
}

/// What all queues have in common.
struct Unused {
    policies: Arc<Policies>,
    names: Names,
    /// The handlers of a node that has them itself, and of one that leaves all jobs to remote ones.
    here: Handlers,
    remote: Handlers,
    limits: Arc<Limits>,
    breakers: Arc<Breakers>,
    slots: Arc<Slots>,
}

impl Unused {
    fn new() -> Self {
        let (policies, news) = (Arc::<Policies>::default(), Arc::<GateNews>::default());
        let limits = Arc::new(Limits::new("n", Arc::clone(&policies), Arc::clone(&news)));
        let breakers = Arc::new(Breakers::new(Arc::clone(&policies), "n", Arc::clone(&news)));
        let slots = Arc::new(Slots::new(Arc::clone(&policies), news, BucketSpace::default()));
        let here = Handlers::new().with("t", |_: Context| async { Ok::<(), HandlerError>(()) });
        Self { policies, names: Names::new("longshore"), here, remote: Handlers::new(), limits, breakers, slots }
    }

    /// The gates of a node whose remote handlers take so many jobs at once; `None`: it has the handlers itself. They go
    /// by these settings, if they have something to hold up; then the process has this name.
    fn gates(&self, slots: Option<u32>, own: Option<(Arc<Policies>, SmolStr)>, ages: Instant) -> Gates {
        let news = Arc::<GateNews>::default();
        let policies = Arc::clone(own.as_ref().map_or(&self.policies, |(policies, _)| policies));
        let capacity = Arc::new(HandlerCapacity::new(Arc::clone(&news)));
        let handlers = if slots.is_some() { &self.remote } else { &self.here };
        let routing = Routing::new(policies, handlers.clone(), self.names.clone(), capacity);
        if slots.is_some() {
            let subject = routing.subject_of(&Tenant::default_tenant(), &job_type());
            let announced =
                Announced { service: "handler".to_owned(), subject, slots, heartbeat: None, wrong: Vec::new() };
            routing.discovery.replace(vec![announced], ages);
        }
        let run_time_settings = Arc::new(RunTimeSettings::new(Arc::clone(&news)));
        run_time_settings.is_present(ages);
        run_time_settings.were_read(ages);
        let (limits, breakers, slots) = match own {
            Some((policies, name)) => (
                Arc::new(Limits::new(&name, Arc::clone(&policies), Arc::clone(&news))),
                Arc::new(Breakers::new(Arc::clone(&policies), &name, Arc::clone(&news))),
                Arc::new(Slots::new(policies, Arc::clone(&news), BucketSpace::default())),
            ),
            None => (Arc::clone(&self.limits), Arc::clone(&self.breakers), Arc::clone(&self.slots)),
        };
        let park = ParkGate::new(ParkedSpace::default(), Arc::clone(&news));
        Gates { routing: Arc::new(routing), limits, breakers, run_time_settings, slots, park, news }
    }
}

/// The type of all jobs of these worlds.
fn job_type() -> JobType {
    JobType::parse("t").expect("a letter is a token")
}

/// What is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    Queue,
    Type,
}

impl Paused {
    fn of(self) -> PauseOf {
        match self {
            Self::Queue => PauseOf::Queue(Queue::main()),
            Self::Type => PauseOf::Type(job_type()),
        }
    }
}

/// The queue of one process of a node.
pub(crate) struct NodeQueue {
    pub(crate) dispatcher: Dispatcher,
    closing: CancellationToken,
    demand: RefCell<Demand>,
    /// The jobs that were pulled from each lane and have not arrived.
    outstanding: Cell<[usize; LANES.len()]>,
    has_pulled: Cell<bool>,
    /// The deliveries of the jobs in the buffer.
    kept: RefCell<Vec<Kept>>,
    /// The loop has a reason to run.
    has_news: Cell<bool>,
    /// The count of the gates' news when it last ran.
    known_news: Cell<u64>,
    /// When it runs without another reason.
    runs_at: Cell<i64>,
    ticks_at: Cell<i64>,
    /// The connection is made anew: the server has forgotten the pulls.
    reconnects: Cell<bool>,
    /// What takes parked jobs back; `None`: it is at it.
    pub(crate) parking: RefCell<Option<Parking<Due>>>,
    pub(crate) looks_at: Cell<i64>,
    /// Its slots, if any job has a concurrency key.
    pub(crate) keeping: Option<Rc<Keeping>>,
    /// Its limits, if there is one.
    pub(crate) limiting: Option<Rc<Limiting>>,
    /// Its breakers, if there is one.
    pub(crate) breaking: Option<Rc<Breaking>>,
    /// The buffer knew of parked jobs when the loop last ran.
    pub(crate) knows_of_parked: Cell<bool>,
}

impl NodeQueue {
    fn new(world: &World, node: usize) -> Self {
        let (now, at) = (world.clock.get(), world.instant(world.clock.get()));
        let own = world.policies.clone().map(|policies| (policies, world.nodes[node].writer.borrow().clone()));
        let gates = UNUSED.with(|unused| unused.gates(world.announced_slots(), own, at + AGES));
        let has_keys = matches!(world.gated, Gated::Keys(_) | Gated::Ordered);
        let keeping = has_keys.then(|| Rc::new(Keeping::new(Arc::clone(&gates.slots))));
        let breaks = world.gated == Gated::Breaks;
        let breaking = breaks.then(|| Rc::new(Breaking::new(Arc::clone(&gates.breakers))));
        let is_limited = matches!(world.gated, Gated::Limited(_));
        let limiting = is_limited.then(|| Rc::new(Limiting::new(Arc::clone(&gates.limits))));
        let policy = QueuePolicy { concurrency: world.room, ..QueuePolicy::default() };
        let closing = CancellationToken::new();
        let buffer = JobBuffer::new(Queue::main(), policy, LENGTH, gates, closing.clone());
        buffer.clear(at);
        let permits = WakePermits::new(WAKE_PERMITS);
        let dispatcher = Dispatcher::new(Queue::main(), policy, buffer, permits, Arc::default());
        (0..world.room).for_each(|worker| dispatcher.idle.put(worker));
        let queue = Self {
            dispatcher,
            closing,
            demand: RefCell::new(Demand::new(0)),
            outstanding: Cell::default(),
            has_pulled: Cell::new(false),
            kept: RefCell::default(),
            has_news: Cell::new(true),
            known_news: Cell::new(0),
            runs_at: Cell::new(now),
            ticks_at: Cell::new(now),
            reconnects: Cell::new(false),
            parking: RefCell::new(Some(Parking::new())),
            looks_at: Cell::new(now),
            keeping,
            limiting,
            breaking,
            knows_of_parked: Cell::new(false),
        };
        world.paused.borrow().iter().for_each(|paused| queue.pauses(*paused, true));
        queue
    }

    pub(crate) fn buffer(&self) -> &JobBuffer {
        &self.dispatcher.buffer
    }

    /// Whether no job is in the buffer.
    pub(crate) fn is_empty(&self) -> bool {
        let held = self.buffer().held();
        held.back == 0 && held.of.iter().all(|held| *held == 0)
    }

    /// Whether a job of such a run is in the buffer: none stays there for longer than its lease.
    pub(crate) fn holds(&self, is_it: impl Fn(usize) -> bool, now: i64) -> bool {
        let has_lease = |kept: &Kept| now - kept.delivery.sent_at < LEASE;
        self.kept.borrow().iter().any(|kept| has_lease(kept) && is_it(kept.delivery.message.place.plan))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// The scheduler's loop has a reason to run.
    pub(crate) fn has_news(&self) {
        self.has_news.set(true);
    }

    /// The node learns that something is paused, or is not any more.
    pub(crate) fn pauses(&self, paused: Paused, is_paused: bool) {
        let setting = is_paused.then_some(Setting::Pause(Pause { since: stamp(0), until: None }));
        let change = SettingChange { key: Some(SettingKey::Pause(paused.of())), setting, revision: 1, at: stamp(0) };
        self.buffer().gates.run_time_settings.take_in(vec![change], false);
        self.has_news();
    }

    /// The server was killed.
    pub(crate) fn loses_its_server(&self, reconnects_at: i64) {
        self.outstanding.set([0; LANES.len()]);
        self.reconnects.set(true);
        self.keeping.iter().for_each(|keeping| keeping.reads_again());
        self.runs_at.set(self.runs_at.get().min(reconnects_at));
        self.ticks_at.set(reconnects_at);
    }

    /// Whether the node has pulled from the lane of this message.
    pub(crate) fn has_pulled_from(&self, is_returned: bool) -> bool {
        self.outstanding.get()[usize::from(is_returned)] > 0
    }

    /// One of the jobs that were pulled is on its way.
    pub(crate) fn is_sent(&self, message: &Message) {
        let mut outstanding = self.outstanding.get();
        outstanding[usize::from(message.returned)] -= 1;
        self.outstanding.set(outstanding);
    }

    /// A job arrives.
    pub(crate) fn takes_in(&self, kept: Kept, assignment: Box<Assignment>) {
        let Message { returned, .. } = kept.delivery.message;
        let (lane, behind) = (LANES[usize::from(returned)].index(), kept.delivery.behind);
        self.demand.borrow_mut().came(lane);
        self.kept.borrow_mut().push(kept);
        self.buffer().came(std::iter::once(Arrived { lane, behind, assignment }));
        self.has_news();
    }

    /// A retry that was held locally is due.
    pub(crate) fn takes_back(&self, kept: Kept, assignment: Box<Assignment>) {
        self.kept.borrow_mut().push(kept);
        self.buffer().again(assignment);
        self.has_news();
    }

    /// The delivery of a job that leaves the buffer.
    pub(crate) fn delivery_of(&self, assignment: &Assignment) -> Kept {
        let number = World::number_of(&assignment.ack_token).expect("jobs of the buffer have ack tokens");
        let mut kept = self.kept.borrow_mut();
        let at = kept.iter().position(|kept| kept.number == number).expect("it was taken in");
        kept.swap_remove(at)
    }

    /// When the loop runs next.
    pub(crate) fn runs_next(&self, now: i64) -> i64 {
        let has_news = self.has_news.get() || self.known_news.get() != self.buffer().gates.news.count();
        if has_news { now } else { self.runs_at.get() }
    }

    /// A round of the scheduler's loop; returns the work that it gives, and to which workers. Jobs that it drops go
    /// back.
    pub(crate) fn run(&self, world: &World, is_draining: bool) -> Vec<(usize, Work)> {
        let (now, at, mut works) = (world.clock.get(), world.instant(world.clock.get()), Vec::new());
        self.has_news.set(false);
        self.known_news.set(self.buffer().gates.news.count());
        self.runs_at.set(NEVER);
        if is_draining {
            self.closes(at);
            return works;
        }
        if self.ticks_at.get() <= now {
            self.ticks(world, at);
        }
        self.dispatches(at, &mut works);
        self.tops_up(at);
        self.knows_of_parked.set(self.buffer().blocked(|jobs| jobs.any_parked()));
        self.sets_timer(world);
        works
    }

    fn closes(&self, at: Instant) {
        if !self.is_closed() {
            self.closing.cancel();
            self.outstanding.set([0; LANES.len()]);
            self.buffer().clear(at);
        }
    }

    fn ticks(&self, world: &World, at: Instant) {
        self.ticks_at.set(world.clock.get() + i64::try_from(TICK.as_millis()).unwrap_or(0));
        self.demand.borrow_mut().tick(self.buffer().held().started);
        drop(self.buffer().give_back(at));
        if self.reconnects.replace(false) {
            self.outstanding.set([0; LANES.len()]);
            self.buffer().forget_deliveries(at);
        }
    }

    fn dispatches(&self, at: Instant, works: &mut Vec<(usize, Work)>) {
        let is_over = self.demand.borrow().stalled_until().is_some_and(|until| until <= at);
        let is_stalled = is_over && self.demand.borrow_mut().is_stalled(self.buffer().held().started);
        while is_stalled || self.dispatcher.wake_permits.is_one_left() {
            let Some(work) = self.dispatcher.next_work(|| at) else { return };
            works.push(work);
        }
    }

    /// Pulls as the puller does: not while more than half of what is wanted is buffered or on its way.
    fn tops_up(&self, at: Instant) {
        let (mut demand, held, idle) = (self.demand.borrow_mut(), self.buffer().held(), self.dispatcher.idle.count());
        if !self.buffer().is_open(at) || self.reconnects.get() {
            return demand.is_closed();
        }
        demand.has_dispatched(&held, idle, at);
        let all = self.dispatcher.policy.concurrency;
        let wanted = demand.wanted(Workers { all, idle, held_back: HeldBack::default() });
        let mut outstanding = self.outstanding.get();
        for (lane, outstanding) in LANES.iter().zip(&mut outstanding) {
            let want = demand.of_lane(lane.index(), wanted);
            let have = *outstanding + held.of[lane.index()];
            if have * 2 <= want {
                *outstanding += want - have;
            }
        }
        self.outstanding.set(outstanding);
        if !self.has_pulled.replace(true) {
            self.buffer().lanes_asked(at);
        }
    }

    fn sets_timer(&self, world: &World) {
        let held = self.buffer().held();
        let is_needed = held.of.iter().any(|held| *held > 0) || held.back > 0 || self.reconnects.get();
        let tick = if is_needed { self.ticks_at.get() } else { NEVER };
        let others = [self.buffer().hold_off(), self.demand.borrow().stalled_until()];
        let others = others.into_iter().flatten().map(|at| world.millis(at) + 1);
        let next = others.fold(tick, i64::min);
        self.runs_at.set(next.max(world.clock.get() + 1));
    }
}

impl World {
    /// The queue of a node's process, which makes it once there is something for it.
    pub(crate) fn queue(&self, node: usize) -> Rc<NodeQueue> {
        let mut queue = self.nodes[node].queue.borrow_mut();
        Rc::clone(queue.get_or_insert_with(|| Rc::new(NodeQueue::new(self, node))))
    }

    /// The same, if it was made.
    pub(crate) fn queue_of(&self, node: usize) -> Option<Rc<NodeQueue>> {
        self.nodes[node].queue.borrow().clone()
    }

    /// When a node that has had nothing to do could begin.
    pub(crate) fn starts_queue_at(&self, node: usize) -> i64 {
        let state = &self.nodes[node];
        if state.draining.get() { NEVER } else { state.dead_until.get().max(state.frozen_until.get()) }
    }

    fn number_of(ack_token: &AckToken) -> Option<u64> {
        ack_token.reply().and_then(|reply| reply.parse().ok())
    }

    /// How many jobs the handlers say that they take at once, if they are remote.
    fn announced_slots(&self) -> Option<u32> {
        let more = if self.is(Mutation::FullHandlersNotSeen) { 9 } else { 0 };
        self.slots.map(|slots| slots + more)
    }

    /// An operator pauses something, or ends its pause: each node that is there hears of it.
    pub(crate) fn pauses(&self, paused: Paused, is_paused: bool) {
        self.say(|| format!("{paused:?} is paused: {is_paused}"));
        self.paused.borrow_mut().retain(|other| *other != paused);
        if is_paused {
            self.paused.borrow_mut().push(paused);
        }
        let queues = (0..self.nodes.len()).filter_map(|node| self.queue_of(node));
        queues.for_each(|queue| queue.pauses(paused, is_paused));
    }
}
