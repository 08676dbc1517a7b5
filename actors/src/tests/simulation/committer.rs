//! The committer of a simulated node: the shipped pipeline, with the outlets of this world.
//!
//! As in the product, what waits for it outlives it, and dies with the process. It takes input, answers and the reports
//! of slow work in any order, one at a time, and stops between any two steps and in the middle of one: then it may die.
//! Here it also ends when it awaits nothing; the next commit starts it again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::window::PublishAnswer;
use longshore_domain::Run;
use longshore_domain::publication::Published;
use tokio::sync::{Mutex, oneshot};

use crate::commit::follow_up::{self, Done};
use crate::commit::pipeline::{Input, Outlets, Pipeline, Sent};
use crate::commit::{AfterCommit, Commit, PublishedJob};
use crate::metrics::Metrics;
use crate::ports::encode::EncodedEvents;
use crate::ports::{RunPorts as _, Unlogged};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::slow_work::Slow;
use crate::tests::simulation::worker::{Delivery, Does, Hand};
use crate::tests::simulation::world::World;

/// Commits that may be between record and acknowledgement: few, so that some have to wait.
const IN_FLIGHT: usize = 4;
/// An answer that takes longer was lost.
const ANSWER_WITHIN: i64 = 150;
/// How often it checks for overdue answers, in milliseconds.
const LOOK_EVERY: i64 = 60;

/// What the committers of one process have in common.
#[derive(Debug)]
pub(crate) struct Committing {
    pub(crate) pipeline: Mutex<Pipeline>,
    inbox: RefCell<VecDeque<Input>>,
    answers: RefCell<Vec<(u64, PublishAnswer)>>,
    done: RefCell<Vec<Done>>,
    /// How many of them have died.
    pub(crate) deaths: Cell<u32>,
    /// The one that begins is not the first since the last one died.
    is_tidy: Cell<bool>,
    /// The numbers of the messages that this committer has sent, in order: a window of its own counts them.
    pub(crate) window: RefCell<Vec<u64>>,
}

impl Committing {
    pub(crate) fn new(max_payload: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            pipeline: Mutex::new(Pipeline::new(max_payload, metrics, None)),
            inbox: RefCell::default(),
            answers: RefCell::default(),
            done: RefCell::default(),
            deaths: Cell::new(0),
            is_tidy: Cell::new(true),
            window: RefCell::default(),
        }
    }

    /// The committer has died, and with it its window. Another one follows.
    pub(crate) fn dies(&self) {
        self.deaths.set(self.deaths.get() + 1);
        self.is_tidy.set(false);
        self.window.borrow_mut().clear();
        self.answers.borrow_mut().clear();
    }
}

/// Whose commit it is: its payload says the number of this. No payload of these worlds is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) delivery: Delivery,
    pub(crate) does: Does,
    pub(crate) takes_over: bool,
}

impl World {
    /// A message of the committer that this node has now is answered.
    pub(crate) fn answers(&self, node: usize, number: u64, answer: PublishAnswer) {
        self.committing(node).answers.borrow_mut().push((number, answer));
        self.nodes[node].is_called.set(true);
    }

    /// Slow work reports to the committer of its node.
    pub(crate) fn reports(&self, node: usize, done: Done) {
        self.committing(node).done.borrow_mut().push(done);
        self.nodes[node].is_called.set(true);
    }

    pub(crate) fn origin_of(&self, commit: &Commit) -> Origin {
        let number = commit.payload.body[..].try_into().map(usize::from_le_bytes);
        self.origins.borrow()[number.expect("the payload of a commit is a number here")]
    }

    /// A hand that goes on with a commit.
    pub(crate) fn hand_on(&self, node: usize, origin: Origin) -> Hand<'_> {
        let hand = Hand::new(self, node, origin.delivery);
        hand.does.set(origin.does);
        hand
    }

    /// Takes a few of the steps late; then others may act in the middle of one, or the node or its committer die.
    async fn dawdle(&self) {
        if self.chance.hits(400) {
            self.pause(self.chance.between(1, 20)).await;
        }
    }
}

impl Hand<'_> {
    /// Sends a commit to the committer of its node.
    pub(crate) fn hand_over(&self, mut commit: Box<Commit>) {
        let mut origins = self.world.origins.borrow_mut();
        let takes_over = self.takes_over.take();
        commit.payload.body = Bytes::copy_from_slice(&origins.len().to_le_bytes());
        origins.push(Origin { delivery: self.delivery, does: self.does.get(), takes_over });
        let (world, node) = (self.world, self.client.node);
        world.committing(node).inbox.borrow_mut().push_back(Input::Commit(commit));
        world.nodes[node].is_called.set(true);
    }

    /// Has a commit without a delivery carried out, and waits for that.
    pub(crate) async fn wait_for(&self, mut commit: Commit) -> Result<u64, Unlogged> {
        let (done, carried_out) = oneshot::channel();
        commit.after = AfterCommit::Report(done);
        self.hand_over(Box::new(commit));
        carried_out.await.map_err(|_| Unlogged)
    }

    /// Publishes the remaining events of a run whose record is stored.
    pub(crate) async fn publish_rest(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        let commit = Commit::of_stored(Box::new(run.clone()), PublishedJob::default(), published, self.author());
        self.wait_for(commit).await.map(drop)
    }
}

