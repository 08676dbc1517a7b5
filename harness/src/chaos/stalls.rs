//! Whether the machine gave this process its time: a machine that is itself paused breaks leases without a fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(50);

/// The watch; it ends with this value.
pub(super) struct Stalls(Arc<AtomicU64>);

/// Watches from now on. The wall clock counts, as a paused machine's monotonic clock may stand still with it.
pub(super) fn watch() -> Stalls {
    let longest = Arc::new(AtomicU64::new(0));
    let of = Arc::downgrade(&longest);
    std::thread::spawn(move || {
        let mut last = SystemTime::now();
        while let Some(longest) = of.upgrade() {
            std::thread::sleep(EVERY);
            let now = SystemTime::now();
            let took = now.duration_since(last).unwrap_or_default().saturating_sub(EVERY);
            longest.fetch_max(u64::try_from(took.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            last = now;
        }
    });
    Stalls(longest)
}

impl Stalls {
    /// The longest time that it stood still so far.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}
