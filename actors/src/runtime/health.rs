//! What parts of a node find wrong, for the endpoint `health`. Each part sets its own; nothing is decided by it but how
//! many unresponsive handlers are replaced.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_domain::Lane;
use longshore_domain::cluster_clock::{Skew, Wrong};

use crate::runtime::Unpoisoned as _;

/// What a part has said last.
#[derive(Debug, Default)]
pub(crate) struct Last<T>(Mutex<T>);

impl<T: Clone> Last<T> {
    pub(crate) fn get(&self) -> T {
        self.0.lock().unpoisoned().clone()
    }

    /// Says this from now on; returns what was said before.
    pub(crate) fn set(&self, said: T) -> T {
        std::mem::replace(&mut *self.0.lock().unpoisoned(), said)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Health {
    /// How many handlers neither ended in time nor reacted to their cancellation.
    pub(crate) unresponsive: AtomicUsize,
    /// The stream of run records is all but full: the next ones may be refused.
    pub(crate) records_full: Last<bool>,
    /// The server refused this node's last presence for want of room, as it refuses every write then.
    pub(crate) server_full: Last<bool>,
    /// Lanes that refused their last due job because they are full.
    pub(crate) full_lanes: Last<BTreeSet<Lane>>,
    /// A warning for each queue that no node serves, from the node that looks for all.
    pub(crate) unserved: Last<Vec<String>>,
    /// How far the machine's clock is from the cluster's time, once that was measured again since the start.
    clock: Last<Option<Skew>>,
    pub(crate) streams: Last<StreamFaults>,
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
    pub(crate) fn unresponsive(&self) -> usize {
        self.unresponsive.load(Ordering::Relaxed)
    }

    /// Sets whether a lane is full; says whether that is a change.
    pub(crate) fn set_lane_full(&self, lane: &Lane, full: bool) -> bool {
        let mut lanes = self.full_lanes.0.lock().unpoisoned();
        if full { lanes.insert(lane.clone()) } else { lanes.remove(lane) }
    }

    /// Sets how far the machine's clock is off; returns how wrong it was before.
    pub(crate) fn set_clock(&self, skew: Skew) -> Wrong {
        self.clock.set(Some(skew)).map(Skew::wrong).unwrap_or_default()
    }

    /// How wrong the machine's clock is, and what to say of it.
    pub(crate) fn clock(&self) -> (Wrong, Option<String>) {
        let skew = self.clock.get();
        let wrong = skew.map(Skew::wrong).unwrap_or_default();
        let text = skew.filter(|_| wrong > Wrong::No).map(|skew| {
            format!("this machine's clock is {skew} the NATS server's, by which jobs go: have both set by NTP")
        });
        (wrong, text)
    }
}
