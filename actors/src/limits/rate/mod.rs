//! Rate limits and holds, as this node knows them: the tokens that it holds of each limit, and what is held. Gates take
//! tokens here, without waiting; the actor [`keeper`] gets them from the cluster.
//!
//! Bounds: [`MAX_LIMITS`] limits and [`MAX_HOLDS`] holds are known at once. Jobs of further ones wait until one is
//! forgotten, if need be one that is used up for long; a further hold is not kept.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use longshore_backbone::limits::Hold;
use longshore_backbone::wire::kind_key::KindKey;
use longshore_domain::limit::{Holder, LimitId, RateLimit, Scope, Taken};
use longshore_domain::policy::{Policies, TypePolicy};
use longshore_domain::{Job, JobType, SmolStr, Tenant, Timestamp, format_smolstr};
use smallvec::SmallVec;

use crate::limits::rate::keeper::LimiterMessage;
use crate::runtime::address::Address;
use crate::runtime::gate_news::GateNews;
use crate::runtime::kind::Kind;
use crate::runtime::{Unpoisoned as _, now};

pub(crate) mod keeper;

/// How many limits may be known at once; keys make many.
const MAX_LIMITS: usize = 16_384;
/// So many places are kept free for further ones, if limits that no job wants now can be forgotten.
const SPARE: usize = 1_024;
/// Holds that are known at once.
const MAX_HOLDS: usize = 16_384;
/// How long jobs wait whose limit finds no place here.
const NO_PLACE: Duration = Duration::from_secs(1);
/// How long a submission waits for the tokens of its tenant.
const ADMITS_WITHIN: Duration = Duration::from_millis(500);
pub(crate) const MAX_HOLD: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Default)]
pub(crate) struct Limits {
    who: SmolStr,
    policies: Arc<Policies>,
    /// Whether any type has a limit by the configuration.
    any: bool,
    at_run_time: AtRunTime,
    known: Mutex<Known>,
    holds: Mutex<HashMap<SmolStr, Timestamp>>,
    /// Holds of this node that are still to be announced to the others.
    unpublished: Mutex<Vec<Hold>>,
    /// How many there are: where there are none, nothing else is asked.
    held: AtomicUsize,
    news: Arc<GateNews>,
    pub(crate) address: Address<LimiterMessage>,
    /// The limiter has been notified and has not checked yet.
    is_notified: AtomicBool,
}

/// The limits that operators have set while the cluster runs, in place of the configured ones.
#[derive(Debug, Default)]
struct AtRunTime {
    /// Whether there were any since this node started: where there were none, nothing else is asked.
    any: AtomicBool,
    limits: RwLock<HashMap<Scope, RateLimit>>,
    /// Types that have or had one: their jobs keep their order while they wait.
    types: RwLock<HashSet<JobType>>,
}

impl AtRunTime {
    fn of(&self, scope: &Scope) -> Option<RateLimit> {
        let any = self.any.load(Ordering::Acquire);
        any.then(|| self.limits.read().unpoisoned().get(scope).copied())?
    }

    fn knows(&self, job_type: &JobType) -> bool {
        let any = self.any.load(Ordering::Acquire);
        any && self.types.read().unpoisoned().contains(job_type)
    }
}

#[derive(Default)]
struct Known {
    holders: HashMap<LimitId, Holder>,
    /// Those that have something to ask.
    asking: HashSet<LimitId>,
}

impl Known {
    /// Forgets limits that are long unused, but none that is `busy`. One that is used up stays, so that the cluster is
    /// not asked too early, while there are places: thousands of such keys would hold up all other limits.
    fn forget_unused(&mut self, now: Instant, busy: &HashSet<LimitId>) {
        let mut too_many = self.holders.len().saturating_sub(MAX_LIMITS - SPARE);
        self.holders.retain(|id, holder| {
            let goes = !busy.contains(id) && (holder.is_over(now) || too_many > 0 && holder.is_idle(now));
            too_many = too_many.saturating_sub(usize::from(goes));
            !goes
        });
    }
}

