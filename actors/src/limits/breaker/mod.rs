//! What a node knows of its circuit breakers. The gate asks it whether a job may start, attempts report to it how they
//! ended, and the actor [`keeper`], which may die, writes what it has to write.
//!
//! `steps` is what that actor uses of it.
//!
//! A breaker that has seen no failure has no entry, so that it costs next to nothing. Bound: [`MAX_BREAKERS`]; further
//! breakers do not open, and the log says so.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::breaker::record::{Breaker, BreakerKey};
use longshore_domain::breaker::view::{Admission, Pass, View};
use longshore_domain::breaker::{BreakerPolicy, Signal};
use longshore_domain::policy::Policies;
use longshore_domain::{Job, JobType, SmolStr};
use tokio::sync::Notify;

use crate::runtime::gate_news::GateNews;
use crate::runtime::kind::Kind;
use crate::runtime::{Unpoisoned as _, now};

pub(crate) mod keeper;
mod steps;

/// Breakers that a node knows at most: with one entry for each limit key they could be any number. The records of so
/// many take up to a quarter of the control bucket.
const MAX_BREAKERS: usize = 16_384;
/// Parked jobs are taken back when their breaker has cooled down, but for this.
const SOON: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Breakers {
    policies: Arc<Policies>,
    /// This process, as records name it.
    writer: SmolStr,
    /// Numbers the steps of this process.
    steps: AtomicU64,
    table: Mutex<BreakerTable>,
    /// How many views there are.
    known: AtomicUsize,
    is_full: AtomicBool,
    /// The cluster's records were read once, so that a breaker that is open holds up this node as well.
    was_read: AtomicBool,
    /// A state has changed since the metrics were last set.
    has_changed: AtomicBool,
    /// Notified when there is a step to write.
    pub(crate) due: Notify,
    /// Notified when jobs may start that could not before.
    news: Arc<GateNews>,
}

#[derive(Default)]
struct BreakerTable {
    /// By the kind of their jobs; the key is that of none where a type has one breaker for all of them.
    views: HashMap<Kind, KnownBreaker>,
    /// Those with a step to write, now or soon.
    busy: HashSet<Kind>,
}

struct KnownBreaker {
    of: BreakerKey,
    view: View,
}

/// Lets an attempt start. The attempt reports to it how it ended; dropped without that, the attempt says nothing about
/// its service.
pub(crate) struct BreakerPass {
    breakers: Arc<Breakers>,
    of: BreakerKey,
    pass: Pass,
    has_reported: bool,
}

impl std::fmt::Debug for BreakerPass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BreakerPass").field("of", &self.of).field("pass", &self.pass).finish_non_exhaustive()
    }
}

/// Whether a job may start.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// It may.
    Go(BreakerPass),
    /// Not before this time.
    NotBefore(longshore_domain::Timestamp),
    /// Not before its breaker changes.
    WhenChanged,
    /// Not before the cluster's breakers were read.
    WhenRead,
}

impl Breakers {
    /// No breaker is known. `writer` is a name that no other process has.
    pub(crate) fn new(policies: Arc<Policies>, writer: &str, news: Arc<GateNews>) -> Self {
        Self { policies, writer: SmolStr::from(writer), steps: AtomicU64::new(1), news, ..Self::default() }
    }

