//! The circuit breakers of a simulated node: what it knows of them, and how it writes their steps, as they ship.
//! Rewritten is the loop of the actor that does so, which here runs whenever it might have a reason to.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use longshore_backbone::Error;
use longshore_backbone::breakers::{FoundBreaker, WrittenBreaker};
use longshore_domain::breaker::BreakerPolicy;
use longshore_domain::breaker::record::{Breaker, BreakerKey, Circuit};

use crate::limits::breaker::Breakers;
use crate::limits::breaker::keeper::{BreakerPorts, write};
use crate::tests::simulation::client::Client;
use crate::tests::simulation::gated::Entry;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::NEVER;
use crate::tests::simulation::worker::LENGTH;
use crate::tests::simulation::world::{LEASE, World};

/// How often breakers are looked at while one has something to write later, and all records are read.
const LOOK_AGAIN: i64 = 50;
const READ_EVERY: i64 = 5_000;
/// Steps that are written at once.
const AT_ONCE: usize = 64;
/// A job that is called now was let start by the gate less than this ago.
const CALLED_WITHIN: i64 = LEASE * 3 / 2;

/// Opens soon, and for long enough that a start meanwhile is seen.
pub(crate) fn policy() -> BreakerPolicy {
    let seconds = Duration::from_secs;
    BreakerPolicy { failures: 2, cool_down: seconds(3), max_cool_down: seconds(6), ..BreakerPolicy::default() }
}

/// The breakers of one process of a node, and what its actor knows beside.
pub(crate) struct Breaking {
    breakers: Arc<Breakers>,
    has_news: Cell<bool>,
    looks_at: Cell<i64>,
    reads_at: Cell<i64>,
}

/// What is to be done for the breakers of a node.
pub(crate) enum Todo {
    Step(BreakerKey),
    ReadAll,
}

impl Breaking {
    pub(crate) fn new(breakers: Arc<Breakers>) -> Self {
        Self { breakers, has_news: Cell::new(false), looks_at: Cell::new(NEVER), reads_at: Cell::new(0) }
    }

    /// When the actor's loop runs next.
    pub(crate) fn next(&self, now: i64) -> i64 {
        if self.breakers.due.notified().now_or_never().is_some() {
            self.has_news.set(true);
        }
        if self.has_news.get() { now } else { self.looks_at.get().min(self.reads_at.get()) }
    }

    /// A round of its loop.
    pub(crate) fn run(&self, world: &World) -> Vec<Todo> {
        let now = world.clock.get();
        self.has_news.set(false);
        let lease = if world.is(Mutation::ProbeOfTheDeadKept) { Duration::from_secs(3_600) } else { LENGTH };
        let (steps, more) = self.breakers.next_steps(AT_ONCE, lease);
        self.looks_at.set(if more { now + LOOK_AGAIN } else { NEVER });
        let mut todo: Vec<Todo> = steps.into_iter().map(Todo::Step).collect();
        if self.reads_at.get() <= now {
            self.reads_at.set(now + READ_EVERY);
            todo.push(Todo::ReadAll);
        }
        todo
    }
}

/// Does it.
pub(crate) async fn run_todo(world: &World, node: usize, todo: Todo) {
    let (Some(breaking), client) = (world.breaking(node), Client { world, node }) else { return };
    match todo {
        Todo::Step(of) => {
            let lease = if world.is(Mutation::ProbeOfTheDeadKept) { Duration::from_secs(3_600) } else { LENGTH };
            write(&client, &breaking.breakers, lease, &of).await;
        }
        Todo::ReadAll => {
            for found in client.list(|_| world.breakers()).await {
                learn(world, &breaking, found);
            }
            breaking.breakers.were_read();
        }
    }
    breaking.has_news.set(true);
}

/// A node learns of what another one wrote.
pub(crate) async fn learn_of(world: &World, node: usize, found: FoundBreaker) {
    world.travel().await;
    if let Some(breaking) = world.breaking(node) {
        learn(world, &breaking, found);
    }
}

fn learn(world: &World, breaking: &Breaking, found: FoundBreaker) {
    if !world.is(Mutation::BreakersOfOthersNotHeard) {
        breaking.breakers.learned(found.breaker, found.revision);
        breaking.has_news.set(true);
    }
}

impl World {
    fn breakers(&self) -> Vec<FoundBreaker> {
        let found = self.bucket.borrow().all(self.clock.get());
        let found = found.into_iter().filter_map(|(entry, revision)| match entry {
            Entry::Breaker(breaker) => Some(FoundBreaker { breaker: *breaker, revision }),
            _ => None,
        });
        found.collect()
    }

    /// Whether a call of a handler now is one too many: the breaker has been open for so long that its node knew it.
    /// One that was just frozen may not have known.
    pub(crate) fn is_open_to_all(&self, node: usize) -> bool {
        let now = self.clock.get();
        let is_open = |found: &FoundBreaker| {
            let since = found.breaker.since.millis();
            matches!(&found.breaker.state, Circuit::Open { until, .. } if since + CALLED_WITHIN < now && now < until.millis())
        };
        self.nodes[node].frozen_until.get() + CALLED_WITHIN < now && self.breakers().iter().any(is_open)
    }

    /// A breaker is written.
    pub(crate) fn check_breaker(&self, before: Option<&Entry>, after: &Entry) {
        if let (Some(Entry::Breaker(before)), Entry::Breaker(after)) = (before, after)
            && let (Circuit::Open { until, .. }, Circuit::HalfOpen { .. }) = (&before.state, &after.state)
            && self.now() < *until
        {
            self.ledger.borrow_mut().accuse_all("a breaker is half-open before it has cooled down".to_owned());
        }
    }
}

fn key_of(of: &BreakerKey) -> String {
    format!("breakers.{}.{}", of.tenant, of.job_type)
}

impl BreakerPorts for Client<'_> {
    async fn write(&self, breaker: &Breaker, expected: u64) -> Result<WrittenBreaker, Error> {
        let entry = Entry::Breaker(Box::new(breaker.clone()));
        let written = self.write_entry(&key_of(&breaker.of), entry, expected).await?;
        Ok(written.map_or(WrittenBreaker::Lost, WrittenBreaker::Won))
    }

    async fn read(&self, of: &BreakerKey) -> Result<Option<FoundBreaker>, Error> {
        Ok(match self.read_entry(&key_of(of)).await? {
            Some((Entry::Breaker(breaker), revision)) => Some(FoundBreaker { breaker: *breaker, revision }),
            _ => None,
        })
    }

    async fn announce(&self, breaker: &Breaker) {
        self.world.say(|| format!("{} says that a breaker has changed: {:?}", self.name(), breaker.state));
    }

    async fn pause(&self, wait: Duration) {
        self.world.pause(i64::try_from(wait.as_millis()).unwrap_or(NEVER)).await;
    }

    fn chance(&self) -> f64 {
        self.world.chance.unit()
    }
}
