//! The state that all parts of a node share: handles of other parts, the settings, and tables that several parts use.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_backbone::Backbone;
use longshore_backbone::work::Caller;
use longshore_domain::policy::Policies;
use longshore_domain::publication::Published;
use longshore_domain::{Job, JobType, Run, SmolStr, Tenant, Timestamp, format_smolstr};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::commit::committer::{Committer, Input};
use crate::commit::{AfterCommit, Commit, Payload, Unlogged};
use crate::handler::{Handler, Handlers};
use crate::lease_keeper::Book;
use crate::metrics::Metrics;
use crate::ports::Ports as _;
use crate::shared::capacity::{Capacity, HandlerCapacity, Kind};
use crate::shared::discovery::{Discovery, Known};
use crate::shared::permits::{LocalRetryPermits, ParkPermits};
use crate::shared::recently_cancelled::RecentlyCancelled;
use crate::shared::unclear_claims::UnclearClaims;
use crate::shared::unstored_ends::UnstoredEnds;
use crate::shared::waits::Waits;

pub(crate) mod capacity;
pub(crate) mod discovery;
pub(crate) mod park_permits;
pub(crate) mod permits;
pub(crate) mod recently_cancelled;
pub(crate) mod unclear_claims;
pub(crate) mod unstored_ends;
pub(crate) mod waits;

/// Shared by every actor of a node.
pub(crate) struct Shared {
    pub(crate) backbone: Backbone,
    pub(crate) node: SmolStr,
    /// Identifies this start of the node.
    pub(crate) instance: String,
    pub(crate) started_at: Timestamp,
    pub(crate) policies: Policies,
    pub(crate) handlers: Handlers,
    pub(crate) committer: Committer,
    pub(crate) book: Arc<Book>,
    pub(crate) caller: Caller,
    pub(crate) metrics: Arc<Metrics>,
    /// Set once this node receives cancellations.
    pub(crate) knows_cancels: CancellationToken,
    /// Set once the API is served.
    pub(crate) serving: CancellationToken,
    /// Set when the node takes no new work.
    pub(crate) draining: CancellationToken,
    /// Set when the grace time is over: running jobs are released.
    pub(crate) release: CancellationToken,
    /// Runs that were cancelled a moment ago.
    pub(crate) recently_cancelled: RecentlyCancelled,
    /// Claims whose answers were lost.
    pub(crate) unclear_claims: UnclearClaims,
    /// Permits of short retries that are held locally.
    pub(crate) local_retries: Arc<LocalRetryPermits>,
    /// The capacity of remote handlers that this node uses.
    pub(crate) handler_capacity: Arc<HandlerCapacity>,
    /// What remote handlers announce.
    pub(crate) discovery: Discovery,
    /// How many callers wait for runs' ends.
    pub(crate) waits: Arc<Waits>,
    /// Ends that no record stores.
    pub(crate) unstored_ends: UnstoredEnds,
    /// How many handlers neither ended in time nor reacted to their cancellation.
    pub(crate) unresponsive: Arc<AtomicUsize>,
    /// The stream of run records is all but full.
    pub(crate) records_full: AtomicBool,
    /// Lanes that refused their last due job because they are full.
    pub(crate) full_lanes: Mutex<BTreeSet<crate::time::closed_lanes::Lane>>,
    /// Permits of jobs that are being parked.
    pub(crate) park_permits: Arc<ParkPermits>,
    writer: SmolStr,
    writes: AtomicU64,
}

/// A writer's name has so many bits less than 64, so that its first four billion tokens are stored inline (`SmolStr`).
const WRITER_SPARES: u32 = 8;

