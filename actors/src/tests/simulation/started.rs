//! What follows from a step of a node: its committer is called, what it began is done, jobs are returned.

use crate::tests::simulation::client::Client;
use crate::tests::simulation::committer::carry_out;
use crate::tests::simulation::drive::{Drive, Task};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::{NEVER, Word};
use crate::tests::simulation::slow_work::do_slowly;

impl Drive<'_> {
    /// Starts what the last step of a node has asked for; it may wake tasks that wait for others.
    pub(super) fn start_what_was_asked(&mut self, node: usize, wakes: bool, now: i64) {
        self.return_dropped(node);
        self.start_slow_work();
        self.call_committers(now);
        if wakes {
            self.wake_those_that_wait(node, now);
        }
    }

    pub(super) fn start_slow_work(&mut self) {
        let world = self.world;
        loop {
            let asked = world.slow.borrow_mut().pop();
            let Some((node, slow)) = asked else { break };
            self.spawn(node, false, Box::pin(do_slowly(world, node, slow)));
        }
    }

    /// Jobs whose ack tokens were dropped go back to the server.
    pub(super) fn return_dropped(&self, node: usize) {
        let world = self.world;
        let is_lost = world.nodes[node].draining.get() && world.is(Mutation::BufferedJobsAckedAtDrain);
        let word = if is_lost { Word::Ack } else { Word::HandBack(0) };
        while let Some(number) = world.ack_tokens.take_dropped() {
            if let Some(sequence) = world.ack_tokens.sequence_of(number) {
                Client { world, node }.send(sequence, word);
            }
        }
    }

    /// Tasks without a time to go on wait for a commit, or for a worker's claim.
    fn wake_those_that_wait(&mut self, node: usize, now: i64) {
        self.tasks.iter_mut().filter(|task| task.node == node && task.at == NEVER).for_each(|task| task.at = now);
    }

    /// Committers that have something to do are woken, or started.
    pub(super) fn call_committers(&mut self, now: i64) {
        let world = self.world;
        for node in 0..world.nodes.len() {
            if !world.nodes[node].is_called.take() {
                continue;
            }
            let at = now + world.chance.between(0, 2);
            match self.tasks.iter_mut().find(|task| task.is_committer && task.node == node) {
                Some(committer) => committer.at = committer.at.min(at),
                None => {
                    let future = Box::pin(carry_out(world, node));
                    self.tasks.push(Task { node, at, is_delivery: false, is_committer: true, future });
                }
            }
        }
    }

    /// A committer panics; its node lives on, and starts another.
    pub(super) fn committer_dies(&mut self, at: usize, now: i64) {
        let node = self.tasks.swap_remove(at).node;
        self.world.say(|| format!("the committer of {} dies", self.world.names[node]));
        self.world.committing(node).dies();
        self.world.nodes[node].is_called.set(true);
        self.start_what_was_asked(node, true, now);
    }

    /// A node that is drained has no commit under way.
    pub(super) fn check_drained(&self, node: usize) {
        let committing = self.world.committing(node);
        if !committing.pipeline.try_lock().is_ok_and(|pipeline| pipeline.is_idle()) {
            self.world.ledger.borrow_mut().accuse_all("a node ends while commits are under way: stuck".to_owned());
        }
    }
}
