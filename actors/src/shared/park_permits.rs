//! Limits how many jobs may be on their way to be parked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Permits to park: if the stream of parked jobs is full, jobs that wait for it must not fill the committer.
#[derive(Debug, Default)]
pub(crate) struct ParkPermits(AtomicUsize);

/// Jobs of one node that may be on their way to be parked.
const MAX_PARKING: usize = 256;

/// One job may be parked; given back when it is dropped, with the job's commit.
#[derive(Debug)]
pub(crate) struct ParkPermit(Arc<ParkPermits>);

impl ParkPermits {
    /// Whether a permit is left.
    pub(crate) fn is_one_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) < MAX_PARKING
    }

    /// Takes a permit, if one is left.
    pub(crate) fn take(self: &Arc<Self>) -> Option<ParkPermit> {
        let taken =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |out| (out < MAX_PARKING).then_some(out + 1));
        taken.ok().map(|_| ParkPermit(Arc::clone(self)))
    }
}

impl Drop for ParkPermit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
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
