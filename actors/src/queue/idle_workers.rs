//! Which workers are idle. The scheduler takes them, the workers put themselves back. The list outlives both, so that a
//! scheduler that was started again knows its idle workers.

use std::sync::Mutex;

use tokio::sync::Notify;

use crate::runtime::Unpoisoned as _;

#[derive(Debug, Default)]
pub(crate) struct IdleWorkers {
    numbers: Mutex<Vec<usize>>,
    /// Notified once one has become idle: for the scheduler.
    pub(crate) came: Notify,
    /// Notified when a worker is back, also one that was not needed: for the drain, which waits until all are idle.
    pub(crate) back: Notify,
}

impl IdleWorkers {
    /// A worker has nothing to do.
    pub(crate) fn put(&self, number: usize) {
        self.put_quietly(number);
        self.came.notify_one();
    }

    /// A worker that was taken was not needed: the scheduler is not notified.
    pub(crate) fn put_quietly(&self, number: usize) {
        self.numbers.lock().unpoisoned().push(number);
        self.back.notify_one();
    }

    /// A worker is gone, idle or not.
    pub(crate) fn remove(&self, number: usize) {
        self.numbers.lock().unpoisoned().retain(|idle| *idle != number);
    }

    /// Takes the idle worker that was busy last: its memory is warm.
    pub(crate) fn take(&self) -> Option<usize> {
        self.numbers.lock().unpoisoned().pop()
    }

    pub(crate) fn count(&self) -> usize {
        self.numbers.lock().unpoisoned().len()
    }
}
