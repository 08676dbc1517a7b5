//! Whether the machine gave this process its time: a machine that is itself paused breaks leases without a fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, SystemTime};

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(50);

/// The watch; it ends with this value.
pub(super) struct Stalls {
    longest: Arc<AtomicU64>,
    _ends: Sender<()>,
}

/// Watches from now on. The wall clock counts, as a paused machine's monotonic clock may stand still with it.
pub(super) fn watch() -> Stalls {
    let longest = Arc::new(AtomicU64::new(0));
    let (ends, ended) = channel();
    let stalls = Stalls { longest: Arc::clone(&longest), _ends: ends };
    std::thread::spawn(move || {
        let mut last = SystemTime::now();
        while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            let now = SystemTime::now();
            let stood = now.duration_since(last).unwrap_or_default().saturating_sub(EVERY);
            longest.fetch_max(u64::try_from(stood.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
            last = now;
        }
    });
    stalls
}

impl Stalls {
    /// The longest time that it stood still so far.
    pub(super) fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::Relaxed))
    }
}
