//! Runs that were cancelled a moment ago.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use longshore_domain::{Job, RunId, Tenant};
use tokio_util::sync::CancellationToken;

use crate::runtime::Unpoisoned as _;
use crate::runtime::last_added::LastAdded;

/// Cancelled runs that a node remembers, for the jobs it has buffered.
const REMEMBERED: usize = 4_096;
/// Runs that were cancelled a moment ago: a buffered job of such a run does not begin without reading its record.
#[derive(Debug, Default)]
pub(crate) struct RecentlyCancelled {
    /// Set once this node receives every new cancellation.
    listening: CancellationToken,
    any: AtomicBool,
    runs: Mutex<LastAdded<RunKey, REMEMBERED>>,
    /// The nodes that are there, and when that was read.
    nodes: Mutex<Option<(Instant, Arc<[String]>)>>,
}

type RunKey = (Tenant, RunId);

impl RecentlyCancelled {
    /// From now on this node receives every new cancellation.
    pub(crate) fn is_listening(&self) {
        self.listening.cancel();
    }

    /// Waits until then.
    pub(crate) async fn listens(&self) {
        self.listening.cancelled().await;
    }

    /// Adds one; the oldest is forgotten if there are too many.
    pub(crate) fn add(&self, tenant: &Tenant, run: &RunId) {
        self.runs.lock().unpoisoned().add((tenant.clone(), run.clone()));
        self.any.store(true, Ordering::Release);
    }

    /// The nodes that are there, if that was read a moment ago.
    pub(crate) fn nodes(&self, known_for: Duration) -> Option<Arc<[String]>> {
        let nodes = self.nodes.lock().unpoisoned();
        nodes.as_ref().filter(|(at, _)| at.elapsed() < known_for).map(|(_, nodes)| Arc::clone(nodes))
    }

    pub(crate) fn set_nodes(&self, nodes: &Arc<[String]>) {
        *self.nodes.lock().unpoisoned() = Some((Instant::now(), Arc::clone(nodes)));
    }

    /// Whether the job's run is one of them. Costs one load if there are none.
    pub(crate) fn has(&self, job: &Job) -> bool {
        self.any.load(Ordering::Acquire) && {
            let runs = self.runs.lock().unpoisoned();
            runs.has(&(job.tenant.clone(), job.run_id.clone()))
        }
    }
}
