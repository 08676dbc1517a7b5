//! What all lives of a node have in common: where to reach the others, and the settings they work by.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_backbone::Backbone;
use longshore_backbone::work::Caller;
use longshore_domain::policy::{Policies, TypePolicy};
use longshore_domain::publication::Published;
use longshore_domain::{Job, JobType, Run, SmolStr, Tenant, Timestamp, format_smolstr};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::commit::committer::Committer;
use crate::commit::committer::Input;
use crate::commit::{AfterCommit, Commit, Payload, Unlogged};
use crate::handler::{Handler, Handlers};
use crate::lease_keeper::Book;
use crate::metrics::Metrics;
use crate::shared::capacity::{Capacity, HandlerCapacity, Kind};
use crate::shared::discovery::{Discovery, Known};
use crate::shared::park_permits::ParkPermits;
use crate::shared::recently_cancelled::RecentlyCancelled;
use crate::shared::unclear_claims::UnclearClaims;
use crate::shared::unstored_ends::UnstoredEnds;
use crate::shared::waits::Waits;

pub(crate) mod capacity;
pub(crate) mod discovery;
pub(crate) mod park_permits;
pub(crate) mod recently_cancelled;
pub(crate) mod unclear_claims;
pub(crate) mod unstored_ends;
pub(crate) mod waits;

/// Shared by every actor of a node.
pub(crate) struct Shared {
    pub(crate) backbone: Backbone,
    pub(crate) node: SmolStr,
    /// This very start of it.
    pub(crate) instance: String,
    pub(crate) started_at: Timestamp,
    pub(crate) policies: Policies,
    pub(crate) handlers: Handlers,
    pub(crate) committer: Committer,
    pub(crate) book: Arc<Book>,
    pub(crate) caller: Caller,
    pub(crate) metrics: Arc<Metrics>,
    /// Set once this node hears of cancels.
    pub(crate) hears_cancels: CancellationToken,
    /// Set once the API is served.
    pub(crate) serving: CancellationToken,
    /// Set when the node takes no new work.
    pub(crate) draining: CancellationToken,
    /// Set when the grace time is over: running jobs are put back.
    pub(crate) release: CancellationToken,
    /// Runs that were cancelled a moment ago.
    pub(crate) recently_cancelled: RecentlyCancelled,
    /// Claims whose answers were lost.
    pub(crate) unclear_claims: UnclearClaims,
    /// Short retries that wait in hand.
    pub(crate) local_retries: AtomicUsize,
    /// Its jobs with remote handlers.
    pub(crate) handler_capacity: Arc<HandlerCapacity>,
    /// What remote handlers announce of themselves.
    pub(crate) discovery: Discovery,
    /// Who waits for runs' ends.
    pub(crate) waits: Arc<Waits>,
    /// Ends that stand on no record.
    pub(crate) unstored_ends: UnstoredEnds,
    /// Handlers that neither ended in time nor heard that they should.
    pub(crate) unresponsive: Arc<AtomicUsize>,
    /// The room for run records is all but full.
    pub(crate) records_full: AtomicBool,
    /// Lanes that refused their last due job because they are full.
    pub(crate) full_lanes: Mutex<BTreeSet<crate::time::closed_lanes::Lane>>,
    /// For jobs that are being parked.
    pub(crate) park_permits: Arc<ParkPermits>,
    writer: SmolStr,
    writes: AtomicU64,
}

/// So many bits less than 64 name a writer: so its first four billion tokens lie within the value (`SmolStr`).
const WRITER_SPARES: u32 = 8;
/// Short retries that one node may keep in hand; more go through schedules.
pub(crate) const MAX_LOCAL_RETRIES: usize = 1_024;

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
            hears_cancels: CancellationToken::new(),
            serving: CancellationToken::new(),
            draining: CancellationToken::new(),
            release: CancellationToken::new(),
            recently_cancelled: RecentlyCancelled::default(),
            unclear_claims: UnclearClaims::default(),
            local_retries: AtomicUsize::new(0),
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

    /// A token that no other write of a record has, of this process or any other.
    pub(crate) fn token(&self) -> SmolStr {
        format_smolstr!("{}-{:x}", self.writer, self.writes.fetch_add(1, Ordering::Relaxed))
    }

    /// The part of those tokens that names this process.
    pub(crate) fn writer(&self) -> &str {
        &self.writer
    }

    /// Publishes what is still to be published of a run whose record is stored; waits until the log has it.
    ///
    /// # Errors
    /// The committer died with it in its hand, or the process is ending: the log may not have it.
    pub(crate) async fn publish(&self, run: &Run, published: Published) -> Result<(), Unlogged> {
        let run = Box::new(run.clone());
        let commit = Commit::is_stored(run, Payload::default(), published, &self.node, &self.backbone);
        self.carry_out(commit).await.map(drop)
    }

    /// Has a commit carried out that no delivery belongs to, and waits for that; the revision of its record.
    ///
    /// # Errors
    /// The record is another's by now, the committer died with it in its hand, or the process is ending.
    pub(crate) async fn carry_out(&self, mut commit: Commit) -> Result<u64, Unlogged> {
        let (done, carried_out) = oneshot::channel();
        commit.after = AfterCommit::Report(done);
        self.committer.send(Input::Commit(Box::new(commit))).await;
        carried_out.await.map_err(|_| Unlogged)
    }

    /// How jobs of this type are treated.
    pub(crate) fn policy(&self, job: &Job) -> &TypePolicy {
        self.policies.of(&job.job_type)
    }

    /// The handler inside this node that serves the job; `None`: a remote one.
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

    /// Nobody was there for this job: whoever comes is asked first.
    pub(crate) fn forget_handlers(&self, job: &Job) {
        let subject = self.backbone.names().work(&job.tenant, &job.job_type);
        self.discovery.forget(&subject);
    }

    /// How many jobs may be with the remote handlers of this one at once, all that those serve together: what they
    /// announce, in sum, or the type's own number where they announce nothing. One, until they were asked.
    pub(crate) fn capacity_of(&self, job: &Job) -> Capacity {
        self.capacity_of_kind(&job.tenant, &job.job_type)
    }

    /// How many jobs of a kind could start at once: as many as its handlers have places free, or `max` where they run in
    /// this node.
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

    /// Attempts in a round of this job.
    pub(crate) fn max_attempts(&self, job: &Job) -> u32 {
        let asked = job.options.as_ref().and_then(|options| options.max_attempts);
        asked.unwrap_or(self.policy(job).max_attempts)
    }
}

/// What proves that a message of a run was written by a node: nobody can guess it.
pub(crate) fn new_seal() -> SmolStr {
    format_smolstr!("{:016x}", rand::random::<u64>())
}

/// The time of day. The one clock of this room that is not monotonic: for what is written down, never for leases.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
