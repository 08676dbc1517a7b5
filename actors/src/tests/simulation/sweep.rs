//! The sweep of a simulated node: which schedules it reads and takes up is the choice that ships.

use std::cell::Cell;

use longshore_backbone::control::{GONE_AFTER, PRESENCE_EVERY as REAL_PRESENCE_EVERY};

use crate::api::stranded;
use crate::runtime::identity::is_first_of;
use crate::tests::simulation::client::Client;
use crate::tests::simulation::intake::bring_on;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{NEVER, Schedule};
use crate::tests::simulation::worker::LENGTH;
use crate::tests::simulation::world::{PRESENCE_EVERY, World, stamp};
use crate::time::sweep::round::{FIRST, MOVES, Round, is_overdue};

/// How many schedules a node reads at once: few, so that a pass has several pages.
const PAGE: usize = 3;

/// How far a node has read the schedules.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    from: Cell<u64>,
    swept_at: Cell<i64>,
    /// A round is under way.
    is_at_it: Cell<bool>,
}

impl Sweep {
    /// The node's process has started.
    pub(crate) fn starts(&self) {
        self.from.set(FIRST);
        self.swept_at.set(-1);
        self.is_at_it.set(false);
    }
}

impl World {
    /// When nodes sweep next: never, while no schedule stands that should have fired.
    pub(crate) fn next_sweep(&self) -> i64 {
        let now = self.clock.get();
        if !self.server.borrow().schedules.iter().any(|schedule| schedule.at <= now) {
            return NEVER;
        }
        (0..self.nodes.len()).map(|node| self.sweeps_at(node)).min().unwrap_or(NEVER)
    }

    /// When a node's next round is: the first one is as it starts.
    fn sweeps_at(&self, node: usize) -> i64 {
        let state = &self.nodes[node];
        if state.sweep.is_at_it.get() {
            return NEVER;
        }
        let (start, every) = (state.dead_until.get(), millis(stranded::grace(LENGTH)));
        let from = self.clock.get().max(state.sweep.swept_at.get() + 1).max(start);
        let tick = start + (from - start + every - 1) / every * every;
        tick.max(state.frozen_until.get())
    }

    /// Whether a node is to begin a round now; it has then begun it.
    pub(crate) fn begins_to_sweep(&self, node: usize) -> bool {
        let now = self.clock.get();
        let begins = self.sweeps_at(node) <= now;
        if begins {
            self.nodes[node].sweep.swept_at.set(now);
            self.nodes[node].sweep.is_at_it.set(true);
        }
        begins
    }
}

/// One round, which has begun.
pub(crate) async fn sweep(world: &World, node: usize) {
    sweep_round(world, node).await;
    world.nodes[node].sweep.is_at_it.set(false);
}

/// Moves the jobs of schedules that should have fired.
async fn sweep_round(world: &World, node: usize) {
    let (client, state) = (Client { world, node }, &world.nodes[node]);
    let is_first = !state.draining.get() && is_first_of(present(client).await.into_iter(), client.name());
    if !is_first {
        return state.sweep.from.set(FIRST);
    }
    let (mut overdue, mut round) = (Vec::new(), Round::new(state.sweep.from.get(), MOVES));
    while let Some(from) = round.reads_from() {
        let mut found = client.list(|server| schedules_from(&server.schedules, from)).await;
        let next = found.get(PAGE).map(|schedule| schedule.sequence);
        found.truncate(PAGE);
        let last = found.last().map_or(from, |schedule| schedule.sequence);
        let is_due = |schedule: &Schedule| is_overdue(stamp(schedule.at), stranded::grace(LENGTH), world.now());
        overdue.extend(found.into_iter().filter(is_due));
        let is_whole = round.has_read(0, next, overdue.len());
        let never_begins_again = is_whole && world.is(Mutation::SweepNeverBeginsAgain);
        state.sweep.from.set(if never_begins_again { last + 1 } else { round.from });
    }
    for schedule in overdue {
        bring_on(world, node, schedule).await;
    }
}

/// The names of the nodes that are there, as their presences say.
async fn present(client: Client<'_>) -> Vec<&str> {
    let world = client.world;
    client
        .list(|_| {
            let gone_after = PRESENCE_EVERY * millis(GONE_AFTER) / millis(REAL_PRESENCE_EVERY);
            let seen = |node: &usize| world.presence(*node).map(|(seen, _)| seen);
            let is_there = |node: &usize| seen(node).is_some_and(|seen| world.clock.get() - seen < gone_after);
            (0..world.nodes.len()).filter(is_there).map(|node| world.names[node].as_str()).collect()
        })
        .await
}

/// A page of the schedules, in their order, and the first one of the next.
fn schedules_from(all: &[Schedule], from: u64) -> Vec<Schedule> {
    let mut found: Vec<Schedule> = all.iter().filter(|schedule| schedule.sequence >= from).copied().collect();
    found.sort_unstable_by_key(|schedule| schedule.sequence);
    found.truncate(PAGE + 1);
    found
}

fn millis(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
