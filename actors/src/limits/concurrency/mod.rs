//! Concurrency limits, as this node knows them: the slots that it has of each limit. Gates take slots here, without
//! waiting; the actor [`keeper`] gets them from the cluster, gives them back, and renews the session under which the
//! node has them.
//!
//! An attempt is at work only while that session lasts: [`while_it_lasts`] takes no step of a handler after it.
//!
//! Bound: [`MAX_LIMITS`] limits are known at once. Jobs of further ones wait until one is forgotten.

pub(crate) mod errands;
pub(crate) mod keeper;
pub(crate) mod session;
mod steps;

use std::collections::{HashMap, HashSet};
use std::future::{Future, poll_fn};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::{Duration, Instant};

use longshore_backbone::bucket_space::BucketSpace;
use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::concurrency::session::Watch;
use longshore_domain::concurrency::{Ask, Block, ConcurrencyId, Holder, SlotRecord, SlotRefusal, SlotVersion};
use longshore_domain::policy::Policies;
use longshore_domain::{Job, JobType, RunId, SmolStr, Tenant};
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::limits::concurrency::keeper::SlotKeeperMessage;
use crate::limits::concurrency::session::OwnSession;
use crate::runtime::address::Address;
use crate::runtime::clock::instant;
use crate::runtime::gate_news::GateNews;
use crate::runtime::kind::Kind;
use crate::runtime::{Unpoisoned as _, now};

/// How many limits may be known at once; keys make many.
const MAX_LIMITS: usize = 16_384;
/// With more limits to ask the cluster about than this, no further jobs are taken out of their order, as long as the
/// last answer is not older than this.
const BACKLOG: usize = 128;
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
/// Limits have so many numbers.
const NUMBERS: u16 = 4_096;

pub(crate) struct Slots {
    policies: Arc<Policies>,
    known: Mutex<Known>,
    news: Arc<GateNews>,
    /// The room for new lines and orders of keys.
    pub(crate) space: BucketSpace,
    /// Counts what happens to limits, by the number of each: most jobs need not be asked about again at every news.
    versions: Box<[AtomicU32]>,
    /// How many limits the keeper has still to look at, and how many milliseconds after `made` the last answer came.
    backlog: AtomicUsize,
    answered: AtomicU64,
    made: Instant,
    /// Notified when the keeper has to look at the limits that are due.
    pub(crate) due: Notify,
    pub(crate) address: Address<SlotKeeperMessage>,
}

struct Known {
    holders: HashMap<ConcurrencyId, Holder>,
    /// Those whose record may have to be written or read.
    due: HashSet<ConcurrencyId>,
    session: Arc<OwnSession>,
    /// Sessions of other nodes, whose slots this one waits for.
    watches: HashMap<SmolStr, Watch>,
    /// The runs that have slots, by number, and the number of the next one.
    at_work: HashMap<u64, AtWork>,
    next: u64,
}

/// A run that has slots, until its permit is dropped.
struct AtWork {
    ids: SmallVec<[ConcurrencyId; 2]>,
    session: SmolStr,
    run: (Tenant, RunId),
}

type Ids = SmallVec<[(ConcurrencyId, u32); 2]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// The cluster is being asked; up to so many jobs may start then.
    Unknown(usize),
    Full,
    /// Too many limits are known here.
    NoPlace,
}

/// What a job waits for: a limit, as it was when the job was asked about. Limits may share a number, which costs a
/// question in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AwaitedLimit {
    number: u16,
    version: u32,
}

/// The slots of one attempt; they go back when this is dropped.
pub(crate) struct SlotPermit {
    of: Arc<Slots>,
    ids: SmallVec<[ConcurrencyId; 2]>,
    session: Arc<OwnSession>,
    /// Its number among the runs at work.
    number: u64,
    /// For how long they are kept once this node is gone.
    holds_for: Duration,
    is_remote: bool,
    is_spent: AtomicBool,
}

impl std::fmt::Debug for SlotPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SlotPermit").field(&self.ids).finish()
    }
}

impl SlotPermit {
    /// The job starts now. Says whether it may: the node may have lost its slots since.
    #[must_use]
    pub(crate) fn spend(&self, now: Instant) -> bool {
        self.is_spent.store(true, Ordering::Relaxed);
        self.session.lasts(now)
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        let (now, mut due) = (instant(), false);
        let mut known = self.of.known();
        known.at_work.remove(&self.number);
        for id in &self.ids {
            let Some(holder) = known.holders.get_mut(id).filter(|holder| *holder.session() == self.session.id) else {
                continue;
            };
            holder.put_back(now, self.holds_for);
            self.of.changed(id);
            if holder.gives_back(now) {
                due |= known.due.insert(id.clone());
            }
        }
        drop(known);
        self.session.returns(self.is_remote);
        if due {
            self.of.due.notify_one();
        }
        // A job that did not start leaves all as it was: no one is notified.
        if self.is_spent.load(Ordering::Relaxed) {
            self.of.news.notify();
        }
    }
}

