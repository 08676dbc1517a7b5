//! The gates of a world that have something to hold up: which of its jobs they count, and what nodes share about them,
//! in a bucket that is written by compare-and-set.
//!
//! Writes are lost, late, or stored and not answered; reads are answered by what is stored then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use longshore_chance::Chance;
use longshore_domain::breaker::record::Breaker;
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{Hold, Order, SlotRecord};
use longshore_domain::limit::{self, RateLimit, Window};
use longshore_domain::policy::{Policies, TypePolicy};

use crate::tests::simulation::breaking;
use crate::tests::simulation::client::{Client, Fate, Unclear};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::{Plan, Way};
use crate::tests::simulation::server::NEVER;
use crate::tests::simulation::world::{Kind, World};

/// One in so many mixed worlds has concurrency keys, one an order of them, and one a circuit breaker.
const ONE_IN_WITH_KEYS: u64 = 16;
const ONE_IN_WITH_ORDER: u64 = 32;
const ONE_IN_WITH_BREAKER: u64 = 32;
/// How long an entry is stored that says as much as none.
const EMPTY_LASTS: i64 = 1_000;
/// How many keys such a world has.
pub(crate) const KEYS: u32 = 2;

/// What holds jobs up in a world.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Gated {
    /// Nothing but pauses and handlers without capacity.
    No,
    /// Keys of which so many jobs run at once.
    Keys(u32),
    /// Keys whose jobs run one at a time, in their order.
    Ordered,
    /// A rate limit of all jobs.
    Limited(RateLimit),
    /// A circuit breaker.
    Breaks,
}

impl Gated {
    /// Draws what holds jobs up, and which.
    pub(crate) fn draw((seed, kind): (u64, Kind), plans: &mut [Plan]) -> Self {
        // Chance of its own: worlds without such gates stay as they are.
        let chance = Chance::new(!seed);
        let gated = match kind {
            Kind::Slots => Self::Keys(chance.pick(&[1, 1, 2, 3])),
            Kind::Mixed if seed % ONE_IN_WITH_KEYS == 3 => Self::Keys(chance.pick(&[1, 1, 2, 3])),
            Kind::Ordered => Self::Ordered,
            Kind::Mixed if seed % ONE_IN_WITH_ORDER == 5 => Self::Ordered,
            Kind::Limited => Self::Limited(draw_limit(&chance)),
            Kind::Breaks => Self::Breaks,
            Kind::Mixed if seed % ONE_IN_WITH_BREAKER == 13 => Self::Breaks,
            _ => return Self::No,
        };
        let of: Vec<Option<u32>> = plans.iter().map(|_| chance.hits(7_500).then(|| chance.below(KEYS))).collect();
        let forged: Vec<usize> = plans.iter().filter_map(|plan| plan.way.is_forged()).collect();
        for (index, plan) in plans.iter_mut().enumerate() {
            let is_chained = matches!(plan.way, Way::Follows(_)) || plan.is_followed();
            // A forged message, and one that cannot be read, has no place in an order, or that of another run.
            let is_strange = plan.is_unreadable() || plan.way.is_forged().is_some() || forged.contains(&index);
            let has_none =
                matches!(gated, Self::Limited(_) | Self::Breaks) || is_chained || gated == Self::Ordered && is_strange;
            // Two submissions of an idempotency key are the same job.
            plan.group = if has_none { None } else { of[plan.key.unwrap_or(index)] };
            plan.is_ordered = gated == Self::Ordered;
            // One with an id of its own has its job already.
            if let Some(job) = plan.job.take() {
                plan.name(job.run_id);
            }
        }
        gated
    }

    /// The settings of the type by which the gates go; `None`: they have nothing to hold up.
    pub(crate) fn policies(self, mutation: Option<Mutation>) -> Option<Arc<Policies>> {
        let (key_concurrency, ordered) = match self {
            Self::No => return None,
            Self::Keys(slots) => (slots, false),
            Self::Ordered => (1, true),
            Self::Limited(limit) => {
                let default_type = TypePolicy { rate_limit: Some(limit), ..TypePolicy::default() };
                return Some(Arc::new(Policies { default_type, ..Policies::default() }));
            }
            Self::Breaks => {
                let default_type = TypePolicy { breaker: Some(breaking::policy()), ..TypePolicy::default() };
                return Some(Arc::new(Policies { default_type, ..Policies::default() }));
            }
        };
        let concurrency_hold =
            if mutation == Some(Mutation::SlotsOfTheDeadKeptForTheTimeLimit) { Hold::Timeout } else { Hold::Lease };
        let default_type = TypePolicy { key_concurrency, ordered, concurrency_hold, ..TypePolicy::default() };
        Some(Arc::new(Policies { default_type, ..Policies::default() }))
    }
}