    fn table(&self) -> MutexGuard<'_, BreakerTable> {
        self.table.lock().unpoisoned()
    }

    /// The settings of a type's breakers, if it has any.
    pub(crate) fn policy(&self, job_type: &JobType) -> Option<&BreakerPolicy> {
        self.policies.of(job_type).breaker.as_ref()
    }

    /// The types with settings of their own that have breakers.
    pub(crate) fn types(&self) -> impl Iterator<Item = &JobType> {
        self.policies.types.iter().filter(|(_, policy)| policy.breaker.is_some()).map(|(job_type, _)| job_type)
    }

    pub(crate) fn are_used(&self) -> bool {
        let of_types = self.policies.types.values().any(|policy| policy.breaker.is_some());
        of_types || self.policies.default_type.breaker.is_some()
    }

    /// Which breaker a job falls under; `None`: its type has none.
    pub(crate) fn key_of(&self, job: &Job) -> Option<BreakerKey> {
        let policy = self.policy(&job.job_type)?;
        let key = job.options.as_ref().and_then(|options| options.limit_key.as_deref());
        let key = key.filter(|_| policy.per_key).map(SmolStr::from);
        Some(BreakerKey { tenant: job.tenant.clone(), job_type: job.job_type.clone(), key })
    }

    /// Whether a job may start now; `None`: no breaker holds it up.
    pub(crate) fn admit(self: &Arc<Self>, job: &Job) -> Option<Admitted> {
        let of = self.key_of(job)?;
        let (policy, kind) = (self.policy(&of.job_type)?, kind_of(&of));
        let go = |of, pass| Admitted::Go(BreakerPass { breakers: Arc::clone(self), of, pass, has_reported: false });
        if !self.was_read.load(Ordering::Relaxed) {
            return Some(Admitted::WhenRead);
        }
        if self.known.load(Ordering::Relaxed) == 0 {
            return Some(go(of, Pass::default()));
        }
        let (now, mut table) = (now(), self.table());
        let Some(KnownBreaker { view, .. }) = table.views.get_mut(&kind) else { return Some(go(of, Pass::default())) };
        let admission = view.may_start(now, policy);
        if admission == Admission::Wait && view.has_work(now, policy) {
            self.is_busy(table, &kind);
        } else {
            drop(table);
        }
        Some(match admission {
            Admission::Go(pass) => go(of, pass),
            Admission::NotBefore(at) => Admitted::NotBefore(at),
            Admission::Wait => Admitted::WhenChanged,
        })
    }

    /// How many jobs of a kind could start now; `None`: none for some time.
    pub(crate) fn room_for(&self, kind: &Kind) -> Option<usize> {
        let now = now();
        let room = self.view_of(kind, |view, policy| match view.opens_at(now) {
            Some(at) if at.since(now) > SOON => None,
            _ => Some(view.free(now, policy, usize::MAX)),
        });
        room.unwrap_or(Some(usize::MAX))
    }

    /// Whether the breaker of these jobs is not closed.
    pub(crate) fn holds_up(&self, kind: &Kind) -> bool {
        let now = now();
        let is_closed = |view: &View| view.known(now).is_none_or(Breaker::is_closed);
        self.view_of(kind, |view, _| !is_closed(view)).unwrap_or(false)
    }

    /// What is known of the breaker of these jobs; `None`: nothing is.
    fn view_of<T>(&self, kind: &Kind, of: impl FnOnce(&View, &BreakerPolicy) -> T) -> Option<T> {
        let policy = self.policy(&kind.job_type)?;
        if self.known.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let key = if policy.per_key { kind.key.without_concurrency() } else { KindKey::default() };
        let kind = Kind { key, ..kind.clone() };
        self.table().views.get(&kind).map(|known| of(&known.view, policy))
    }

    /// An attempt has ended that began with this pass. Says whether the next one has to wait.
    fn ended(&self, of: &BreakerKey, pass: Pass, signal: Signal) -> bool {
        let Some(policy) = self.policy(&of.job_type) else { return false };
        let says_nothing = match signal {
            Signal::Neutral => pass.probe.is_none(),
            // A breaker without failures needs its successes only for the share of failures.
            Signal::Success => self.known.load(Ordering::Relaxed) == 0 && policy.ratio.is_none(),
            Signal::Failure => false,
        };
        if says_nothing {
            return false;
        }
        let (now, kind, mut table) = (now(), kind_of(of), self.table());
        // Half of the room is kept for failures.
        let is_new = signal == Signal::Failure || (policy.ratio.is_some() && table.views.len() < MAX_BREAKERS / 2);
        let known = if is_new { self.known(&mut table, of, &kind) } else { table.views.get_mut(&kind) };
        let Some(KnownBreaker { view, .. }) = known else { return false };
        view.ended(pass, signal, now, policy);
        let waits = view.free(now, policy, 1) == 0;
        if view.has_work(now, policy) {
            self.is_busy(table, &kind);
        }
        waits
    }

    /// A breaker may have a step to write.
    fn is_busy(&self, mut table: MutexGuard<'_, BreakerTable>, kind: &Kind) {
        if !table.busy.contains(kind) {
            table.busy.insert(kind.clone());
        }
        drop(table);
        self.due.notify_one();
    }

    /// What is known of a breaker; a new entry if there is room.
    fn known<'a>(
        &self,
        BreakerTable { views, .. }: &'a mut BreakerTable,
        of: &BreakerKey,
        kind: &Kind,
    ) -> Option<&'a mut KnownBreaker> {
        if !views.contains_key(kind) {
            if views.len() >= MAX_BREAKERS {
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    tracing::warn!("there are {MAX_BREAKERS} circuit breakers: further ones do not open");
                }
                return None;
            }
            views.insert(kind.clone(), KnownBreaker { of: of.clone(), view: View::new(self.writer.clone()) });
            self.known.store(views.len(), Ordering::Relaxed);
        }
        views.get_mut(kind)
    }
}

fn kind_of(of: &BreakerKey) -> Kind {
    let key = KindKey::of_limit_key(of.key.as_deref());
    Kind { tenant: of.tenant.clone(), job_type: of.job_type.clone(), key }
}

impl BreakerPass {
    /// The attempt has ended. Says whether its next one has to wait.
    pub(crate) fn ended(mut self, signal: Signal) -> bool {
        self.has_reported = true;
        self.breakers.ended(&self.of, self.pass, signal)
    }

    /// Whether it lets a job start as a probe of a half-open breaker.
    pub(crate) fn is_probe(&self) -> bool {
        self.pass.probe.is_some()
    }
}

impl Drop for BreakerPass {
    fn drop(&mut self) {
        if !self.has_reported {
            self.breakers.ended(&self.of, self.pass, Signal::Neutral);
        }
    }
}

#[cfg(test)]
mod tests;
