//! What a node knows as a job begins: how old its delivery may be and which runs are cancelled, as the shipped types
//! keep it. The domain decides by it whether the job takes the fast path, unless a mutation hides something from it.

use std::time::Duration;

use longshore_domain::JobOptions;
use longshore_domain::fast_path::{self, Candidate};
use longshore_domain::freshness::Freshness;

use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::worker::{Hand, LENGTH};
use crate::tests::simulation::world::{HEARD_WITHIN, World};

/// A probe is answered within this time, at most.
const ANSWERED_WITHIN: i64 = 10;

impl World {
    /// A process knows nothing that is older than itself.
    pub(crate) fn fresh_since(&self, started_at: i64) -> Freshness {
        Freshness::new(self.instant(started_at), LENGTH)
    }

    /// The last probe of a node that it sent and whose answer it read before `at`, unless it slept then.
    pub(crate) fn probe(&self, node: usize, at: i64) {
        let state = &self.nodes[node];
        let awake_since = state.frozen_until.get().max(state.dead_until.get());
        let mut freshness = state.freshness.borrow_mut();
        let Some(freshness) = freshness.as_mut() else { return };
        let every = i64::try_from(freshness.every().as_millis()).unwrap_or(i64::MAX);
        let sent_at = at - self.chance.between(1, every + ANSWERED_WITHIN);
        if sent_at >= awake_since
            && let Some(number) = freshness.ask(self.instant(sent_at))
        {
            freshness.answered(number);
        }
    }

    /// Since when a delivery that a node reads now, and that the server sent at this time, may have been on its way.
    pub(crate) fn read_since(&self, node: usize, sent_at: i64) -> i64 {
        self.probe(node, sent_at);
        let freshness = self.nodes[node].freshness.borrow();
        freshness.as_ref().map_or(sent_at, |freshness| self.millis(freshness.since()))
    }
}

impl Hand<'_> {
    pub(super) fn takes_fast_path(&self, known: &Candidate<'_>) -> bool {
        let world = self.world;
        // Everything here is short compared with the product.
        let mut known =
            Candidate { confirmed_within: Duration::from_millis(HEARD_WITHIN.unsigned_abs()), ..known.clone() };
        let options = known.options.cloned().unwrap_or_default();
        let lied = match world.mutation {
            Some(Mutation::FastPathForNamedRuns) => JobOptions { own_run_id: false, ..options },
            Some(Mutation::FastPathForKeyedRuns) => JobOptions { idempotency_key: None, ..options },
            _ => options,
        };
        known.options = Some(&lied);
        match world.mutation {
            Some(Mutation::FastPathAfterTheServerDied) => known.mark = 0,
            Some(Mutation::FastPathForJobsLongBuffered) => known.buffered_for = Duration::ZERO,
            Some(Mutation::FastPathForCancelledRuns) => known.is_cancelled = false,
            _ => {}
        }
        let is_open = fast_path::is_open(&known);
        if is_open {
            world.say(|| format!("{} takes {} on the fast path", self.client.name(), self.sequence()));
        }
        is_open
    }

    /// The node learns of the cancels that have reached it by now.
    pub(super) fn hears_cancels(&self) {
        let now = self.world.clock.get();
        let orders = self.world.nodes[self.client.node].orders_to_stop.borrow();
        for order in orders.iter().filter(|order| order.from <= now) {
            let job = self.world.plans[order.plan].job();
            self.recently_cancelled.add(&job.tenant, &job.run_id);
        }
    }
}
