//! How far a node's life has come: it serves, it drains, it leaves. Each is set once and never taken back.

use tokio_util::sync::CancellationToken;

/// The stages of a node's life. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lifecycle {
    /// Set once the API is served.
    pub(crate) serving: CancellationToken,
    /// Set once the schedules that the configuration declares are as it says.
    pub(crate) in_line: CancellationToken,
    /// Set when the node takes no new work.
    pub(crate) draining: CancellationToken,
    /// Set once the ends of all that ran are stored: the API takes no more requests, and none waits any longer for a
    /// run.
    pub(crate) leaving: CancellationToken,
    /// Set once the API's last requests are answered.
    pub(crate) answered: CancellationToken,
}

impl Lifecycle {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}
