//! The queues that a node serves: those that its configuration names, and those that were put while it runs.
//!
//! Queues come and go, so readers ask here each time. A queue that closes takes no more jobs and stays here until its
//! running jobs have ended. Meanwhile a queue of the same name may be served anew beside it.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use longshore_backbone::control::QueueLoad;
use longshore_domain::Queue;
use tokio::sync::Notify;

use crate::queue::dispatcher::Dispatcher;
use crate::runtime::Unpoisoned as _;

#[derive(Default)]
pub(crate) struct ServedQueues {
    queues: RwLock<Arc<[Arc<Dispatcher>]>>,
    /// Notified when these have changed; for one reader.
    pub(crate) changed: Notify,
}

impl ServedQueues {
    /// All of them, those that close included.
    pub(crate) fn all(&self) -> Arc<[Arc<Dispatcher>]> {
        Arc::clone(&self.queues.read().unpoisoned())
    }

    /// The names of those that take jobs.
    pub(crate) fn names(&self) -> Vec<Queue> {
        self.all().iter().filter(|queue| !queue.is_closing()).map(|queue| queue.name.clone()).collect()
    }

    pub(crate) fn loads(&self) -> BTreeMap<String, QueueLoad> {
        let mut loads: BTreeMap<String, QueueLoad> = BTreeMap::new();
        for queue in self.all().iter() {
            let (load, name) = (queue.load(), queue.name.to_string());
            match loads.get_mut(&name) {
                Some(known) => add(known, load),
                None => drop(loads.insert(name, load)),
            }
        }
        loads
    }

    pub(crate) fn add(&self, queue: Arc<Dispatcher>) {
        self.change(|queues| queues.push(queue));
    }

    pub(crate) fn close(&self, queue: &Dispatcher) {
        queue.buffer.closing.cancel();
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, ended: &Arc<Dispatcher>) {
        self.change(|queues| queues.retain(|queue| !Arc::ptr_eq(queue, ended)));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Dispatcher>>)) {
        let mut guard = self.queues.write().unpoisoned();
        let mut queues = guard.to_vec();
        change(&mut queues);
        *guard = queues.into();
        drop(guard);
        self.changed.notify_one();
    }
}

/// The loads of a queue that closes and of the one that follows it.
fn add(known: &mut QueueLoad, other: QueueLoad) {
    let QueueLoad { concurrency, running, by_priority, oldest_buffered, by_tenant } = other;
    known.concurrency += concurrency;
    known.running += running;
    known.oldest_buffered = known.oldest_buffered.into_iter().chain(oldest_buffered).min();
    known.by_priority.iter_mut().zip(by_priority).for_each(|(known, more)| *known += more);
    for (tenant, counts) in by_tenant {
        let known = known.by_tenant.entry(tenant).or_default();
        known.iter_mut().zip(counts).for_each(|(known, more)| *known += more);
    }
}
