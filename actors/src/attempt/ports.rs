//! What an attempt asks of its node, besides what every decision about a run asks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_domain::served::NeverServed;
use longshore_domain::{Job, Run};

use crate::attempt::recently_cancelled::RecentlyCancelled;
use crate::attempt::unclear_claims::UnclearClaims;
use crate::attempt::unstored_ends::UnstoredEnds;
use crate::commit::Commit;
use crate::lease_keeper::Book;
use crate::ports::RunPorts;
use crate::runtime::permits::LocalRetryPermits;

/// What an attempt asks: clocks, chance, and what the node's parts remember together.
pub(crate) trait Ports: RunPorts {
    /// The monotonic clock, for leases.
    fn instant(&self) -> Instant;
    /// Evenly 0 ≤ x < 1.
    fn chance(&self) -> f64;
    /// The part of the write tokens that names this process.
    fn writer(&self) -> &str;

    fn book(&self) -> &Arc<Book>;
    fn recently_cancelled(&self) -> &RecentlyCancelled;
    fn unclear_claims(&self) -> &UnclearClaims;
    fn unstored_ends(&self) -> &UnstoredEnds;
    fn local_retries(&self) -> &Arc<LocalRetryPermits>;

    /// The least time that a successful attempt of a job like this took lately, if that is known and the job has a
    /// deadline.
    fn needs(&self, job: &Job) -> Option<Duration>;
    /// The job's type, if it is certain that no handler of it was ever online in the whole cluster; asks the server.
    async fn never_served(&self, job: &Job) -> Option<NeverServed>;
    /// A run is given up without being started, for this reason.
    fn gave_up(&self, run: &Run, reason: &'static str);

    /// Hands a commit over to the committer.
    async fn commit(&self, commit: Box<Commit>);

    /// Waits for so long, or until the node drains.
    async fn wait_or_drain(&self, wait: Duration);
    fn is_draining(&self) -> bool;
}
