//! How many jobs this node has with remote handlers, over all its queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use longshore_domain::JobType;
use tokio::sync::Notify;

/// The places with remote handlers that this node has taken.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    taken: Mutex<HashMap<JobType, usize>>,
    freed: Notify,
}

/// A place with a remote handler; given up when this is dropped.
#[derive(Debug)]
pub(crate) struct WithHandler {
    slots: Arc<Slots>,
    job_type: JobType,
}

impl Slots {
    /// Takes a place of a job's type, if fewer than `most` are taken.
    pub(crate) fn take(self: &Arc<Self>, job_type: &JobType, most: usize) -> Option<WithHandler> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(job_type.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(WithHandler { slots: Arc::clone(self), job_type: job_type.clone() })
    }

    /// Waits until a place is given up, by whichever queue.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl Drop for WithHandler {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.job_type) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.job_type);
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
        let take = |name: &str, most| slots.take(&JobType::parse(name).unwrap(), most);
        let (first, second) = (take("a", 2), take("a", 2));
        assert!(first.is_some() && second.is_some() && take("a", 2).is_none());
        assert!(take("b", 1).is_some(), "another's places");
        drop(first);
        assert!(take("a", 2).is_some());
        drop(second);
        assert!(slots.taken.lock().unwrap().is_empty(), "nothing is kept of those who have none");
    }
}