/// Carries out commits until nothing is left to do.
pub(crate) async fn carry_out(world: &World, node: usize) {
    let committing = world.committing(node);
    let mut pipeline = committing.pipeline.try_lock().expect("one committer at a time");
    let mut outlets = WorldOutlets { world, node, committing: Rc::clone(&committing) };
    if !committing.is_tidy.replace(true) {
        pipeline.tidy();
        if world.is(Mutation::BatchInFlightForgotten) {
            pipeline.batches.tidy(&[]);
        }
        pipeline.send_again(Duration::ZERO, &mut outlets).await;
    }
    let mut look_at = world.clock.get() + LOOK_EVERY;
    while let Some(news) = outlets.next(&pipeline, look_at).await {
        match news {
            News::Answer(number, answer) => pipeline.answered(number, answer, &mut outlets).await,
            News::Done(Done::OnRecord(commit)) => pipeline.publish_events(commit, &outlets).await,
            News::Done(Done::Over) => {}
            News::Input(input) => pipeline.take(input, &mut outlets).await,
            News::Ready => pipeline.send_batches(&mut outlets).await,
            News::Due => pipeline.batches.fall_due(),
            News::Look => {
                look_at = world.clock.get() + LOOK_EVERY;
                let overdue = Duration::from_millis(ANSWER_WITHIN.unsigned_abs());
                if !world.is(Mutation::NothingSentAgain) {
                    pipeline.send_again(overdue, &mut outlets).await;
                }
            }
        }
        world.dawdle().await;
    }
}

enum News {
    Answer(u64, PublishAnswer),
    Done(Done),
    Input(Input),
    Ready,
    Due,
    Look,
}

/// The outlets of a simulated node.
struct WorldOutlets<'w> {
    world: &'w World,
    node: usize,
    committing: Rc<Committing>,
}

impl WorldOutlets<'_> {
    /// The next thing to do, in any order; `None`: nothing is left.
    async fn next(&self, pipeline: &Pipeline, look_at: i64) -> Option<News> {
        poll_fn(|_| {
            let first = self.world.chance.below(4);
            if let Some(news) = (first..first + 4).find_map(|kind| self.news(kind % 4, pipeline, look_at)) {
                return Poll::Ready(Some(news));
            }
            // Input that has to wait for a place is taken when slow work reports: that calls the committer again.
            if !pipeline.awaits_server() {
                return Poll::Ready(None);
            }
            let due = pipeline.batches.due().map_or(look_at, |due| self.world.millis(due));
            self.world.wait_until(due.min(look_at));
            Poll::Pending
        })
        .await
    }

    fn news(&self, kind: u32, pipeline: &Pipeline, look_at: i64) -> Option<News> {
        let now = self.world.clock.get();
        match kind {
            0 => {
                let mut answers = self.committing.answers.borrow_mut();
                let count = u32::try_from(answers.len()).ok().filter(|count| *count > 0)?;
                let at = if count > 1 { self.world.chance.below(count) as usize } else { 0 };
                let (number, answer) = answers.swap_remove(at);
                Some(News::Answer(number, answer))
            }
            1 => self.committing.done.borrow_mut().pop().map(News::Done),
            2 => {
                let mut inbox = self.committing.inbox.borrow_mut();
                // As in the product: what is for the log alone waits for no place.
                let lines = inbox.iter().position(Input::is_for_the_log_alone);
                let next = lines.or((pipeline.in_flight() < IN_FLIGHT).then_some(0))?;
                inbox.remove(next).map(News::Input)
            }
            3 if pipeline.batches.is_ready() => Some(News::Ready),
            3 if pipeline.batches.due().is_some_and(|due| self.world.millis(due) <= now) => Some(News::Due),
            3 if look_at <= now && pipeline.awaits_server() => Some(News::Look),
            _ => None,
        }
    }
}

impl Outlets for WorldOutlets<'_> {
    fn now(&self) -> Instant {
        self.world.instant(self.world.clock.get())
    }

    async fn send(&mut self, number: u64, what: &Sent) {
        self.world.dawdle().await;
        self.world.post(self.node, number, what);
    }

    async fn publish_live(&self, events: &EncodedEvents) {
        self.world.dawdle().await;
        self.world.publish_live(self.node, events);
    }

    async fn end(&self, commit: Box<Commit>) {
        self.world.dawdle().await;
        let origin = self.world.origin_of(&commit);
        if origin.takes_over && self.world.is(Mutation::TakenOverAndHeldLocally) {
            return self.world.begin_slow(self.node, Slow::HeldTakenOver(commit));
        }
        follow_up::end(&self.world.hand_on(self.node, origin), commit).await;
    }

    fn clear_up(&self, commit: Box<Commit>) {
        self.world.begin_slow(self.node, Slow::ClearUp(commit));
    }

    fn follow(&self, commit: Box<Commit>) {
        let taken_over = self.world.is(Mutation::TakenOverAndHeldLocally) && self.world.origin_of(&commit).takes_over;
        self.world.begin_slow(self.node, if taken_over { Slow::HeldTakenOver(commit) } else { Slow::Follow(commit) });
    }

    async fn before_repeat(&self) {
        self.world.pause(2).await;
    }

    fn is_silent(&mut self, _: &Sent, _: Instant) {}

    fn is_answered(&mut self, _: &Sent) {}
}