impl Shared {
    #[expect(clippy::too_many_arguments, reason = "each is a field; the node is the only caller")]
    pub(crate) fn new(
        backbone: Backbone,
        node: SmolStr,
        policies: Policies,
        handlers: Handlers,
        committer: Committer,
        book: Arc<Book>,
        caller: Caller,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            backbone,
            node,
            instance: uuid::Uuid::now_v7().simple().to_string(),
            started_at: now(),
            policies,
            handlers,
            committer,
            book,
            caller,
            metrics,
            knows_cancels: CancellationToken::new(),
            serving: CancellationToken::new(),
            draining: CancellationToken::new(),
            release: CancellationToken::new(),
            recently_cancelled: RecentlyCancelled::default(),
            unclear_claims: UnclearClaims::default(),
            local_retries: Arc::default(),
            handler_capacity: Arc::default(),
            discovery: Discovery::default(),
            waits: Arc::default(),
            unstored_ends: UnstoredEnds::default(),
            unresponsive: Arc::default(),
            records_full: AtomicBool::new(false),
            full_lanes: Mutex::default(),
            park_permits: Arc::default(),
            writer: format_smolstr!("{:x}", rand::random::<u64>() >> WRITER_SPARES),
            writes: AtomicU64::new(0),
        }
    }

    /// A write token that no other write has, of this process or any other.
    pub(crate) fn token(&self) -> SmolStr {
        format_smolstr!("{}-{:x}", self.writer, self.writes.fetch_add(1, Ordering::Relaxed))
    }

    /// The part of those tokens that names this process.
    pub(crate) fn writer(&self) -> &str {
        &self.writer
    }

    /// Publishes the remaining events of a run whose record is stored; waits until the log has them.
    ///
    /// # Errors
    /// The committer died while it worked on the commit, or the process is ending: the log may lack the events.
    pub(crate) async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        let run = Box::new(run.clone());
        let commit = Commit::of_stored(run, Payload::default(), published, self.author());
        self.carry_out(commit).await.map(drop)
    }

    /// Has a commit without a delivery carried out and waits for that; returns the revision of its record.
    ///
    /// # Errors
    /// Another write of the record was first, the committer died while it worked on the commit, or the process is
    /// ending.
    pub(crate) async fn carry_out(&self, mut commit: Commit) -> Result<u64, Unlogged> {
        let (done, carried_out) = oneshot::channel();
        commit.after = AfterCommit::Report(done);
        self.committer.send(Input::Commit(Box::new(commit))).await;
        carried_out.await.map_err(|_| Unlogged)
    }

    /// The handler inside this node that serves the job; `None`: a remote handler does.
    pub(crate) fn handler(&self, job: &Job) -> Option<&Arc<dyn Handler>> {
        self.handler_of(&job.job_type)
    }

    fn handler_of(&self, job_type: &JobType) -> Option<&Arc<dyn Handler>> {
        match self.policies.of(job_type).handler.as_deref() {
            Some("remote") => None,
            Some(name) => self.handlers.get(name),
            None => self.handlers.get(job_type.as_str()),
        }
    }

    /// No handler was there for this job: the next ones are asked before they get jobs.
    pub(crate) fn forget_handlers(&self, job: &Job) {
        let subject = self.backbone.names().work(&job.tenant, &job.job_type);
        self.discovery.forget(&subject);
    }

    /// How many jobs may be with the remote handlers of this job at once, of all types that these serve together: the
    /// sum of what the handlers announce, or the type's own number if they announce nothing; one, until they were
    /// asked.
    pub(crate) fn capacity_of(&self, job: &Job) -> Capacity {
        self.capacity_of_kind(&job.tenant, &job.job_type)
    }

    /// How many jobs of a kind could start at once: the free capacity of its handlers, or `max` if they run in this
    /// node.
    pub(crate) fn free_places(&self, kind: &Kind, max: usize) -> usize {
        match self.handler_of(&kind.job_type) {
            Some(_) => max,
            None => self.handler_capacity.free(&self.capacity_of_kind(&kind.tenant, &kind.job_type)),
        }
    }

    fn capacity_of_kind(&self, tenant: &Tenant, job_type: &JobType) -> Capacity {
        let names = self.backbone.names();
        let subject = names.work(tenant, job_type);
        let announced = match self.discovery.of(&subject) {
            Known::Slots(announced) => announced,
            Known::Unknown { was_missed } => {
                let shared_by = vec![names.work_of_all(job_type)];
                return Capacity { subject, shared_by, max: usize::from(!was_missed) };
            }
        };
        let places = |slots: u32| usize::try_from(slots).unwrap_or(usize::MAX);
        match announced.iter().map(|(_, slots)| places(*slots)).sum() {
            0 => {
                let shared_by = vec![names.work_of_all(job_type)];
                Capacity { subject, shared_by, max: places(self.policies.of(job_type).slots) }
            }
            max => {
                let shared_by = announced.into_iter().map(|(subject, _)| subject).collect();
                Capacity { subject, shared_by, max }
            }
        }
    }

    /// How often a remote handler of this job promised to signal.
    pub(crate) fn heartbeat(&self, job: &Job) -> Option<Duration> {
        let subject = self.backbone.names().work(&job.tenant, &job.job_type);
        self.policy(job).heartbeat.or_else(|| self.discovery.heartbeat(&subject))
    }
}

/// A seal: proves that a node wrote a message of a run, because it cannot be guessed.
pub(crate) fn new_seal() -> SmolStr {
    format_smolstr!("{:016x}", rand::random::<u64>())
}

/// The time of day. The only clock of this crate that is not monotonic: for timestamps that are stored, never for
/// leases.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
