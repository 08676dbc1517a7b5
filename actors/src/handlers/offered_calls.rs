//! The calls of other nodes that this node's own handlers work on. They outlive the loop that takes them, so that a
//! drain can wait for them, and hand back those that take too long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use longshore_domain::{RunId, Tenant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::runtime::Unpoisoned as _;

/// Maximum number of calls that this node has taken, at work or waiting for a slot.
const MAX_CALLS: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct OfferedCalls {
    open: Mutex<HashMap<u64, (Tenant, RunId, CancellationToken)>>,
    next: AtomicU64,
    /// Those at work, each in a task of its own.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when the node's grace time is over: what still runs is handed back.
    pub(crate) handed_back: CancellationToken,
}

/// A call that is open for as long as this lives.
#[derive(Debug)]
pub(crate) struct OpenCall {
    calls: Arc<OfferedCalls>,
    number: u64,
    /// Cancelled when the attempt is to stop.
    pub(crate) stop: CancellationToken,
}

impl OfferedCalls {
    /// Opens a call about this run, unless there are too many.
    pub(crate) fn open(self: &Arc<Self>, tenant: &Tenant, run: &RunId) -> Option<OpenCall> {
        let mut open = self.open.lock().unpoisoned();
        if open.len() >= MAX_CALLS {
            return None;
        }
        let (number, stop) = (self.next.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        open.insert(number, (tenant.clone(), run.clone(), stop.clone()));
        Some(OpenCall { calls: Arc::clone(self), number, stop })
    }

    /// Asks the calls about this run to stop.
    pub(crate) fn cancel(&self, tenant: &Tenant, run: &RunId) {
        let open = self.open.lock().unpoisoned();
        let about_it = open.values().filter(|(of, id, _)| of == tenant && id == run);
        about_it.for_each(|(_, _, stop)| stop.cancel());
    }

    /// Waits until there is none.
    pub(crate) async fn idle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.calls.open.lock().unpoisoned().remove(&self.number);
    }
}