/// Few starts in a second: most jobs have to wait.
fn draw_limit(chance: &Chance) -> RateLimit {
    let (rate, burst) = (2 + chance.below(4), 1 + chance.below(3));
    let window = chance.pick(&[Window::Bucket, Window::Bucket, Window::Fixed, Window::Sliding]);
    RateLimit { rate, per: Duration::from_secs(1), burst, window }
}

/// What is stored under a key.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Slots(SlotRecord),
    Session(Session),
    Order(Order),
    Limit(limit::Record),
    Breaker(Box<Breaker>),
}

impl Entry {
    /// For how long it is stored: what says as much as nothing is soon gone.
    fn lasts(&self) -> i64 {
        let is_empty = match self {
            Self::Slots(record) => record.blocks().next().is_none(),
            Self::Session(_) | Self::Limit(_) | Self::Breaker(_) => false,
            Self::Order(order) => order.batch().is_empty(),
        };
        if is_empty { EMPTY_LASTS } else { NEVER }
    }
}

/// What nodes share about gates.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// With their revisions, and when they were stored.
    entries: BTreeMap<String, (Entry, u64, i64)>,
    revision: u64,
    /// Writes that their senders have given up on, and when they arrive.
    late: Vec<(i64, String, Entry, u64)>,
}

impl Bucket {
    /// When the next late write arrives.
    pub(crate) fn next(&self) -> i64 {
        self.late.iter().map(|(at, ..)| *at).min().unwrap_or(NEVER)
    }

    fn read(&self, key: &str, now: i64) -> Option<(Entry, u64)> {
        let (entry, revision, at) = self.entries.get(key)?;
        (now - at < entry.lasts()).then(|| (entry.clone(), *revision))
    }

    /// Whatever is stored.
    pub(crate) fn all(&self, now: i64) -> Vec<(Entry, u64)> {
        self.entries.keys().filter_map(|key| self.read(key, now)).collect()
    }

    /// Writes an entry over that of revision `expected`, 0 for none.
    fn write(&mut self, key: &str, entry: Entry, expected: u64, now: i64) -> Option<u64> {
        if self.read(key, now).map_or(0, |(_, revision)| revision) != expected {
            return None;
        }
        self.revision += 1;
        self.entries.insert(key.to_owned(), (entry, self.revision, now));
        Some(self.revision)
    }
}

impl World {
    /// Stores an entry; other nodes learn of it.
    fn write_entry(&self, key: &str, entry: Entry, expected: u64) -> Option<u64> {
        let before = self.bucket.borrow().read(key, self.clock.get());
        let written = self.bucket.borrow_mut().write(key, entry.clone(), expected, self.clock.get());
        self.say(|| format!("{key} over {expected}: {entry:?}: {written:?}"));
        if let Some(revision) = written {
            self.check_breaker(before.as_ref().map(|(before, _)| before), &entry);
            self.republishes(key, &entry, revision);
        }
        written
    }

    /// Late writes arrive.
    pub(crate) fn store_late_entries(&self, now: i64) {
        let is_due = |(at, ..): &mut (i64, String, Entry, u64)| *at <= now;
        let due: Vec<_> = self.bucket.borrow_mut().late.extract_if(.., is_due).collect();
        for (_, key, entry, expected) in due {
            self.write_entry(&key, entry, expected);
        }
    }
}

impl Client<'_> {
    /// What is stored under a key, and its revision.
    pub(crate) async fn read_entry(&self, key: &str) -> Result<Option<(Entry, u64)>, Unclear> {
        let world = self.world;
        world.travel().await;
        let fate = self.fate();
        let found = world.bucket.borrow().read(key, world.clock.get());
        world.travel().await;
        if fate == Fate::Answered { Ok(found) } else { Err(self.no_answer().await) }
    }

    /// Writes an entry over that of revision `expected`, 0 for none; returns its revision, or none if another write was
    /// first.
    pub(crate) async fn write_entry(&self, key: &str, entry: Entry, expected: u64) -> Result<Option<u64>, Unclear> {
        let world = self.world;
        world.travel().await;
        let fate = self.fate_of_write();
        match fate {
            Fate::Lost => {}
            Fate::Late => {
                let at = world.clock.get() + world.chance.between(1, 1_000);
                world.bucket.borrow_mut().late.push((at, key.to_owned(), entry, expected));
            }
            Fate::Answered | Fate::Unanswered => {
                let written = world.write_entry(key, entry, expected);
                world.travel().await;
                if fate == Fate::Answered {
                    return Ok(written);
                }
            }
        }
        Err(self.no_answer().await)
    }
}
