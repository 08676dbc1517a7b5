//! What all lives of a node have in common: where to reach the others, and the settings they work by.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longshore_backbone::Backbone;
use longshore_backbone::work::{Announced, Caller, falls_under};
use longshore_domain::policy::{Policies, TypePolicy};
use longshore_domain::{Job, JobType, SmolStr, Tenant, Timestamp, format_smolstr};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::blocked::{Kind, ParkPermits};
use crate::handler::{Handler, Handlers};
use crate::herald::Herald;
use crate::lease_keeper::Book;
use crate::metrics::Metrics;
use crate::slots::{Room, Slots};
use crate::waits::{Unkept, Waits};

/// Shared by every actor of a node.
pub(crate) struct Shared {
    pub(crate) backbone: Backbone,
    pub(crate) node: SmolStr,
    /// This very start of it.
    pub(crate) instance: String,
    pub(crate) started_at: Timestamp,
    pub(crate) policies: Policies,
    pub(crate) handlers: Handlers,
    pub(crate) herald: Herald,
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
    pub(crate) recently_cancelled: crate::cancel::Recent,
    /// Claims whose answers were lost.
    pub(crate) unclear_claims: crate::holders::UnclearClaims,
    /// Short retries that wait in hand.
    pub(crate) in_hand_retries: AtomicUsize,
    /// Its jobs with remote handlers.
    pub(crate) slots: Arc<Slots>,
    /// What remote handlers announce of themselves.
    pub(crate) census: RwLock<Census>,
    /// Who waits for runs' ends.
    pub(crate) waits: Arc<Waits>,
    /// Ends that stand on no record.
    pub(crate) unkept: Unkept,
    /// Handlers that neither ended in time nor heard that they should.
    pub(crate) deaf: Arc<AtomicUsize>,
    /// The room for run records is all but full.
    pub(crate) records_full: AtomicBool,
    /// Lanes that refused their last due job because they are full.
    pub(crate) full_lanes: Mutex<BTreeSet<crate::closed_lanes::Lane>>,
    /// A job for a remote handler was seen since the last census.
    remote_seen: AtomicBool,
    /// For jobs that are being parked.
    pub(crate) park_permits: Arc<ParkPermits>,
    /// Its handlers are not known yet.
    strangers_seen: Notify,
    writer: SmolStr,
    writes: AtomicU64,
}

/// So many bits less than 64 name a writer: so its first four billion tokens lie within the value (`SmolStr`).
const WRITER_SPARES: u32 = 8;
/// Handlers are asked every few seconds while there are jobs for them. What is older says little of who is there now.
const CENSUS_HOLDS: Duration = Duration::from_secs(15);
/// Where nobody was there for a job, no other is tried for so long: thousands may wait for that handler.
const MISSED_FOR: Duration = Duration::from_millis(250);
/// Short retries that one node may keep in hand; more go through schedules.
pub(crate) const IN_HAND_RETRIES: usize = 1_024;

/// Most subjects of which it is remembered when they were met; beyond that all are met anew.
const MET_MOST: usize = 16_384;

/// What remote handlers announced when they were last asked.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Each endpoint that answered.
    announced: Vec<Announced>,
    /// When they were asked.
    at: Option<Instant>,
    /// Subjects that jobs are sent to.
    met: HashMap<String, Met>,
}

/// A subject that jobs are sent to.
#[derive(Debug)]
struct Met {
    /// When it was first met, or nobody was found there for the last time.
    at: Instant,
    /// Nobody was found there.
    missed: bool,
}

impl Census {
    /// What came of asking at `at`.
    pub(crate) fn replace(&mut self, announced: Vec<Announced>, at: Instant) {
        (self.announced, self.at) = (announced, Some(at));
    }

    /// Remembers that a subject was met at `now`.
    fn meet(&mut self, subject: &str, now: Instant) {
        if !self.met.contains_key(subject) {
            self.remember(subject, Met { at: now, missed: false });
        }
    }