/// Does `work` as long as the slots are this node's own. `None`: they are not any more, and no further step was taken.
pub(crate) async fn while_it_lasts<T>(permit: &SlotPermit, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut lost) = (pin!(work), pin!(permit.session.lost()));
    poll_fn(|context| {
        // A timer fires late in a process that was frozen, so the clock is asked before every step.
        if !permit.session.lasts(instant()) || lost.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

impl Slots {
    pub(crate) fn new(policies: Arc<Policies>, news: Arc<GateNews>, space: BucketSpace) -> Self {
        let known = Known {
            holders: HashMap::new(),
            due: HashSet::new(),
            session: Arc::new(OwnSession::new()),
            watches: HashMap::new(),
            at_work: HashMap::new(),
            next: 0,
        };
        let (known, due, address) = (Mutex::new(known), Notify::new(), Address::default());
        let versions = (0..NUMBERS).map(|_| AtomicU32::new(0)).collect();
        let (backlog, answered, made) = (AtomicUsize::new(0), AtomicU64::new(0), instant());
        Self { policies, known, news, space, versions, backlog, answered, made, due, address }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unpoisoned()
    }

    fn number_of(id: &ConcurrencyId) -> u16 {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        (hasher.finish() % u64::from(NUMBERS)) as u16
    }

    /// Jobs that wait for this limit may have another answer. Said while the table is locked.
    fn changed(&self, id: &ConcurrencyId) {
        self.versions[usize::from(Self::number_of(id))].fetch_add(1, Ordering::Release);
    }

    fn answered(&self) {
        let at = u64::try_from(instant().saturating_duration_since(self.made).as_millis()).unwrap_or(u64::MAX);
        self.answered.store(at, Ordering::Relaxed);
    }

    /// Whether the cluster answers, but has so many questions left that further jobs are better left in their lanes:
    /// those that wait here for an answer would be parked.
    pub(crate) fn are_behind(&self) -> bool {
        // A full bucket answers, but gives no slots.
        if self.backlog.load(Ordering::Relaxed) <= BACKLOG || self.space.is_short() {
            return false;
        }
        let answered = self.made + Duration::from_millis(self.answered.load(Ordering::Relaxed));
        instant().saturating_duration_since(answered) < ANSWERS_WITHIN
    }

    /// Whether something happened to what a job waits for.
    pub(crate) fn have_changed(&self, waits: AwaitedLimit) -> bool {
        self.versions[usize::from(waits.number)].load(Ordering::Acquire) != waits.version
    }

    /// Whether the job's attempts are counted by a limit.
    pub(crate) fn applies_to(&self, job: &Job) -> bool {
        self.has_limit(&job.job_type) || job.options.as_ref().is_some_and(|options| options.concurrency_key.is_some())
    }

    fn has_limit(&self, job_type: &JobType) -> bool {
        self.policies.of(job_type).concurrency.is_some()
    }

    pub(crate) fn has_limit_of(&self, kind: &Kind) -> bool {
        self.has_limit(&kind.job_type) || kind.key.concurrency_key().is_some()
    }

    pub(crate) fn max_of(&self, id: &ConcurrencyId) -> Option<u32> {
        let policy = self.policies.of(&id.job_type);
        if id.key.is_some() { Some(policy.key_concurrency) } else { policy.concurrency }
    }

    pub(crate) fn limits_of(&self, kind: &Kind) -> Vec<ConcurrencyId> {
        self.ids(&kind.tenant, &kind.job_type, &kind.key).into_iter().map(|(id, _)| id).collect()
    }

    /// The limits of a job and what they allow.
    fn ids(&self, tenant: &Tenant, job_type: &JobType, key: &KindKey) -> Ids {
        let policy = self.policies.of(job_type);
        let id = |key| ConcurrencyId { job_type: job_type.clone(), key };
        let of_key = key.concurrency_key().map(|key| (id(Some((tenant.clone(), key.into()))), policy.key_concurrency));
        let of_type = policy.concurrency.map(|max| (id(None), max));
        of_key.into_iter().chain(of_type).collect()
    }

    /// Takes the slots of a job that is to start. `elsewhere`: it calls a handler in another process, and asks for them
    /// to be kept for so long once this node is gone. If there are none here, the cluster is asked.
    pub(crate) fn take(
        self: &Arc<Self>,
        job: &Job,
        elsewhere: Option<Duration>,
    ) -> Result<SlotPermit, (NoSlot, AwaitedLimit)> {
        let ids = self.ids(&job.tenant, &job.job_type, &KindKey::of(job.options.as_deref()));
        let (now, holds_for) = (instant(), elsewhere.unwrap_or_default());
        let mut known = self.known();
        let lasts = known.session.lasts(now);
        // First it is seen whether there are all: a slot that is taken and put back looks used.
        for (id, max) in &ids {
            let number = Self::number_of(id);
            let waits = AwaitedLimit { number, version: self.versions[usize::from(number)].load(Ordering::Acquire) };
            let Some(holder) = holder(&mut known, id, *max, now) else { return Err((NoSlot::NoPlace, waits)) };
            if lasts && holder.has_one(now, holds_for) {
                continue;
            }
            let no_slot = match holder.wish(now, holds_for) {
                SlotRefusal::Full => NoSlot::Full,
                SlotRefusal::Unknown => NoSlot::Unknown(holder.max() as usize),
            };
            let is_new = known.due.insert(id.clone());
            self.backlog.store(known.due.len(), Ordering::Relaxed);
            drop(known);
            if is_new {
                self.due.notify_one();
            }
            return Err((no_slot, waits));
        }
        for (id, _) in &ids {
            if let Some(holder) = known.holders.get_mut(id) {
                let _ = holder.take(now, holds_for);
            }
        }
        let (session, number) = (Arc::clone(&known.session), known.next);
        known.next += 1;
        let ids: SmallVec<[ConcurrencyId; 2]> = ids.into_iter().map(|(id, _)| id).collect();
        let run = (job.tenant.clone(), job.run_id.clone());
        known.at_work.insert(number, AtWork { ids: ids.clone(), session: session.id.clone(), run });
        drop(known);
        let is_remote = elsewhere.is_some();
        session.lends(is_remote);
        let is_spent = AtomicBool::new(false);
        Ok(SlotPermit { of: Arc::clone(self), ids, session, number, holds_for, is_remote, is_spent })
    }

    /// How many parked jobs of a kind could start here; `None`: no limit bounds them.
    pub(crate) fn room(&self, kind: &Kind, now: Instant) -> Option<usize> {
        let ids = self.ids(&kind.tenant, &kind.job_type, &kind.key);
        let known = self.known();
        let room = |(id, max): &(ConcurrencyId, u32)| known.holders.get(id).map_or(*max, |holder| holder.room(now));
        ids.iter().map(room).min().map(|room| room as usize)
    }

    /// Whether other nodes' records of this limit matter here.
    fn matters(&self, id: &ConcurrencyId) -> bool {
        self.known().holders.contains_key(id)
    }

    /// Whether a block's attempts are all over, as far as is known.
    fn is_over(&self, watches: &HashMap<SmolStr, Watch>, session: &str, block: &Block) -> bool {
        watches.get(session).is_some_and(|watch| watch.is_over(block, now()))
    }

    /// The record that a write is to store.
    fn after(&self, base: &SlotRecord, ask: &Ask, max: u32) -> SlotRecord {
        let Known { watches, .. } = &*self.known();
        base.after(ask, max, |session, block| self.is_over(watches, session, block))
    }

    fn learned(&self, id: &ConcurrencyId, record: SlotRecord, revision: u64) {
        let known = &mut *self.known();
        let Some(holder) = known.holders.get_mut(id) else { return };
        let (watches, now) = (&known.watches, instant());
        let was_full = holder.is_full();
        holder.learned(SlotVersion { record, revision }, |session, block| self.is_over(watches, session, block));
        self.changed(id);
        self.answered();
        if !was_full && holder.is_full() && holder.wants(now) {
            // Jobs that were kept until this was known are judged now.
            self.news.notify();
        }
        known.due.insert(id.clone());
    }

    fn won(&self, id: &ConcurrencyId, ask: &Ask, record: SlotRecord, revision: u64) {
        let known = &mut *self.known();
        let Some(holder) = known.holders.get_mut(id) else { return };
        let watches = &known.watches;
        let is_over = |session: &str, block: &Block| self.is_over(watches, session, block);
        holder.won(ask, SlotVersion { record, revision }, instant(), is_over);
        known.due.insert(id.clone());
        self.changed(id);
        self.news.notify();
    }
}

fn holder<'a>(known: &'a mut Known, id: &ConcurrencyId, max: u32, now: Instant) -> Option<&'a mut Holder> {
    if !known.holders.contains_key(id) {
        if known.holders.len() >= MAX_LIMITS {
            return None;
        }
        let holder = Holder::new(known.session.id.clone(), max, now);
        known.holders.insert(id.clone(), holder);
    }
    known.holders.get_mut(id)
}

#[cfg(test)]
mod tests;
