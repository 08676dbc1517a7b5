//! A job on its way to be parked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longshore_backbone::Backbone;
use longshore_domain::Timestamp;
use longshore_domain::run::DeferReason;
use tokio::sync::Notify;

use crate::shared::permits::{MAX_PARKING, ParkPermits, Permit};

/// Says whether jobs may be parked.
#[derive(Debug, Clone)]
pub(crate) struct ParkGate {
    backbone: Backbone,
    permits: Arc<ParkPermits>,
}

impl ParkGate {
    /// The gate of a node; clones share its permits.
    pub(crate) fn new(backbone: Backbone) -> Self {
        Self { backbone, permits: Arc::default() }
    }

    /// Whether a job could be parked now.
    pub(crate) fn is_open(&self) -> bool {
        self.permits.is_one_left() && !self.backbone.parked_is_full()
    }

    /// Takes a permit for a job that waits for this, if a job can be parked now.
    pub(crate) fn take(&self, reason: Option<DeferReason>) -> Option<ParkPermit> {
        if self.backbone.parked_is_full() {
            return None;
        }
        ParkPermit::take(&self.permits, reason)
    }
}

/// One job may be parked; given back when it is dropped, with the job's commit.
#[derive(Debug)]
pub(crate) struct ParkPermit {
    _permit: Permit<MAX_PARKING>,
    /// Counts the jobs of its kind that are no longer on their way.
    arrived: Option<Arc<AtomicU64>>,
    /// Notified then: the job could have started, and only had to go behind others that are parked.
    wanted_back: Option<Arc<Notify>>,
    /// What the job waits for, if that is told as a deferral.
    reason: Option<DeferReason>,
    /// The job is not to wait, but moves forward in its queue: its rank counts from this time.
    forward: Option<Timestamp>,
}

impl ParkPermit {
    /// Takes a permit for a job that waits for this, if one is left.
    pub(crate) fn take(permits: &Arc<ParkPermits>, reason: Option<DeferReason>) -> Option<Self> {
        permits.take().map(|permit| Self { _permit: permit, arrived: None, wanted_back: None, reason, forward: None })
    }

    /// What the job waits for, if that is told as a deferral.
    pub(crate) fn reason(&self) -> Option<DeferReason> {
        self.reason
    }

    /// Has the job go back into its queue at once, with a rank that counts from `since`.
    pub(crate) fn moves_forward(&mut self, since: Timestamp) {
        self.forward = Some(since);
    }

    /// From when the rank of a job counts that goes back into its queue at once.
    pub(crate) fn forward(&self) -> Option<Timestamp> {
        self.forward
    }

    /// Has `arrived` count the job once it is no longer on its way.
    pub(crate) fn counts(&mut self, arrived: Arc<AtomicU64>) {
        self.arrived = Some(arrived);
    }

    /// Has the job taken back as soon as it is parked; notified once the permit is given back.
    pub(crate) fn notifies(&mut self, wanted_back: Arc<Notify>) {
        self.wanted_back = Some(wanted_back);
    }
}

impl Drop for ParkPermit {
    fn drop(&mut self) {
        if let Some(arrived) = &self.arrived {
            arrived.fetch_add(1, Ordering::Release);
        }
        if let Some(wanted_back) = &self.wanted_back {
            wanted_back.notify_one();
        }
    }
}