    /// Nobody was there at `now`: what was announced before says nothing of who comes.
    fn forget(&mut self, subject: &str, now: Instant) {
        self.remember(subject, Met { at: now, missed: true });
    }

    /// Whether nobody was found there a moment ago.
    fn was_missed(&self, subject: &str, now: Instant) -> bool {
        self.met.get(subject).is_some_and(|met| met.missed && now.duration_since(met.at) < MISSED_FOR)
    }

    fn remember(&mut self, subject: &str, met: Met) {
        if self.met.len() >= MET_MOST {
            self.met.clear();
        }
        self.met.insert(subject.to_owned(), met);
    }

    /// The services that take jobs of this subject.
    fn of<'a>(&'a self, subject: &'a str) -> impl Iterator<Item = &'a Announced> {
        self.announced.iter().filter(move |service| falls_under(subject, &service.subject))
    }

    /// Whether it says at `now` what holds for this subject: its handlers were asked after it was met, for they may be as
    /// new as it is; or it names slots, which they share with subjects that are known.
    fn knows(&self, subject: &str, now: Instant) -> bool {
        let Some(asked) = self.at.filter(|at| now.duration_since(*at) < CENSUS_HOLDS) else { return false };
        match self.met.get(subject) {
            Some(met) if met.at <= asked => true,
            Some(met) if met.missed => false,
            _ => self.of(subject).any(|service| service.slots.is_some()),
        }
    }
}

