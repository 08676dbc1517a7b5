//! What tells the queues of a node that a gate may let more jobs start than before.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counts such moments and wakes those that wait for one. Owned by all gates together.
#[derive(Debug, Default)]
pub(crate) struct GateNews {
    count: AtomicU64,
    changed: Notify,
}

impl GateNews {
    /// A permit came back, or a gate opens.
    pub(crate) fn tell(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// How often that happened: while it stays the same, the gates' answers change with time alone.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until it happens.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
