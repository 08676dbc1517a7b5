//! Handler capacity: how many jobs this node has with remote handlers, over all its queues.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::runtime::Unpoisoned as _;
use crate::runtime::gate_news::GateNews;
use longshore_backbone::handlers::falls_under;

/// The capacity of remote handlers that this node uses, by the subject that a job is sent to.
#[derive(Debug, Default)]
pub(crate) struct HandlerCapacity {
    taken: Mutex<HashMap<String, usize>>,
    news: Arc<GateNews>,
}

/// One job may be with a remote handler; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct CapacityPermit {
    of: Arc<HandlerCapacity>,
    subject: String,
}

#[derive(Debug)]
pub(crate) struct Capacity {
    /// Where the job is sent.
    pub(crate) subject: String,
    /// Subjects whose jobs share this capacity; they may have wildcards.
    pub(crate) shared_by: Vec<String>,
    /// How many jobs may be there at once.
    pub(crate) max: usize,
    /// When one may be tried again, if no handler was there.
    pub(crate) opens: Option<Instant>,
}

impl HandlerCapacity {
    /// No capacity is used; `news` is notified when some comes back.
    pub(crate) fn new(news: Arc<GateNews>) -> Self {
        Self { taken: Mutex::default(), news }
    }

    pub(crate) fn take(self: &Arc<Self>, capacity: Capacity) -> Option<CapacityPermit> {
        let mut taken = self.taken.lock().unpoisoned();
        if used(&taken, &capacity) >= capacity.max {
            return None;
        }
        *taken.entry(capacity.subject.clone()).or_default() += 1;
        Some(CapacityPermit { of: Arc::clone(self), subject: capacity.subject })
    }

    pub(crate) fn free(&self, capacity: &Capacity) -> usize {
        let taken = self.taken.lock().unpoisoned();
        capacity.max.saturating_sub(used(&taken, capacity))
    }

    /// There may be more capacity than before, or less.
    pub(crate) fn changed(&self) {
        self.news.notify();
    }
}

fn used(taken: &HashMap<String, usize>, capacity: &Capacity) -> usize {
    let shares = |subject: &str| capacity.shared_by.iter().any(|pattern| falls_under(subject, pattern));
    taken.iter().filter(|(subject, _)| shares(subject)).map(|(_, count)| count).sum()
}

impl Drop for CapacityPermit {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unpoisoned();
        if let Some(count) = taken.get_mut(&self.subject) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.subject);
            }
        }
        drop(taken);
        self.of.news.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_permits_are_given_than_announced() {
        let slots = Arc::new(HandlerCapacity::default());
        let take = |subject: &str, shared_by: &str, max| {
            let shared_by = vec![shared_by.to_owned()];
            slots.take(Capacity { subject: subject.to_owned(), shared_by, max, opens: None })
        };
        let (first, second) = (take("w.a", "w.a", 2), take("w.a", "w.a", 2));
        assert!(first.is_some() && second.is_some() && take("w.a", "w.a", 2).is_none());
        assert!(take("w.b", "w.b", 1).is_some(), "the capacity of other handlers");
        assert!(take("w.b", "w.*", 2).is_none(), "a handler of both types has two jobs already");
        assert!(take("w.a", "w.a", 0).is_none());
        drop(first);
        assert!(take("w.b", "w.*", 2).is_some());
        drop(second);
        assert!(slots.taken.lock().unwrap().is_empty(), "unused subjects are forgotten");
    }
}
