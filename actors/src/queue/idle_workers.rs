//! Which workers are idle. Shared by the scheduler, which takes, and the workers, which put themselves back; it
//! outlives both, so that a scheduler that was started again knows its free workers.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// The idle workers of a queue.
#[derive(Debug, Default)]
pub(crate) struct IdleWorkers {
    numbers: Mutex<Vec<usize>>,
    came: Notify,
    back: Notify,
}

impl IdleWorkers {
    /// A worker has nothing to do.
    pub(crate) fn put(&self, number: usize) {
        self.put_quietly(number);
        self.came.notify_one();
    }

    /// A worker that was taken was not needed: no news for who looks for one.
    pub(crate) fn put_quietly(&self, number: usize) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        self.back.notify_one();
    }

    /// A worker is gone, wherever it stood.
    pub(crate) fn remove(&self, number: usize) {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).retain(|idle| *idle != number);
    }

    /// Takes an idle worker; the one that was busy last, whose memory is warm.
    pub(crate) fn take(&self) -> Option<usize> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// How many are idle.
    pub(crate) fn count(&self) -> usize {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until one has become idle: for the scheduler.
    pub(crate) async fn came(&self) {
        self.came.notified().await;
    }

    /// Waits until one is back, needed or not: for who waits until all are.
    pub(crate) async fn back(&self) {
        self.back.notified().await;
    }
}
