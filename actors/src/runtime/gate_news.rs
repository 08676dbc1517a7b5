//! Notifies the queues of a node that a gate may let more jobs start than before.

use std::sync::Arc;
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
    pub(crate) fn notify(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// How often that happened: while it stays the same, the gates' answers change with time alone.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until it has happened since the count was `known`, also if that was before the call.
    pub(crate) async fn since(&self, known: u64) {
        let changed = self.changed.notified();
        // From here on `changed` sees what happens; what happened before has been counted.
        if self.count() == known {
            changed.await;
        }
    }
}

/// Wakes somebody when it is dropped.
#[derive(Debug)]
pub(crate) struct Wakes(Option<Arc<Notify>>);

impl Wakes {
    pub(crate) fn new(notify: Arc<Notify>) -> Self {
        Self(Some(notify))
    }

    pub(crate) fn call_off(mut self) {
        self.0 = None;
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        if let Some(notify) = &self.0 {
            notify.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn what_happened_between_two_looks_is_not_missed() {
        let news = GateNews::default();
        let known = news.count();
        assert!(news.since(known).now_or_never().is_none());
        news.notify();
        assert!(news.since(known).now_or_never().is_some(), "it happened before the wait began");
        let known = news.count();
        let mut waits = Box::pin(news.since(known));
        assert!(waits.as_mut().now_or_never().is_none());
        news.notify();
        assert!(waits.now_or_never().is_some());
    }
}
