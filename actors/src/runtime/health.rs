//! What parts of a node find wrong, for the endpoint `health`. Each part sets its own; nothing is decided by it but how
//! many unresponsive handlers are replaced.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longshore_domain::Lane;
use longshore_domain::cluster_clock::{Skew, Wrong};

#[derive(Debug, Default)]
pub(crate) struct Health {
    /// How many handlers neither ended in time nor reacted to their cancellation.
    pub(crate) unresponsive: Arc<AtomicUsize>,
    /// The stream of run records is all but full.
    records_full: AtomicBool,
    /// Lanes that refused their last due job because they are full.
    full_lanes: Mutex<BTreeSet<Lane>>,
    /// A warning for each queue that no node serves, from the node that looks for all.
    unserved: Mutex<Vec<String>>,
    /// How far the machine's clock is from the cluster's time, once that was measured again since the start.
    clock: Mutex<Option<Skew>>,
    streams: Mutex<StreamFaults>,
}

/// What is wrong with the streams that a node needs, in words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamFaults {
    /// What keeps the node from working as it should.
    pub(crate) reasons: Vec<String>,
    /// What does not, yet.
    pub(crate) warnings: Vec<String>,
}

impl Health {
    pub(crate) fn set_streams(&self, faults: StreamFaults) {
        *self.streams.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    pub(crate) fn streams(&self) -> StreamFaults {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn unresponsive(&self) -> usize {
        self.unresponsive.load(Ordering::Relaxed)
    }

    /// Sets whether the next records may be refused.
    pub(crate) fn set_records_full(&self, full: bool) {
        self.records_full.store(full, Ordering::Relaxed);
    }

    /// Whether the next records may be refused.
    pub(crate) fn are_records_full(&self) -> bool {
        self.records_full.load(Ordering::Relaxed)
    }

    /// Sets whether a lane is full; says whether that is a change.
    pub(crate) fn set_lane_full(&self, lane: &Lane, full: bool) -> bool {
        let mut lanes = self.full_lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if full { lanes.insert(lane.clone()) } else { lanes.remove(lane) }
    }

    /// No lane is known to be full.
    pub(crate) fn forget_full_lanes(&self) {
        self.full_lanes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn set_unserved(&self, warnings: Vec<String>) {
        *self.unserved.lock().unwrap_or_else(PoisonError::into_inner) = warnings;
    }

    pub(crate) fn unserved(&self) -> Vec<String> {
        self.unserved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets how far the machine's clock is off; returns how wrong it was before.
    pub(crate) fn set_clock(&self, skew: Skew) -> Wrong {
        let before = self.clock.lock().unwrap_or_else(PoisonError::into_inner).replace(skew);
        before.map(Skew::wrong).unwrap_or_default()
    }

    /// How wrong the machine's clock is, and what to say of it.
    pub(crate) fn clock(&self) -> (Wrong, Option<String>) {
        let skew = *self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let wrong = skew.map(Skew::wrong).unwrap_or_default();
        let text = skew.filter(|_| wrong > Wrong::No).map(|skew| {
            format!("this machine's clock is {skew} the NATS server's, by which jobs go: have both set by NTP")
        });
        (wrong, text)
    }

    pub(crate) fn full_lanes(&self) -> Vec<Lane> {
        self.full_lanes.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
