//! What happens in the queues of the nodes: they pull, messages are delivered to those that have pulled, and jobs that
//! wait elsewhere are taken up again.

use super::{Drive, Message};
use crate::tests::simulation::delivery::{arrive, work};
use crate::tests::simulation::parking::look;
use crate::tests::simulation::server::NEVER;
use crate::tests::simulation::sweep::sweep;
use crate::tests::simulation::worker::Delivery;

impl Drive<'_> {
    /// When a node's queue has a reason to run.
    pub(super) fn runs_queue_at(&self, node: usize, frozen_until: i64) -> i64 {
        let (queue, now) = (self.world.nodes[node].queue.borrow(), self.world.clock.get());
        queue.as_ref().map_or(NEVER, |queue| queue.runs_next(now).max(frozen_until))
    }

    /// When a node is there.
    pub(super) fn alive_at(&self) -> i64 {
        self.world.nodes.iter().map(|node| node.dead_until.get()).min().unwrap_or(NEVER)
    }

    /// When a node sweeps schedules, or looks for parked jobs.
    pub(super) fn looks_at(&self) -> i64 {
        let world = self.world;
        let are_parked = !world.server.borrow().parked.is_empty();
        (0..3).map(|node| world.next_look(node, are_parked)).fold(world.next_sweep(), i64::min)
    }

    /// From when on a message of a lane waits for a node that has pulled from it.
    pub(super) fn pulled_at(&self, lanes: [i64; 2]) -> i64 {
        let mut at = NEVER;
        for node in 0..3 {
            let queue = self.world.nodes[node].queue.borrow();
            for (lane, waits_from) in lanes.into_iter().enumerate() {
                let pulls_from = match queue.as_ref() {
                    Some(queue) if queue.has_pulled_from(lane == 1) => 0,
                    Some(_) => NEVER,
                    None => self.world.starts_queue_at(node),
                };
                at = at.min(waits_from.max(pulls_from));
            }
        }
        at
    }

    /// A node that has pulled from a lane in which messages wait.
    fn node_that_pulled(&self, waits: [bool; 2]) -> Option<usize> {
        let has_pulled = |node: &usize| {
            let queue = self.world.nodes[*node].queue.borrow();
            let has = |lane: usize| waits[lane] && queue.as_ref().is_some_and(|queue| queue.has_pulled_from(lane == 1));
            has(0) || has(1)
        };
        let first = self.world.chance.below(3) as usize;
        (first..first + 3).map(|node| node % 3).find(has_pulled)
    }

    /// Delivers the messages that wait in the lanes to nodes that have pulled from them.
    pub(super) fn deliver(&mut self, now: i64) {
        let world = self.world;
        self.start_queues(now);
        loop {
            let (_, _, lanes) = world.server.borrow().next();
            let Some(node) = self.node_that_pulled(lanes.map(|at| at <= now)) else { break };
            let queue = world.queue(node);
            let is_pulled = |message: &Message| queue.has_pulled_from(message.returned);
            let Some((message, behind)) = world.server.borrow_mut().hand_out(now, is_pulled, &world.chance) else {
                break;
            };
            queue.is_sent(&message);
            self.learn_cancels(node);
            world.say(|| {
                let (sequence, delivered, name) = (message.sequence, message.delivered, &world.names[node]);
                format!("{sequence}#{delivered} of run {} goes to {name}", message.place.plan)
            });
            let (server_life, floor) = (world.server_life.get(), self.floor);
            let delivery = Delivery { message, sent_at: now, server_life, floor, behind };
            self.spawn(node, false, Box::pin(arrive(world, node, delivery)));
        }
    }

    /// Nodes for which there is something have a queue that pulls.
    fn start_queues(&mut self, now: i64) {
        let world = self.world;
        if world.server.borrow().lane.is_empty() && world.server.borrow().parked.is_empty() {
            return;
        }
        for node in 0..3 {
            if world.queue_of(node).is_none() && world.starts_queue_at(node) <= now {
                world.queue(node);
                self.run_queue(node, now);
            }
        }
    }

    /// Runs the loop of a node's scheduler, if it has a reason to.
    pub(super) fn run_queue(&mut self, node: usize, now: i64) {
        let (world, state) = (self.world, &self.world.nodes[node]);
        if self.runs_queue_at(node, state.frozen_until.get()) > now {
            return;
        }
        let Some(queue) = world.queue_of(node) else { return };
        for given in queue.run(world, state.draining.get()) {
            self.spawn(node, true, Box::pin(work(world, node, given)));
        }
        self.return_dropped(node);
        self.end_drain(node, now);
    }

    /// Nodes sweep schedules that did not fire, and take parked jobs back.
    pub(super) fn take_stored(&mut self, now: i64) {
        let world = self.world;
        let (sweeps, are_parked) = (world.next_sweep() <= now, !world.server.borrow().parked.is_empty());
        for node in 0..3 {
            if sweeps && world.begins_to_sweep(node) {
                self.spawn(node, false, Box::pin(sweep(world, node)));
            }
            if world.next_look(node, are_parked) <= now {
                self.spawn(node, false, Box::pin(look(world, node, world.queue(node))));
            }
        }
    }
}
