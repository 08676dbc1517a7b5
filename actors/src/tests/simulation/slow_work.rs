//! The slow steps of commits, by the shipped follow-up, each in a task of its own that outlives the committer; and the
//! mutations that take such a step too early.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::breakers::FoundBreaker;
use longshore_backbone::concurrency::News;
use longshore_domain::follow_up::FollowUp;
use longshore_domain::{Run, RunState};

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::permits::Permits;
use crate::attempt::ports::Ports as _;
use crate::commit::follow_up::{self, Done};
use crate::commit::{Commit, PublishedJob};
use crate::ports::RunPorts as _;
use crate::ports::encode::EncodedEvents;
use crate::tests::simulation::breaking::learn_of;
use crate::tests::simulation::committer::Origin;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::server::Word;
use crate::tests::simulation::slots::hear;
use crate::tests::simulation::worker::{Hand, work_on};
use crate::tests::simulation::world::World;

/// Work that a committer begins and does not wait for, and news on their way.
#[derive(Debug)]
pub(crate) enum Slow {
    ClearUp(Box<Commit>),
    Follow(Box<Commit>),
    /// The follow-up alone, by a mutation, before the events.
    Early(Box<Run>, FollowUp, Origin),
    /// What another node wrote or wishes arrives.
    Hears(News),
    LearnsOf(FoundBreaker),
    /// A mutation holds a run locally which its node has only taken over.
    HeldTakenOver(Box<Commit>),
}

impl World {
    pub(crate) fn begin_slow(&self, node: usize, slow: Slow) {
        self.slow.borrow_mut().push((node, slow));
    }
}

/// Does such work, and reports to the committer.
pub(crate) async fn do_slowly(world: &World, node: usize, slow: Slow) {
    let done = match slow {
        Slow::ClearUp(commit) => {
            let hand = world.hand_on(node, world.origin_of(&commit));
            let done = follow_up::clear_up(&hand, hand.metrics(), commit).await;
            if matches!(done, Done::Over) && world.is(Mutation::LostEndIsAcked) {
                hand.send(Word::Ack);
            }
            done
        }
        Slow::Follow(commit) => {
            let hand = world.hand_on(node, world.origin_of(&commit));
            let before = match commit.run.state.name() {
                RunState::Dead => Mutation::AckBeforeLetter,
                RunState::Completed => Mutation::AckBeforeNextLink,
                _ => Mutation::AckBeforeSchedule,
            };
            if world.is(before) && commit.follow_up.is_some() {
                hand.send(Word::Ack);
            }
            follow_up::follow(&hand, commit).await;
            Done::Over
        }
        Slow::Early(run, follow_up, origin) => {
            let mut alone = Commit::with_events(run, PublishedJob::default(), EncodedEvents::default());
            alone.follow_up = Some(follow_up);
            follow_up::follow(&world.hand_on(node, origin), Box::new(alone)).await;
            return;
        }
        Slow::LearnsOf(found) => return learn_of(world, node, found).await,
        Slow::Hears(news) => return hear(world, node, news).await,
        Slow::HeldTakenOver(commit) => {
            Box::pin(hold_taken_over(world, node, commit)).await;
            Done::Over
        }
    };
    world.reports(node, done);
}

async fn hold_taken_over(world: &World, node: usize, commit: Box<Commit>) {
    let hand = world.hand_on(node, world.origin_of(&commit));
    if let Some(held) = hand.hold_taken_over(*commit).await {
        work_on(&hand, Some(held)).await;
    }
}

impl Hand<'_> {
    async fn hold_taken_over(&self, commit: Commit) -> Option<Box<Assignment>> {
        let revision = commit.write.as_ref().map_or(0, |write| write.expected);
        let Commit { run, arrival, after, .. } = commit;
        let (arrival, ack_token) = (arrival?, after.into_ack_token()?);
        let wait = run.state.run_at().unwrap_or_default().since(self.world.now());
        let entry = self.book.enter(&ack_token, self.message(), self.plan.job(), self.instant());
        self.wait_or_drain(wait.min(Duration::from_secs(5))).await;
        if entry.as_ref().is_some_and(|entry| entry.stop.is_lost()) {
            ack_token.abandon();
            return None;
        }
        Some(Box::new(Assignment {
            job: Arc::new(self.plan.job().clone()),
            payload: PublishedJob::default(),
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
        }))
    }
}
