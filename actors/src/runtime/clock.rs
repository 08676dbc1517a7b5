//! The clocks by which the gates go: those of the process, or in a simulation those of its world.

use std::time::Instant;

use longshore_domain::Timestamp;

/// The cluster's time: for what is stored, and for what is judged by it. The only clock of this crate that is not
/// monotonic; leases never rest on it.
pub(crate) fn now() -> Timestamp {
    #[cfg(test)]
    if let Some((_, now)) = simulated::get() {
        return now;
    }
    longshore_backbone::clock::now()
}

pub(crate) fn instant() -> Instant {
    #[cfg(test)]
    if let Some((instant, _)) = simulated::get() {
        return instant;
    }
    Instant::now()
}

/// The clocks of the world that a thread plays.
#[cfg(test)]
pub(crate) mod simulated {
    use std::cell::Cell;
    use std::time::Instant;

    use longshore_domain::Timestamp;

    thread_local! {
        static CLOCKS: Cell<Option<(Instant, Timestamp)>> = const { Cell::new(None) };
    }

    pub(super) fn get() -> Option<(Instant, Timestamp)> {
        CLOCKS.get()
    }

    /// From now on both clocks show this to the thread; `None`: they show the process's time again.
    pub(crate) fn set(clocks: Option<(Instant, Timestamp)>) {
        CLOCKS.set(clocks);
    }
}
