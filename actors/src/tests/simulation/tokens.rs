//! The tokens of a simulated node: its table of limits and what asks the cluster for tokens, as they ship. Rewritten is
//! the limiter's loop, which here runs whenever it might have a reason to.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::Error;
use longshore_domain::limit::{LimitId, Record};

use crate::limits::rate::Limits;
use crate::limits::rate::keeper::{Asking, LimitPorts, Request, carry_out};
use crate::tests::simulation::client::Client;
use crate::tests::simulation::gated::Entry;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::NEVER;
use crate::tests::simulation::world::World;

/// How often tokens that are not used are looked for.
const TICK: i64 = 50;

/// The limits of one process of a node, and what asks for their tokens.
pub(crate) struct Limiting {
    asking: RefCell<Asking>,
    ticks_at: Cell<i64>,
}

impl Limiting {
    pub(crate) fn new(limits: Arc<Limits>) -> Self {
        Self { asking: RefCell::new(Asking::new(limits)), ticks_at: Cell::new(0) }
    }

    /// When the limiter's loop runs next.
    pub(crate) fn next(&self, now: i64) -> i64 {
        match self.asking.borrow().is_called() {
            Some(true) => now,
            Some(false) => self.ticks_at.get(),
            None => NEVER,
        }
    }

    /// A round of its loop; returns what is to be asked of the cluster.
    pub(crate) fn run(&self, now: i64) -> Vec<Request> {
        if self.ticks_at.get() > now {
            return self.asking.borrow_mut().ask();
        }
        self.ticks_at.set(now + TICK);
        self.asking.borrow_mut().tick()
    }
}

/// Asks the cluster for the limiter of a node.
pub(crate) async fn run_request(world: &World, node: usize, request: Request) {
    let Some(limiting) = world.limiting(node) else { return };
    if let Some(answered) = carry_out(&Client { world, node }, request).await {
        limiting.asking.borrow_mut().answered(answered);
    }
}

impl LimitPorts for Client<'_> {
    async fn read_limit(&self, id: &LimitId) -> Result<(Option<Record>, u64), Error> {
        Ok(match self.read_entry(&format!("limits.{id}")).await? {
            Some((Entry::Limit(record), revision)) => (Some(record), revision),
            _ => (None, 0),
        })
    }

    async fn write_limit(&self, id: &LimitId, next: &Record, mut expected: u64, _: Duration) -> Result<bool, Error> {
        if self.world.is(Mutation::LimitOverwritten) {
            expected = self.read_entry(&format!("limits.{id}")).await?.map_or(0, |(_, revision)| revision);
        }
        let written = self.write_entry(&format!("limits.{id}"), Entry::Limit(next.clone()), expected).await;
        Ok(written?.is_some() || self.world.is(Mutation::TokensOfALostWriteUsed))
    }

    async fn pause(&self, most: Duration) {
        let most = i64::try_from(most.as_millis()).unwrap_or(NEVER);
        self.world.pause(self.world.chance.between(1, most.max(1))).await;
    }
}
