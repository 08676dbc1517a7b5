//! How many jobs this node has with remote handlers, over all its queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The places with remote handlers that this node has taken.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    taken: Mutex<HashMap<Arc<str>, usize>>,
    freed: Notify,
}

/// A place with a remote handler; given up when this is dropped.
#[derive(Debug)]
pub(crate) struct WithHandler {
    slots: Arc<Slots>,
    of: Arc<str>,
}

/// Whose places a job takes, and how many those have.
#[derive(Debug)]
pub(crate) struct Room {
    /// The subject that handlers announced, or else the job's type.
    pub(crate) of: Arc<str>,
    pub(crate) most: usize,
}

impl Slots {
    /// Takes a place, if there is one.
    pub(crate) fn take(self: &Arc<Self>, room: Room) -> Option<WithHandler> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(Arc::clone(&room.of)).or_default();
        if *count >= room.most {
            return None;
        }
        *count += 1;
        Some(WithHandler { slots: Arc::clone(self), of: room.of })
    }

    /// Waits until a place is given up, by whichever queue.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl Drop for WithHandler {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.of);
            }
        }
        drop(taken);
        self.slots.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_places_than_announced() {
        let slots = Arc::new(Slots::default());
        let take = |of: &str, most| slots.take(Room { of: Arc::from(of), most });
        let (first, second) = (take("a", 2), take("a", 2));
        assert!(first.is_some() && second.is_some() && take("a", 2).is_none());
        assert!(take("b", 1).is_some(), "another's places");
        assert!(take("a", 0).is_none());
        drop(first);
        assert!(take("a", 2).is_some());
        drop(second);
        assert!(slots.taken.lock().unwrap().is_empty(), "nothing is kept of those who have none");
    }
}
