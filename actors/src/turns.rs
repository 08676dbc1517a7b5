//! How many workers are woken for the jobs in hand.
//!
//! Jobs that are done at their handler's first step keep one worker a thread busy, which takes one after the other;
//! woken for each such job, the others would cost more than the jobs. So a queue wakes as many workers as can run at
//! once, by giving each a turn. One that has to wait, for its handler or for the server, gives its turn up, and another is
//! woken in its place: jobs that last still have all workers. Where a handler blocks its thread instead, its turn stays
//! with it; the scheduler sees that nothing starts any more and wakes the others all the same.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::queue::QueueState;
use crate::shared::Shared;

/// The turns of a queue.
#[derive(Debug)]
pub(crate) struct Turns {
    out: AtomicUsize,
    most: usize,
}

/// A worker's turn; given up when it is dropped, however the worker ends.
pub(crate) struct Turn {
    shared: Arc<Shared>,
    queue: Arc<QueueState>,
    /// Whether another is woken once it is given up.
    passed_on: bool,
}

impl Turns {
    /// As many as the runtime has threads, and processors for them.
    pub(crate) fn of_runtime() -> Self {
        let threads = tokio::runtime::Handle::current().metrics().num_workers();
        let processors = std::thread::available_parallelism().map_or(threads, usize::from);
        Self { out: AtomicUsize::new(0), most: threads.min(processors) }
    }

    /// Whether another worker may be woken.
    pub(crate) fn is_one_left(&self) -> bool {
        self.out.load(Ordering::SeqCst) < self.most
    }
}

impl Turn {
    /// One more turn, whether or not there should be.
    pub(crate) fn taken(shared: &Arc<Shared>, queue: &Arc<QueueState>) -> Self {
        queue.turns.out.fetch_add(1, Ordering::SeqCst);
        Self { shared: Arc::clone(shared), queue: Arc::clone(queue), passed_on: true }
    }

    /// Nobody took it.
    pub(crate) fn undo(mut self) {
        self.passed_on = false;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue.turns.out.fetch_sub(1, Ordering::SeqCst);
        if self.passed_on {
            self.queue.hand_out(&self.shared);
            // The scheduler keeps the time for what is not to start yet, and knows only of what it saw itself.
            self.queue.ready.tell_if_held_off();
        }
    }
}

/// The same as `future`; the turn is given up where it has to wait.
pub(crate) async fn while_running<F: Future>(turn: &mut Option<Turn>, future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            *turn = None;
        }
        polled
    })
    .await
}
