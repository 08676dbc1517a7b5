//! The gates of the nodes that get something from the cluster: what gets it runs, and a slot that nobody uses comes
//! back.

use super::Drive;
use crate::tests::simulation::breaking::run_todo;
use crate::tests::simulation::gated::{Gated, KEYS};
use crate::tests::simulation::server::{Message, NEVER, Schedule};
use crate::tests::simulation::slots::run_errand;
use crate::tests::simulation::tokens::run_request;
use crate::tests::simulation::world::{LEASE, Node};

/// Once all faults are over, a job waits no longer for a slot of a key that no job uses: a lease until its message
/// comes again, a lease until a dead node's session is ended, and the time that parking and the next pull take.
const SLOT_COMES_BACK_WITHIN: i64 = 20 * LEASE;
/// A message that no node has for longer than this was put off.
const ON_ITS_WAY: i64 = LEASE * 3 / 2;

impl Drive<'_> {
    /// When a node's slot-keeper, limiter or breakers have a reason to run.
    pub(super) fn runs_gates_at(&self, node: usize, frozen_until: i64) -> i64 {
        let (world, now) = (self.world, self.world.clock.get());
        let slots = world.keeping(node).map_or(NEVER, |keeping| keeping.next(now));
        let tokens = world.limiting(node).map_or(NEVER, |limiting| limiting.next(now));
        let breakers = world.breaking(node).map_or(NEVER, |breaking| breaking.next(now));
        slots.min(tokens).min(breakers).max(frozen_until)
    }

    /// Runs the actor of a node's breakers, if it has a reason to.
    pub(super) fn write_breakers(&mut self, node: usize, now: i64) {
        let world = self.world;
        let Some(breaking) = world.breaking(node) else { return };
        if breaking.next(now).max(world.nodes[node].frozen_until.get()) > now {
            return;
        }
        for todo in breaking.run(world) {
            self.spawn(node, false, Box::pin(run_todo(world, node, todo)));
        }
    }

    /// Runs a node's limiter, if it has a reason to.
    pub(super) fn ask_for_tokens(&mut self, node: usize, now: i64) {
        let world = self.world;
        let Some(limiting) = world.limiting(node) else { return };
        if limiting.next(now).max(world.nodes[node].frozen_until.get()) > now {
            return;
        }
        for request in limiting.run(now) {
            self.spawn(node, false, Box::pin(run_request(world, node, request)));
        }
    }

    /// Runs a node's slot-keeper, if it has a reason to.
    pub(super) fn keep_slots(&mut self, node: usize, now: i64) {
        let world = self.world;
        let Some(keeping) = world.keeping(node) else { return };
        if keeping.next(now).max(world.nodes[node].frozen_until.get()) > now {
            return;
        }
        let session = keeping.slots.session_id();
        for errand in keeping.run(now) {
            self.spawn(node, false, Box::pin(run_errand(world, node, errand)));
        }
        if keeping.slots.session_id() != session {
            // Attempts that rest on the former one are stopped at once.
            self.tasks.iter_mut().filter(|task| task.node == node && task.is_delivery).for_each(|task| task.at = now);
        }
    }

    /// A key of which jobs wait does not stay without any at work.
    pub(super) fn check_keys(&mut self, now: i64) {
        let world = self.world;
        if !matches!(world.gated, Gated::Keys(_) | Gated::Ordered) {
            return;
        }
        self.idle_since.resize(KEYS as usize, (0, 0));
        for key in 0..KEYS {
            let is_of_key = |plan: usize| world.plans[plan].group == Some(key);
            let server = world.server.borrow();
            // The run whose turn it is may wait for its time, or be put off.
            let is_ordered = world.gated == Gated::Ordered;
            let has_its_turn = |schedule: &Schedule| is_ordered && is_of_key(schedule.place.plan);
            let is_put_off = |message: &Message| is_ordered && message.until > now && is_of_key(message.place.plan);
            let ledger = world.ledger.borrow();
            let went_on = |plan: usize| is_of_key(plan) && ledger.went_on_at(plan) == now;
            let is_at_work = ledger.calls.iter().any(|call| is_of_key(call.plan))
                || (0..world.plans.len()).any(went_on)
                || server.lane.iter().any(is_put_off)
                || server.schedules.iter().any(has_its_turn)
                || server.due.iter().any(|due| has_its_turn(&due.schedule));
            let is_buffered = |node: &Node| {
                let queue = node.queue.borrow();
                node.frozen_until.get() <= now && queue.as_ref().is_some_and(|queue| queue.holds(is_of_key, now))
            };
            let waits = server.lane.iter().any(|message| message.until <= now && is_of_key(message.place.plan))
                || server.parked.iter().any(|parked| is_of_key(parked.schedule.place.plan))
                || world.nodes.iter().any(is_buffered);
            let (since, seen) = &mut self.idle_since[key as usize];
            if is_at_work || now < world.quiet_from.get() || waits && now - *seen > ON_ITS_WAY {
                *since = now;
            }
            if waits || *since == now {
                *seen = now;
            }
            if waits && now - *since > SLOT_COMES_BACK_WITHIN {
                drop(ledger);
                let (lane, parked) = (&server.lane, &server.parked);
                world.ledger.borrow_mut().accuse_all(format!(
                    "jobs of key {key} wait, and none of them is at work: lane {lane:?}, parked {parked:?}"
                ));
            }
        }
    }
}