impl Shared {
    #[expect(clippy::too_many_arguments, reason = "each is a field; the node is the only caller")]
    pub(crate) fn new(
        backbone: Backbone,
        node: SmolStr,
        policies: Policies,
        handlers: Handlers,
        herald: Herald,
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
            herald,
            book,
            caller,
            metrics,
            hears_cancels: CancellationToken::new(),
            serving: CancellationToken::new(),
            draining: CancellationToken::new(),
            release: CancellationToken::new(),
            recently_cancelled: crate::cancel::Recent::default(),
            unclear_claims: crate::holders::UnclearClaims::default(),
            in_hand_retries: AtomicUsize::new(0),
            slots: Arc::default(),
            census: RwLock::default(),
            waits: Arc::default(),
            unkept: Unkept::default(),
            deaf: Arc::default(),
            records_full: AtomicBool::new(false),
            full_lanes: Mutex::default(),
            remote_seen: AtomicBool::new(false),
            park_permits: Arc::default(),
            strangers_seen: Notify::new(),
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

    /// A job for a remote handler was seen.
    pub(crate) fn saw_remote(&self) {
        self.remote_seen.store(true, Ordering::Relaxed);
    }

    /// Whether one was seen since this was last asked.
    pub(crate) fn take_remote_seen(&self) -> bool {
        self.remote_seen.swap(false, Ordering::Relaxed)
    }

    /// Waits until there is a job whose handlers have to be asked before there can be more than one at once.
    pub(crate) async fn met_strangers(&self) {
        self.strangers_seen.notified().await;
    }

    /// Nobody was there for this job: whoever comes is asked first.
    pub(crate) fn forget_handlers(&self, job: &Job) {
        let subject = self.backbone.names().work(&job.tenant, &job.job_type);
        let mut census = self.census.write().unwrap_or_else(PoisonError::into_inner);
        census.forget(&subject, Instant::now());
        drop(census);
        self.strangers_seen.notify_one();
    }

    /// How many jobs may be with the remote handlers of this one at once, all that those serve together: what they
    /// announce, in sum, or the type's own number where they announce nothing. One, until they were asked.
    pub(crate) fn room(&self, job: &Job) -> Room {
        self.room_of(&job.tenant, &job.job_type)
    }

    /// How many jobs of a kind could start at once: as many as its handlers have places free, or `most` where they run in
    /// this node.
    pub(crate) fn free_places(&self, kind: &Kind, most: usize) -> usize {
        match self.handler_of(&kind.job_type) {
            Some(_) => most,
            None => self.slots.free(&self.room_of(&kind.tenant, &kind.job_type)),
        }
    }

    fn room_of(&self, tenant: &Tenant, job_type: &JobType) -> Room {
        let names = self.backbone.names();
        let subject = names.work(tenant, job_type);
        let now = Instant::now();
        let census = self.census.read().unwrap_or_else(PoisonError::into_inner);
        if !census.knows(&subject, now) {
            let (was_missed, is_met) = (census.was_missed(&subject, now), census.met.contains_key(&subject));
            drop(census);
            if !is_met {
                self.census.write().unwrap_or_else(PoisonError::into_inner).meet(&subject, now);
            }
            self.strangers_seen.notify_one();
            let shared_by = vec![names.work_of_all(job_type)];
            return Room { subject, shared_by, most: usize::from(!was_missed) };
        }
        let announced: Vec<_> =
            census.of(&subject).filter_map(|service| Some((&service.subject, service.slots?))).collect();
        let places = |slots: u32| usize::try_from(slots).unwrap_or(usize::MAX);
        match announced.iter().map(|(_, slots)| places(*slots)).sum() {
            0 => {
                let shared_by = vec![names.work_of_all(job_type)];
                Room { subject, shared_by, most: places(self.policies.of(job_type).slots) }
            }
            most => {
                let shared_by = announced.into_iter().map(|(subject, _)| subject.clone()).collect();
                Room { subject, shared_by, most }
            }
        }
    }

    /// How often a remote handler of this job promised to signal.
    pub(crate) fn heartbeat(&self, job: &Job) -> Option<Duration> {
        let census = self.census.read().unwrap_or_else(PoisonError::into_inner);
        let subject = self.backbone.names().work(&job.tenant, &job.job_type);
        self.policy(job).heartbeat.or_else(|| census.of(&subject).filter_map(|service| service.heartbeat).max())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(subject: &str, slots: Option<u32>) -> Announced {
        Announced { service: "s".to_owned(), subject: subject.to_owned(), slots, heartbeat: None, wrong: Vec::new() }
    }

    #[test]
    fn a_subject_is_known_once_its_handlers_were_asked_after_it_was_met() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut census = Census::default();
        census.meet("w.a", at(0));
        assert!(!census.knows("w.a", at(0)), "nobody was asked yet");
        census.replace(Vec::new(), at(1));
        assert!(census.knows("w.a", at(2)) && !census.knows("w.b", at(2)), "another may have come since");
        census.meet("w.b", at(2));
        census.meet("w.a", at(2));
        assert!(census.knows("w.a", at(3)) && !census.knows("w.b", at(3)), "asked before it was met");
        census.replace(Vec::new(), at(4));
        assert!(census.knows("w.b", at(5)));
        census.forget("w.b", at(5));
        assert!(!census.knows("w.b", at(6)) && census.knows("w.a", at(6)));
        assert!(!census.knows("w.a", at(4) + CENSUS_HOLDS), "that was long ago");
    }

    #[test]
    fn a_new_subject_of_known_slots_is_known() {
        let now = Instant::now();
        let mut census = Census::default();
        census.replace(vec![announced("w.*.a", Some(4)), announced("w.*.b", None)], now);
        assert!(census.knows("w.acme.a", now) && !census.knows("w.acme.b", now) && !census.knows("w.acme.c", now));
        let later = now + Duration::from_secs(1);
        for subject in ["w.acme.a", "w.acme.b"] {
            census.meet(subject, later);
        }
        assert!(census.knows("w.acme.a", later) && !census.knows("w.acme.b", later));
        census.forget("w.acme.a", later);
        assert!(!census.knows("w.acme.a", later), "nobody was there");
    }

    #[test]
    fn what_is_remembered_of_subjects_is_bounded() {
        let (mut census, now) = (Census::default(), Instant::now());
        for number in 0..2 * MET_MOST {
            census.meet(&number.to_string(), now);
            assert!((1..=MET_MOST).contains(&census.met.len()));
        }
    }
}
