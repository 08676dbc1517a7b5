//! A commit on its way, without the pipeline of the shipped committer: record, events, then the shipped follow-up.

use std::rc::Rc;
use std::time::Duration;

use longshore_domain::RunState;

use crate::attempt::assignment::{Assignment, Start};
use crate::commit::follow_up::{self, Done};
use crate::commit::{AfterCommit, Commit, Payload};
use crate::ports::{Ports as _, RunPorts as _};
use crate::queue::gates::answer::Permits;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::Word;
use crate::tests::simulation::worker::Hand;
use crate::tests::simulation::world::World;
use std::sync::Arc;

impl Hand<'_> {
    /// Commits are carried out in order. One that only publishes a start may still lie there when its attempt goes on.
    pub(crate) async fn take(&self, commit: Box<Commit>) {
        if commit.write.is_some() || !matches!(commit.after, AfterCommit::Nothing) {
            self.commit_the_rest().await;
            return self.carry_out(commit).await;
        }
        self.uncommitted.borrow_mut().push_back(commit);
        if self.world.chance.hits(5_000) {
            self.commit_the_rest().await;
        }
    }

    pub(crate) async fn commit_the_rest(&self) {
        loop {
            let next = self.uncommitted.borrow_mut().pop_front();
            let Some(mut commit) = next else { return };
            self.publish_lines(&mut commit).await;
        }
    }

    async fn carry_out(&self, mut commit: Box<Commit>) {
        let world = self.world;
        let takes_over = self.takes_over.take();
        if takes_over && world.is(Mutation::CarriedOutWithoutTakingOver) {
            let revision = commit.write.as_ref().map_or(0, |write| write.expected);
            commit.written(revision);
        } else if commit.write.is_some() {
            match self.put_on_record(commit).await {
                Some(stored) => commit = stored,
                None => return,
            }
        }
        let dead = commit.run.state == RunState::Dead;
        if world.is(Mutation::AckBeforeEvents) {
            self.send(Word::Ack).await;
        }
        let early = if dead { Mutation::LetterBeforeEvents } else { Mutation::ScheduleBeforeEvents };
        if world.is(early) {
            follow_up::follow(self, Box::new(self.follow_up_alone(&commit))).await;
        }
        self.publish_lines(&mut commit).await;
        let before = if dead { Mutation::AckBeforeLetter } else { Mutation::AckBeforeSchedule };
        if world.is(before) && commit.follow_up.is_some() {
            self.send(Word::Ack).await;
        }
        if takes_over && world.is(Mutation::TakenOverAndHeldLocally) {
            return self.hold_taken_over(*commit).await;
        }
        if follow_up::is_needed(&commit) {
            follow_up::follow(self, commit).await;
        } else {
            follow_up::end(self, commit).await;
        }
    }

    /// Its follow-up without its delivery.
    fn follow_up_alone(&self, commit: &Commit) -> Commit {
        let nothing = crate::commit::encode::EncodedEvents::default();
        let mut alone = Commit::with_events(commit.run.clone(), Payload::default(), nothing);
        alone.follow_up = commit.follow_up;
        alone
    }

    /// The record is sent until it is answered; a refusal is cleared up by the shipped code.
    async fn put_on_record(&self, mut commit: Box<Commit>) -> Option<Box<Commit>> {
        let (plan, key) = self.place_of_run(&commit.run);
        let mut expected = commit.write.as_ref().map_or(0, |write| write.expected);
        if self.world.is(Mutation::EndOverwrites) {
            expected = self.client.read(key).await.map_or(0, |stored| stored.revision);
        }
        if key == World::timed_key(plan) {
            self.world.ledger.borrow_mut().may_be_live_again(plan);
        }
        let run = Rc::new((*commit.run).clone());
        if let Some(revision) = self.client.store(plan, key, expected, (&run, u32::MAX)).await.flatten() {
            commit.written(revision);
            return Some(commit);
        }
        match follow_up::clear_up(self, self.metrics(), commit).await {
            Done::OnRecord(commit) => Some(commit),
            Done::Over => {
                if self.world.is(Mutation::LostEndIsAcked) {
                    self.send(Word::Ack).await;
                }
                None
            }
        }
    }

    /// Publishes the events that the commit has as bytes: they are the last of their round.
    async fn publish_lines(&self, commit: &mut Commit) {
        let (before, lines) = (commit.live_before.take().unwrap_or_default(), std::mem::take(&mut commit.lines));
        // Bytes without a branch or an overflow to look for are counted many at once.
        let ends = |log: &[u8]| log.iter().map(|byte| usize::from(*byte == b'\n')).fold(0, usize::wrapping_add);
        let logged = ends(before.log()) + ends(lines.log());
        let plan = self.place_of_run(&commit.run).0;
        self.client.publish_last(plan, &commit.run, (lines.count(), logged)).await;
    }

    /// The mutation that holds a run locally which it has only taken over.
    async fn hold_taken_over(&self, commit: Commit) {
        let revision = commit.write.as_ref().map_or(0, |write| write.expected);
        let Commit { run, arrival, after, .. } = commit;
        let (Some(arrival), Some(ack_token)) = (arrival, after.into_ack_token()) else { return };
        let wait = run.state.run_at().unwrap_or_default().since(self.world.now());
        let entry = self.book.enter(&ack_token, self.message(), self.plan.job(), self.instant());
        self.wait_or_drain(wait.min(Duration::from_secs(5))).await;
        if entry.as_ref().is_some_and(|entry| entry.stop.is_lost()) {
            return ack_token.abandon();
        }
        *self.mutant.borrow_mut() = Some(Box::new(Assignment {
            job: Arc::new(self.plan.job().clone()),
            payload: Payload::default(),
            since: arrival.holding.message.at,
            arrival,
            leased_from: self.instant(),
            entry,
            permits: Permits::default(),
            park: None,
            place: None,
            is_returned: false,
            ack_token,
            start: Start::HeldLocally(run, revision),
        }));
    }
}
