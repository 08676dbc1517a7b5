//! Limits how many jobs may be in a state at once, by permits that go back when they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Permits for at most `MAX` jobs of this node.
#[derive(Debug, Default)]
pub(crate) struct Permits<const MAX: usize>(AtomicUsize);

/// One of them; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit<const MAX: usize>(Arc<Permits<MAX>>);

/// Jobs of one node that may be on their way to be parked: if the stream of parked jobs is full, jobs that wait for it
/// must not fill the committer. Given back with the job's commit.
pub(crate) const MAX_PARKING: usize = 256;
pub(crate) type ParkPermits = Permits<MAX_PARKING>;

/// Short retries that one node may hold locally; more go through schedules.
const MAX_LOCAL_RETRIES: usize = 1_024;
pub(crate) type LocalRetryPermits = Permits<MAX_LOCAL_RETRIES>;
pub(crate) type LocalRetryPermit = Permit<MAX_LOCAL_RETRIES>;

impl<const MAX: usize> Permits<MAX> {
    /// Whether a permit is left.
    pub(crate) fn is_one_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) < MAX
    }

    /// Takes a permit, if one is left.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Permit<MAX>> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |out| (out < MAX).then_some(out + 1));
        taken.ok().map(|_| Permit(Arc::clone(self)))
    }
}

impl<const MAX: usize> Drop for Permit<MAX> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_jobs_have_a_permit_than_there_are_permits() {
        let permits = Arc::new(ParkPermits::default());
        let mut taken: Vec<Permit<MAX_PARKING>> = std::iter::from_fn(|| permits.take()).collect();
        assert_eq!((taken.len(), permits.is_one_left()), (MAX_PARKING, false));
        taken.pop();
        assert!(permits.take().is_some());
    }
}
