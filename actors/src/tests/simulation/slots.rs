//! The slots of a simulated node: its table and the keeper that ship, and what the keeper asks for by the code that
//! ships. Rewritten is the keeper's loop, which here runs whenever it might have a reason to.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use longshore_backbone::Error;
use longshore_backbone::breakers::FoundBreaker;
use longshore_backbone::concurrency::{News, Wish, Written};
use longshore_domain::SmolStr;
use longshore_domain::breaker::record::Breaker;
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{ConcurrencyId, SlotRecord};

use crate::limits::concurrency::errands::{Done, Errand, SlotKeeperPart, SlotPorts};
use crate::limits::concurrency::keeper::{Keeper, WISH_EVERY, watch_every};
use crate::limits::concurrency::{SlotPermit, Slots};
use crate::tests::simulation::client::Client;
use crate::tests::simulation::gated::{Entry, Gated};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::NEVER;
use crate::tests::simulation::slow_work::Slow;
use crate::tests::simulation::worker::{Hand, LENGTH};
use crate::tests::simulation::world::World;

/// How often the keeper looks: as rarely, compared with the lease, as makes no difference.
const TICK: i64 = 50;

/// The slots of one process of a node, and what keeps them.
pub(crate) struct Keeping {
    pub(crate) slots: Arc<Slots>,
    keeper: RefCell<Keeper>,
    has_news: Cell<bool>,
    ticks_at: Cell<i64>,
    wishes_at: Cell<i64>,
    watches_at: Cell<i64>,
}

impl Keeping {
    pub(crate) fn new(slots: Arc<Slots>) -> Self {
        let keeper = RefCell::new(Keeper::new(Arc::clone(&slots), LENGTH));
        let at = Cell::default;
        Self { slots, keeper, has_news: Cell::new(false), ticks_at: at(), wishes_at: at(), watches_at: at() }
    }

    /// When the keeper's loop runs next.
    pub(crate) fn next(&self, now: i64) -> i64 {
        if self.slots.due.notified().now_or_never().is_some() {
            self.has_news.set(true);
        }
        match () {
            () if self.has_news.get() => now,
            () if !self.keeper.borrow().is_used() => NEVER,
            () => self.ticks_at.get().min(self.wishes_at.get()).min(self.watches_at.get()),
        }
    }

    /// A round of its loop; returns what is to be asked of the cluster.
    pub(crate) fn run(&self, now: i64) -> Vec<Errand> {
        let mut keeper = self.keeper.borrow_mut();
        self.has_news.set(false);
        if keeper.is_used() {
            if is_time(&self.ticks_at, Duration::from_millis(TICK.unsigned_abs()), now) {
                keeper.tick();
            }
            if is_time(&self.wishes_at, WISH_EVERY, now) {
                keeper.wish_again();
            }
            if is_time(&self.watches_at, watch_every(LENGTH), now) {
                keeper.watch();
            }
        }
        let mut errands = keeper.look();
        // Tables have no order, and a world is a function of its seed.
        errands.sort_by_key(Errand::name);
        errands
    }

    /// The server was killed: what it republished meanwhile did not come.
    pub(crate) fn reads_again(&self) {
        self.slots.read_again();
        self.has_news.set(true);
    }
}

impl Errand {
    fn name(&self) -> (u8, SmolStr) {
        match self {
            Self::Limit(id, _) => (0, SmolStr::new(id.to_string())),
            Self::Watch(session) => (1, session.clone()),
            Self::EndFormer(session) => (2, session.id.clone()),
            Self::Announce(_) => (3, SmolStr::default()),
            Self::Renew(..) => (4, SmolStr::default()),
            Self::Leave(_) => (5, SmolStr::default()),
        }
    }
}

/// Whether it is time for what is to happen this often.
fn is_time(at: &Cell<i64>, every: Duration, now: i64) -> bool {
    let is_time = at.get() <= now;
    if is_time {
        at.set(now + i64::try_from(every.as_millis()).unwrap_or(NEVER));
    }
    is_time
}

/// Asks the cluster for the keeper of a node.
pub(crate) async fn run_errand(world: &World, node: usize, errand: Errand) {
    let Some(keeping) = world.keeping(node) else { return };
    let part = SlotKeeperPart {
        records: Client { world, node },
        node: world.names[node].clone(),
        lease: LENGTH,
        slots: Arc::clone(&keeping.slots),
        metrics: Arc::clone(&world.metrics),
    };
    let done: Done = part.carry_out(errand).await;
    keeping.keeper.borrow_mut().done(done);
    keeping.has_news.set(true);
}

