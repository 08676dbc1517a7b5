//! How many jobs this node has with remote handlers, over all its queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use longshore_backbone::work::falls_under;
use longshore_domain::{Job, JobType, Tenant};
use tokio::sync::Notify;

/// What jobs wait for together: the capacity of the handlers of one tenant's type.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) tenant: Tenant,
    pub(crate) job_type: JobType,
}

impl Kind {
    pub(crate) fn of(job: &Job) -> Self {
        Self { tenant: job.tenant.clone(), job_type: job.job_type.clone() }
    }
}

/// The places with remote handlers that this node has taken, by the subject that a job is sent to.
#[derive(Debug, Default)]
pub(crate) struct HandlerCapacity {
    taken: Mutex<HashMap<String, usize>>,
    freed: Notify,
}

/// A place with a remote handler; given up when this is dropped.
#[derive(Debug)]
pub(crate) struct CapacityPermit {
    of: Arc<HandlerCapacity>,
    subject: String,
}

/// What places there are for a job.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// Where the job is sent.
    pub(crate) subject: String,
    /// Subjects whose jobs share these places, wildcards and all.
    pub(crate) shared_by: Vec<String>,
    /// How many places there are.
    pub(crate) max: usize,
}

impl HandlerCapacity {
    /// Takes a place, if there is one.
    pub(crate) fn take(self: &Arc<Self>, capacity: Capacity) -> Option<CapacityPermit> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if used(&taken, &capacity) >= capacity.max {
            return None;
        }
        *taken.entry(capacity.subject.clone()).or_default() += 1;
        Some(CapacityPermit { of: Arc::clone(self), subject: capacity.subject })
    }

    /// How many places are free.
    pub(crate) fn free(&self, capacity: &Capacity) -> usize {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        capacity.max.saturating_sub(used(&taken, capacity))
    }

    /// There may be more places than before, or fewer.
    pub(crate) fn changed(&self) {
        self.freed.notify_waiters();
    }

    /// Waits until a place is given up, by whichever queue.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }
}

/// How many of these places are taken.
fn used(taken: &HashMap<String, usize>, capacity: &Capacity) -> usize {
    let shares = |subject: &str| capacity.shared_by.iter().any(|pattern| falls_under(subject, pattern));
    taken.iter().filter(|(subject, _)| shares(subject)).map(|(_, count)| count).sum()
}

impl Drop for CapacityPermit {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.subject) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.subject);
            }
        }
        drop(taken);
        self.of.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_places_than_announced() {
        let slots = Arc::new(HandlerCapacity::default());
        let take = |subject: &str, shared_by: &str, max| {
            slots.take(Capacity { subject: subject.to_owned(), shared_by: vec![shared_by.to_owned()], max })
        };
        let (first, second) = (take("w.a", "w.a", 2), take("w.a", "w.a", 2));
        assert!(first.is_some() && second.is_some() && take("w.a", "w.a", 2).is_none());
        assert!(take("w.b", "w.b", 1).is_some(), "another's places");
        assert!(take("w.b", "w.*", 2).is_none(), "who takes both has two at work");
        assert!(take("w.a", "w.a", 0).is_none());
        drop(first);
        assert!(take("w.b", "w.*", 2).is_some());
        drop(second);
        assert!(slots.taken.lock().unwrap().is_empty(), "nothing is kept of those who have none");
    }
}
