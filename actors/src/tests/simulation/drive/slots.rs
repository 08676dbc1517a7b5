//! The slots of the nodes: their keepers run, and a slot that nobody uses comes back.

use super::Drive;
use crate::tests::simulation::gated::{Gated, KEYS};
use crate::tests::simulation::server::NEVER;
use crate::tests::simulation::slots::run_errand;
use crate::tests::simulation::world::LEASE;

/// Once all faults are over, a job waits no longer for a slot of a key that no job uses: a lease until its message
/// comes again, a lease until a dead node's session is ended, and the time that parking and the next pull take.
const SLOT_COMES_BACK_WITHIN: i64 = 5 * LEASE;

impl Drive<'_> {
    /// When a node's slot-keeper has a reason to run.
    pub(super) fn keeps_slots_at(&self, node: usize, frozen_until: i64) -> i64 {
        let now = self.world.clock.get();
        self.world.keeping(node).map_or(NEVER, |keeping| keeping.next(now).max(frozen_until))
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
        if world.gated == Gated::No {
            return;
        }
        self.idle_since.resize(KEYS as usize, 0);
        for key in 0..KEYS {
            let is_of_key = |plan: usize| world.plans[plan].group == Some(key);
            let is_at_work = world.ledger.borrow().calls.iter().any(|call| is_of_key(call.plan));
            let server = world.server.borrow();
            let waits = server.lane.iter().any(|message| is_of_key(message.place.plan))
                || server.parked.iter().any(|parked| is_of_key(parked.schedule.place.plan));
            let since = &mut self.idle_since[key as usize];
            if is_at_work || !waits || now < world.quiet_from.get() {
                *since = now;
            } else if now - *since > SLOT_COMES_BACK_WITHIN {
                world.ledger.borrow_mut().accuse_all(format!("jobs of key {key} wait, and none of them is at work"));
            }
        }
    }
}