/// A node hears of what another one wrote or wishes.
pub(crate) async fn hear(world: &World, node: usize, news: News) {
    world.travel().await;
    if let Some(keeping) = world.keeping(node) {
        keeping.slots.heard(news);
        keeping.has_news.set(true);
    }
}

impl World {
    /// The nodes that are there hear of what was stored.
    pub(crate) fn republishes(&self, key: &str, entry: &Entry, revision: u64) {
        if let Entry::Breaker(breaker) = entry {
            for node in (0..self.nodes.len()).filter(|node| self.breaking(*node).is_some()) {
                let breaker = Breaker::clone(breaker);
                self.begin_slow(node, Slow::LearnsOf(FoundBreaker { breaker, revision }));
            }
        }
        let Entry::Slots(record) = entry else { return };
        let id = key.strip_prefix("slots.").and_then(ConcurrencyId::read).expect("records of slots have such keys");
        for node in self.nodes_with_slots() {
            self.begin_slow(node, Slow::Hears(News::Record(id.clone(), record.clone(), revision)));
        }
    }

    fn nodes_with_slots(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| self.keeping(*node).is_some())
    }
}

impl SlotPorts for Client<'_> {
    async fn read(&self, id: &ConcurrencyId) -> Result<(SlotRecord, u64), Error> {
        Ok(match self.read_entry(&format!("slots.{id}")).await? {
            Some((Entry::Slots(record), revision)) => (record, revision),
            _ => (SlotRecord::default(), 0),
        })
    }

    async fn write(&self, id: &ConcurrencyId, record: &SlotRecord, expected: u64) -> Result<Written, Error> {
        let written = self.write_entry(&format!("slots.{id}"), Entry::Slots(record.clone()), expected).await;
        if self.world.is(Mutation::SlotUsedBeforeItIsConfirmed) && !matches!(written, Ok(Some(_))) {
            return Ok(Written::Won(expected));
        }
        Ok(written?.map_or(Written::Lost, Written::Won))
    }

    async fn session(&self, session: &str) -> Result<Option<(Session, u64)>, Error> {
        let Some((Entry::Session(mut found), mut revision)) = self.read_entry(&format!("sessions.{session}")).await?
        else {
            return Ok(None);
        };
        if found.node != self.name() {
            match self.world.mutation {
                Some(Mutation::SessionOfTheDeadNeverEnded) => revision += self.world.number(),
                Some(Mutation::SessionEndedWhileItLasts) => found.lease_ms /= 4,
                _ => {}
            }
        }
        Ok(Some((found, revision)))
    }

    async fn write_session(&self, of: &str, session: &Session, expected: u64) -> Result<Written, Error> {
        let written = self.write_entry(&format!("sessions.{of}"), Entry::Session(session.clone()), expected).await?;
        Ok(written.map_or(Written::Lost, Written::Won))
    }

    async fn wish(&self, wish: &Wish) {
        for node in self.world.nodes_with_slots().filter(|node| *node != self.node) {
            self.world.begin_slow(node, Slow::Hears(News::Wish(wish.clone())));
        }
    }

    async fn pause(&self, wait: Duration) {
        self.world.pause(i64::try_from(wait.as_millis()).unwrap_or(NEVER)).await;
    }

    async fn within<T>(&self, wait: Duration, of: impl Future<Output = T>) -> Option<T> {
        let (mut of, mut over) = (pin!(of), pin!(self.world.pause(i64::try_from(wait.as_millis()).unwrap_or(NEVER))));
        poll_fn(|context| match of.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => over.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    fn chance(&self) -> f64 {
        self.world.chance.unit()
    }
}

impl Hand<'_> {
    /// The slots that the attempt rests on.
    pub(crate) fn slots(&self) -> Option<Arc<SlotPermit>> {
        self.current().as_ref().and_then(|running| running.assignment.permits.slots.clone())
    }

    /// Whether others may have the attempt's slots by now.
    pub(crate) fn has_lost_slots(&self) -> bool {
        !self.world.is(Mutation::WorkGoesOnWithoutItsSlots)
            && self.slots().is_some_and(|slots| !slots.spend(self.world.instant(self.world.clock.get())))
    }
}

impl Gated {
    /// How many jobs of a key run at once.
    pub(crate) fn most_of_a_key(self) -> usize {
        match self {
            Self::No | Self::Limited(_) | Self::Breaks => usize::MAX,
            Self::Keys(slots) => slots as usize,
            Self::Ordered => 1,
        }
    }
}
