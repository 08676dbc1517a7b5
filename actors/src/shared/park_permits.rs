//! Limits how many jobs may be on their way to be parked, and counts those of each kind that got there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Permits to park: if the stream of parked jobs is full, jobs that wait for it must not fill the committer.
#[derive(Debug, Default)]
pub(crate) struct ParkPermits(AtomicUsize);

/// Jobs of one node that may be on their way to be parked.
const MAX_PARKING: usize = 256;

/// One job may be parked; given back when it is dropped, with the job's commit.
#[derive(Debug)]
pub(crate) struct ParkPermit {
    of: Arc<ParkPermits>,
    /// Counts the jobs of its kind that are no longer on their way.
    arrived: Option<Arc<AtomicU64>>,
    /// Notified then: the job could have started, and only had to go behind others that are parked.
    wanted_back: Option<Arc<Notify>>,
}

impl ParkPermit {
    /// Has `arrived` count the job once it is no longer on its way.
    pub(crate) fn counts(&mut self, arrived: Arc<AtomicU64>) {
        self.arrived = Some(arrived);
    }

    /// Has the job taken back as soon as it is parked.
    pub(crate) fn notifies(&mut self, wanted_back: Arc<Notify>) {
        self.wanted_back = Some(wanted_back);
    }
}

impl ParkPermits {
    /// Whether a permit is left.
    pub(crate) fn is_one_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) < MAX_PARKING
    }

    /// Takes a permit, if one is left.
    pub(crate) fn take(self: &Arc<Self>) -> Option<ParkPermit> {
        let taken =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |out| (out < MAX_PARKING).then_some(out + 1));
        taken.ok().map(|_| ParkPermit { of: Arc::clone(self), arrived: None, wanted_back: None })
    }
}

impl Drop for ParkPermit {
    fn drop(&mut self) {
        self.of.0.fetch_sub(1, Ordering::Relaxed);
        if let Some(arrived) = &self.arrived {
            arrived.fetch_add(1, Ordering::Release);
        }
        if let Some(wanted_back) = &self.wanted_back {
            wanted_back.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_on_their_way_to_be_parked_than_there_are_permits() {
        let permits = Arc::new(ParkPermits::default());
        let mut taken: Vec<ParkPermit> = std::iter::from_fn(|| permits.take()).collect();
        assert_eq!((taken.len(), permits.is_one_left()), (MAX_PARKING, false));
        taken.pop();
        assert!(permits.take().is_some());
    }
}
