//! The way of a delivery through a node: it arrives, its job waits in the buffer until a worker is given it, and the
//! worker takes the next one.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use crate::attempt::assignment::Assignment;
use crate::attempt::begin::begin;
use crate::attempt::conclude::HeldRetry;
use crate::queue::dispatcher::Work;
use crate::queue::wake_permits::WakePermit;
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::queue::NodeQueue;
use crate::tests::simulation::server::Word;
use crate::tests::simulation::worker::{Delivery, Hand};
use crate::tests::simulation::world::World;

/// The node reads a delivery, and buffers its job. Once it drains, it returns it.
pub(crate) async fn arrive(world: &World, node: usize, delivery: Delivery) {
    let (mut hand, queue) = (Hand::new(world, node, delivery), world.queue(node));
    if queue.is_closed() {
        return hand.send(Word::HandBack(0));
    }
    let (kept, assignment) = hand.read();
    queue.takes_in(kept, assignment);
}

/// A worker does a job that it is given, and those after it for as long as there are any. A retry that is held locally
/// then waits beside it.
pub(crate) async fn work(world: &World, node: usize, (number, work): (usize, Work)) {
    let queue = world.queue(node);
    let Work { mut assignment, permit } = work;
    let mut permit = Some(permit);
    let held = loop {
        let held = while_running(&queue, &mut permit, attend(world, node, &queue, assignment)).await;
        let next = held.is_none().then(|| queue.buffer().next_after(world.instant(world.clock.get()))).flatten();
        let Some(next) = next else { break held };
        queue.has_news();
        assignment = next;
    };
    if !world.is(Mutation::WorkersNotIdleAgain) {
        queue.dispatcher.idle.put(number);
    }
    if let Some(permit) = permit {
        permit.release();
    }
    queue.has_news();
    if let Some((hand, held)) = held {
        hold(&queue, hand, held).await;
    }
}

/// Gives the wake permit up as soon as the worker has to wait.
async fn while_running<F: Future>(queue: &Rc<NodeQueue>, permit: &mut Option<WakePermit>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if let (Poll::Pending, Some(permit)) = (&polled, permit.take()) {
            permit.release();
            queue.has_news();
        }
        polled
    })
    .await
}

/// Handles a delivery until its end, or until its retry is held locally.
async fn attend<'w>(
    world: &'w World,
    node: usize,
    queue: &Rc<NodeQueue>,
    assignment: Box<Assignment>,
) -> Option<(Box<Hand<'w>>, Box<HeldRetry>)> {
    let hand = Box::new(Hand::of(world, node, queue.delivery_of(&assignment)));
    let running = begin(&*hand, assignment).await?;
    let held = hand.attempt(running).await?;
    Some((hand, held))
}

/// Waits for a retry that is held locally, and puts it into the buffer.
async fn hold(queue: &Rc<NodeQueue>, hand: Box<Hand<'_>>, held: Box<HeldRetry>) {
    if let Some(assignment) = held.wait(&*hand).await {
        queue.takes_back(hand.kept(), Box::new(assignment));
    }
}
