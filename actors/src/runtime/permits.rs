//! Limits how many jobs may be in a state at once, by permits that go back when they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Permits for at most `MAX` jobs of this node.
#[derive(Debug, Default)]
pub(crate) struct Permits<const MAX: usize> {
    out: AtomicUsize,
    /// A caller found none left, and was not notified yet that there are some again.
    lacked: AtomicBool,
}

/// One of them, or as many as a job counts for; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit<const MAX: usize>(Arc<Permits<MAX>>, usize);

/// Jobs of one node that may be on their way to be parked: if the stream of parked jobs is full, jobs that wait for it
/// must not fill the committer. Given back with the job's commit.
pub(crate) const MAX_PARKING: usize = 256;
pub(crate) type ParkPermits = Permits<MAX_PARKING>;

/// Short retries that one node may hold locally, of up to [`OF_ONE`] bytes each; a larger one counts for several. More
/// go through schedules, which costs three times as much.
const MAX_LOCAL_RETRIES: usize = 16_384;
const OF_ONE: usize = 4 * 1024;
pub(crate) type LocalRetryPermits = Permits<MAX_LOCAL_RETRIES>;
pub(crate) type LocalRetryPermit = Permit<MAX_LOCAL_RETRIES>;

impl<const MAX: usize> Permits<MAX> {
    pub(crate) fn is_one_left(&self) -> bool {
        if self.out.load(Ordering::SeqCst) < MAX {
            return true;
        }
        self.lacked.store(true, Ordering::SeqCst);
        // Those that came back before that notified no one.
        self.out.load(Ordering::SeqCst) < MAX
    }

    pub(crate) fn take(self: &Arc<Self>) -> Option<Permit<MAX>> {
        self.take_for(0)
    }

    /// The same for a job of so many bytes.
    pub(crate) fn take_for(self: &Arc<Self>, bytes: usize) -> Option<Permit<MAX>> {
        let count = 1 + bytes / OF_ONE;
        let left = |out: usize| (out + count <= MAX).then_some(out + count);
        let take = || {
            let taken = self.out.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
            taken.ok().map(|_| Permit(Arc::clone(self), count))
        };
        take().or_else(|| self.is_one_left().then(take).flatten())
    }
}

impl<const MAX: usize> Permit<MAX> {
    /// Gives it back. Says whether those that found none left are to be notified: once half of them are back, so that
    /// they take many at a time.
    pub(crate) fn give_back(self) -> bool {
        let permits = Arc::clone(&self.0);
        drop(self);
        permits.out.load(Ordering::SeqCst) <= MAX / 2 && permits.lacked.swap(false, Ordering::SeqCst)
    }
}

impl<const MAX: usize> Drop for Permit<MAX> {
    fn drop(&mut self) {
        self.0.out.fetch_sub(self.1, Ordering::SeqCst);
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

    #[test]
    fn a_large_job_counts_for_several() {
        let permits = Arc::new(LocalRetryPermits::default());
        let large: Vec<LocalRetryPermit> = std::iter::from_fn(|| permits.take_for(1 << 20)).collect();
        assert_eq!(large.len(), MAX_LOCAL_RETRIES / 257);
        assert!(permits.take_for(OF_ONE - 1).is_some(), "there is room for a small one");
        drop(large);
        assert_eq!(permits.out.load(Ordering::SeqCst), 0);
    }
}