type Ids = SmallVec<[(LimitId, RateLimit); 2]>;

/// Tokens for one job; those that are not spent go back when this is dropped.
pub(crate) struct Tokens {
    of: Arc<Limits>,
    taken: SmallVec<[(LimitId, Taken); 2]>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tokens").field(&self.taken).finish()
    }
}

impl Tokens {
    /// The job starts now. Says whether it may: the tokens are only good for some time.
    #[must_use]
    pub(crate) fn spend(mut self, now: Instant) -> bool {
        let are_good = self.taken.iter().all(|(_, taken)| now < taken.until);
        if are_good {
            self.taken.clear();
        }
        are_good
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        if !self.taken.is_empty() {
            let taken = std::mem::take(&mut self.taken);
            put_back(&mut self.of.known(), taken);
        }
    }
}

fn put_back(known: &mut Known, taken: SmallVec<[(LimitId, Taken); 2]>) {
    for (id, taken) in taken {
        if let Some(holder) = known.holders.get_mut(&id) {
            holder.put_back(taken);
        }
    }
}

impl Limits {
    /// Nothing is held; `who` names this life of the node.
    pub(crate) fn new(who: &str, policies: Arc<Policies>, news: Arc<GateNews>) -> Self {
        let any = policies.types.values().chain([&policies.default_type]).any(TypePolicy::has_limit);
        Self { who: SmolStr::new(who), policies, any, news, ..Self::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unpoisoned()
    }

    /// Whether jobs of this type can be held up by a limit or a hold.
    pub(crate) fn may_bite(&self, job_type: &JobType) -> bool {
        self.held.load(Ordering::Relaxed) > 0 || self.has_limit(job_type)
    }

    /// Whether jobs of this type can be held up by a limit.
    pub(crate) fn has_limit(&self, job_type: &JobType) -> bool {
        self.any && self.policies.of(job_type).has_limit() || self.at_run_time.knows(job_type)
    }

    /// Whether no limit can hold up any job.
    fn has_none(&self) -> bool {
        !self.any && !self.at_run_time.any.load(Ordering::Relaxed)
    }

    /// These limits were set at run time, and no others: they apply at once, here. Tokens of a limit that is another
    /// now are not used any more.
    pub(crate) fn set_at_run_time(&self, limits: HashMap<Scope, RateLimit>) {
        let before = {
            let mut guard = self.at_run_time.limits.write().unpoisoned();
            if *guard == limits {
                return;
            }
            let types = limits.keys().filter_map(|scope| match scope {
                Scope::Type(job_type) => Some(job_type.clone()),
                Scope::Named(_) | Scope::Tenant(_) => None,
            });
            self.at_run_time.types.write().unpoisoned().extend(types);
            std::mem::replace(&mut *guard, limits.clone())
        };
        self.at_run_time.any.store(true, Ordering::Release);
        for (scope, limit) in &limits {
            if before.get(scope) != Some(limit) {
                let RateLimit { rate, per, burst, window } = *limit;
                let window = window.as_str();
                tracing::info!(%scope, rate, ?per, burst, window, "a rate limit is set at run time");
            }
        }
        let mut known = self.known();
        for (id, holder) in &mut known.holders {
            if let Some(limit) = self.limit_of(&id.scope) {
                holder.set_limit(limit);
            }
        }
        drop(known);
        self.news.notify();
    }

    pub(crate) fn is_set(&self, scope: &Scope) -> bool {
        self.at_run_time.of(scope).is_some()
    }

    /// The scopes that have a limit, by the configuration or at run time, in their order.
    pub(crate) fn scopes(&self) -> BTreeSet<Scope> {
        let policies = &self.policies;
        let types = policies.types.iter().filter(|(_, policy)| policy.rate_limit.is_some());
        let types = types.map(|(job_type, _)| Scope::Type(job_type.clone()));
        let names = policies.limits.keys().map(|name| Scope::Named(name.clone()));
        let tenants = policies.tenants.iter().filter(|(_, policy)| policy.rate_limit.is_some());
        let tenants = tenants.map(|(tenant, _)| Scope::Tenant(tenant.clone()));
        let at_run_time = self.at_run_time.limits.read().unpoisoned();
        types.chain(names).chain(tenants).chain(at_run_time.keys().cloned()).collect()
    }

    /// The limit of a scope: as it was set at run time, else as it is configured.
    pub(crate) fn limit_of(&self, scope: &Scope) -> Option<RateLimit> {
        self.at_run_time.of(scope).or_else(|| self.policies.limit_of(scope))
    }

    /// The limits of a job. Its key chooses one of the type's own or, if there is none, of the limit that it shares.
    fn ids(&self, tenant: &Tenant, job_type: &JobType, key: &KindKey) -> Ids {
        let policy = self.policies.of(job_type);
        let of_key = || key.limit_key().map(|key| (tenant.clone(), SmolStr::new(key)));
        let mut ids = Ids::new();
        let scope = Scope::Type(job_type.clone());
        if let Some(limit) = self.at_run_time.of(&scope).or(policy.rate_limit) {
            ids.push((LimitId { scope, key: of_key() }, limit));
        }
        let shared = policy.limit.as_ref().map(|name| Scope::Named(name.clone()));
        if let Some((scope, limit)) = shared.and_then(|scope| self.limit_of(&scope).map(|limit| (scope, limit))) {
            let key = if ids.is_empty() { of_key() } else { None };
            ids.push((LimitId { scope, key }, limit));
        }
        ids
    }

    /// Takes the tokens of a job that is to start, if they are here; else says until when they are not, and asks the
    /// cluster, if that helps.
    pub(crate) fn take(self: &Arc<Self>, job: &Job, now: Instant) -> Result<Option<Box<Tokens>>, Short> {
        if self.has_none() {
            return Ok(None);
        }
        let (ids, cost) = self.ids_and_cost(job);
        if ids.is_empty() { Ok(None) } else { self.take_of(ids, cost, now).map(Some) }
    }

    /// The same for a job that is about to start, and whose tokens have expired: may wait so long for the cluster's
    /// answer, or says until when there will be none.
    pub(crate) async fn take_soon(self: &Arc<Self>, job: &Job, within: Duration) -> Result<Box<Tokens>, Instant> {
        let (ids, cost) = self.ids_and_cost(job);
        self.wait_for(&ids, cost, within).await
    }

    fn ids_and_cost(&self, job: &Job) -> (Ids, u32) {
        let options = job.options.as_deref();
        (
            self.ids(&job.tenant, &job.job_type, &KindKey::of(options)),
            options.and_then(|options| options.cost).unwrap_or(1),
        )
    }

    /// Takes the token of a job that the tenant submits, if it has a limit; may wait for the cluster's answer. If the
    /// tenant submits too many, says until when there is none.
    pub(crate) async fn admit(self: &Arc<Self>, tenant: &Tenant) -> Result<Option<Box<Tokens>>, Instant> {
        let scope = Scope::Tenant(tenant.clone());
        let Some(limit) = self.limit_of(&scope) else { return Ok(None) };
        let ids = Ids::from_iter([(LimitId { scope, key: None }, limit)]);
        self.wait_for(&ids, 1, ADMITS_WITHIN).await.map(Some)
    }

    async fn wait_for(self: &Arc<Self>, ids: &Ids, cost: u32, within: Duration) -> Result<Box<Tokens>, Instant> {
        let begun = Instant::now();
        loop {
            let known = self.news.count();
            let now = Instant::now();
            match self.take_of(ids.clone(), cost, now) {
                Ok(tokens) => return Ok(tokens),
                Err(Short { until, .. }) if now.max(until) > begun + within => return Err(until),
                Err(Short { until, .. }) => {
                    // The answer may come sooner.
                    let _ = tokio::time::timeout_at(until.into(), self.news.since(known)).await;
                }
            }
        }
    }

    fn take_of(self: &Arc<Self>, ids: Ids, cost: u32, now: Instant) -> Result<Box<Tokens>, Short> {
        let mut known = self.known();
        let (mut taken, mut has_asked) = (SmallVec::new(), false);
        let mut held_up = None;
        for (id, limit) in ids {
            let Some(holder) = self.holder(&mut known, &id, limit, now) else {
                held_up = Some(Short { until: now + NO_PLACE, share: 0 });
                break;
            };
            match holder.take(cost, now) {
                Ok(tokens) => {
                    // The next block is asked for before this one is used up.
                    if holder.ask(now).is_some() {
                        has_asked |= known.asking.insert(id.clone());
                    }
                    taken.push((id, tokens));
                }
                Err(wait) => {
                    // Until the answer comes nothing is known: jobs that may start in a moment are not sent away.
                    held_up = Some(Short { until: wait.until, share: holder.expected_in_a_second(now) as usize });
                    if wait.asks {
                        has_asked |= known.asking.insert(id);
                    }
                    break;
                }
            }
        }
        let tokens = match held_up {
            Some(short) => {
                put_back(&mut known, taken);
                Err(short)
            }
            None => Ok(Box::new(Tokens { of: Arc::clone(self), taken })),
        };
        drop(known);
        if has_asked {
            self.tokens_wanted();
        }
        tokens
    }

    /// Requests whose answers a limiter took with it as it died are sent again.
    fn ask_again(&self) {
        let known = &mut *self.known();
        let asking = known.holders.iter().filter(|(_, holder)| holder.is_asking()).map(|(id, _)| id.clone());
        known.asking.extend(asking);
    }

    fn holder<'a>(&self, known: &'a mut Known, id: &LimitId, limit: RateLimit, now: Instant) -> Option<&'a mut Holder> {
        if !known.holders.contains_key(id) {
            if known.holders.len() >= MAX_LIMITS {
                return None;
            }
            known.holders.insert(id.clone(), Holder::new(self.who.clone(), limit, now));
        }
        let holder = known.holders.get_mut(id)?;
        // It was made before the limit was set at run time, and not found when it was set.
        holder.set_limit(limit);
        Some(holder)
    }

    /// How many tokens of a limit this node could use now.
    pub(crate) fn usable(&self, id: &LimitId) -> u32 {
        self.known().holders.get(id).map_or(0, |holder| holder.usable(Instant::now()))
    }

    /// Whether parked jobs of this kind make no sense to have before some time; where tokens are at hand, how many.
    pub(crate) fn room(&self, kind: &Kind, now: Instant) -> Option<Expected> {
        if self.held_until(&kind.tenant, &kind.job_type, &kind.key).is_some() {
            return Some(Expected::NotYet);
        }
        if self.has_none() {
            return None;
        }
        let ids = self.ids(&kind.tenant, &kind.job_type, &kind.key);
        let known = self.known();
        let holders = ids.iter().map(|(id, _)| known.holders.get(id));
        let each = holders.map(|holder| match holder {
            Some(holder) if holder.at_hand(now) > 0 => Expected::Tokens(holder.at_hand(now).max(holder.share())),
            Some(holder) if holder.not_before(now).is_some() => Expected::NotYet,
            // Only a job that is here has the cluster asked.
            _ => Expected::Tokens(1),
        });
        each.min()
    }

    pub(crate) fn held_until(&self, tenant: &Tenant, job_type: &JobType, key: &KindKey) -> Option<Timestamp> {
        if self.held.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let what = self.scope_of_hold(tenant, job_type, key);
        let holds = self.holds.lock().unpoisoned();
        holds.get(&what).copied().filter(|until| *until > now())
    }

    /// Until when a job of the type is held whose key is not known here: if there is one hold of the type alone.
    pub(crate) fn only_hold(&self, tenant: &Tenant, job_type: &JobType) -> Option<Timestamp> {
        let (of_tenant, of_type) = (format_smolstr!("{tenant}."), format_smolstr!(".type.{job_type}"));
        let holds = self.holds.lock().unpoisoned();
        let of_both = holds.iter().filter(|(what, _)| what.starts_with(&*of_tenant) && what.ends_with(&*of_type));
        let mut ends = of_both.map(|(_, until)| *until).filter(|until| *until > now());
        ends.next().filter(|_| ends.next().is_none())
    }

    /// What a handler of such a job holds: its key or, without one, its type, for its tenant. A type that shares a
    /// limit holds the key for all types that share it.
    pub(crate) fn scope_of_hold(&self, tenant: &Tenant, job_type: &JobType, key: &KindKey) -> SmolStr {
        let policy = self.policies.of(job_type);
        match (&policy.limit, key.limit_key()) {
            (Some(name), Some(key)) if policy.rate_limit.is_none() => format_smolstr!("{tenant}.{key}.name.{name}"),
            (_, key) => format_smolstr!("{tenant}.{}.type.{job_type}", key.unwrap_or("_")),
        }
    }

    /// A handler asks that jobs like its own are held for so long.
    pub(crate) fn hold(&self, job: &Job, lasts: Duration) {
        let what = self.scope_of_hold(&job.tenant, &job.job_type, &KindKey::of(job.options.as_deref()));
        let hold = Hold { what, until: now().plus(lasts.min(MAX_HOLD)) };
        if self.add_holds([&hold]) > 0 {
            self.to_announce(hold);
            self.address.send(LimiterMessage::HoldAsked);
        }
    }

    /// Other nodes are still to know of a hold of this one: it is new, or its write failed. The longer of two counts.
    fn to_announce(&self, hold: Hold) {
        let mut unpublished = self.unpublished.lock().unpoisoned();
        let is_longer = |other: &Hold| other.what == hold.what && other.until >= hold.until;
        if unpublished.iter().any(is_longer) {
            return;
        }
        unpublished.retain(|other| other.what != hold.what);
        if unpublished.len() < MAX_HOLDS {
            unpublished.push(hold);
        }
    }

    /// Learns of holds, and says how many of them count: the longer of two does.
    fn add_holds<'h>(&self, some: impl IntoIterator<Item = &'h Hold>) -> usize {
        let (time, mut count) = (now(), 0);
        let mut holds = self.holds.lock().unpoisoned();
        holds.retain(|_, until| *until > time);
        for hold in some {
            if hold.until > time && (holds.len() < MAX_HOLDS || holds.contains_key(&hold.what)) {
                let until = holds.entry(hold.what.clone()).or_insert(hold.until);
                *until = (*until).max(hold.until);
                count += usize::from(*until == hold.until);
            }
        }
        self.held.store(holds.len(), Ordering::Relaxed);
        count
    }

    /// The holds that are to be announced to the other nodes, without those that are over or shorter than one that is
    /// known: they would take its place in the bucket.
    fn take_unpublished(&self) -> Vec<Hold> {
        let mut unpublished = std::mem::take(&mut *self.unpublished.lock().unpoisoned());
        let (time, holds) = (now(), self.holds.lock().unpoisoned());
        unpublished.retain(|hold| hold.until > time && holds.get(&hold.what).is_none_or(|until| *until <= hold.until));
        unpublished
    }

    /// Whether any limit is known, so that time changes something.
    fn knows_any(&self) -> bool {
        !self.known().holders.is_empty()
    }

    /// One message is enough until the limiter looks; it looks at every tick, too.
    fn tokens_wanted(&self) {
        if !self.is_notified.swap(true, Ordering::AcqRel) {
            self.address.send(LimiterMessage::TokensWanted);
        }
    }
}

/// There are too few tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    /// Before this moment, as far as is known.
    pub(crate) until: Instant,
    /// About how many there will be for this node in a second.
    pub(crate) share: usize,
}

/// How many parked jobs could start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Expected {
    /// None for some time.
    NotYet,
    /// So many tokens are here; perhaps the cluster has more.
    Tokens(u32),
}

#[cfg(test)]
mod tests;
