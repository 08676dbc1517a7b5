//! How many workers are awake for the buffered jobs.
//!
//! Jobs that are done at their handler's first step keep one worker per thread busy, which takes one after the other;
//! waking the other workers for each such job would cost more than the job. So a queue wakes as many workers as can run
//! at once, by giving each a permit. A worker that has to wait, for its handler or for the server, gives its permit up,
//! and another is woken in its place: so long jobs still have all workers. A handler that blocks its thread keeps its
//! permit; the scheduler sees that no job starts any more and wakes the other workers all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct WakePermits {
    out: AtomicUsize,
    max: usize,
    /// Notified when a permit has come back from a worker that died.
    pub(crate) dropped: Notify,
}

/// A worker may run. When a worker dies, its permit is dropped: it goes back, and the scheduler is notified.
#[derive(Debug)]
pub(crate) struct WakePermit(Option<Arc<WakePermits>>);

impl WakePermits {
    /// As many as the runtime has threads, at most as many as there are processors.
    pub(crate) fn of_runtime() -> Self {
        let threads = tokio::runtime::Handle::current().metrics().num_workers();
        let processors = std::thread::available_parallelism().map_or(threads, usize::from);
        Self::new(threads.min(processors))
    }

    pub(crate) fn new(max: usize) -> Self {
        Self { out: AtomicUsize::new(0), max, dropped: Notify::new() }
    }

    pub(crate) fn is_one_left(&self) -> bool {
        self.out.load(Ordering::SeqCst) < self.max
    }

    /// Takes a permit, also beyond the maximum.
    pub(crate) fn take(self: &Arc<Self>) -> WakePermit {
        self.out.fetch_add(1, Ordering::SeqCst);
        WakePermit(Some(Arc::clone(self)))
    }
}

impl WakePermit {
    /// Gives the permit up: the caller sees to it that another worker is woken.
    pub(crate) fn release(mut self) {
        if let Some(permits) = self.0.take() {
            permits.out.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for WakePermit {
    fn drop(&mut self) {
        if let Some(permits) = self.0.take() {
            permits.out.fetch_sub(1, Ordering::SeqCst);
            permits.dropped.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_permit_goes_back_however_it_is_given_up() {
        let permits = Arc::new(WakePermits::new(1));
        let permit = permits.take();
        assert!(!permits.is_one_left());
        permit.release();
        assert!(permits.is_one_left());
        drop(permits.take());
        assert!(permits.is_one_left());
        permits.dropped.notified().await;
    }
}
