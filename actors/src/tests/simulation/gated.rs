//! The gates of a world that have something to hold up: which of its jobs they count, and what nodes share about them,
//! in a bucket that is written by compare-and-set.
//!
//! Writes are lost, late, or stored and not answered; reads are answered by what is stored then.

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_chance::Chance;
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{Hold, Record};
use longshore_domain::policy::{Policies, TypePolicy};

use crate::tests::simulation::client::{Client, Fate, Unclear};
use crate::tests::simulation::handler::{TIME_LIMIT, millis};
use crate::tests::simulation::mutation::Mutation;
use crate::tests::simulation::plan::{Plan, Way};
use crate::tests::simulation::server::NEVER;
use crate::tests::simulation::world::{Kind, World};

/// One in so many mixed worlds has concurrency keys.
const ONE_IN_WITH_KEYS: u64 = 8;
/// How many keys such a world has.
pub(crate) const KEYS: u32 = 2;

/// What holds jobs up in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gated {
    /// Nothing but pauses and handlers without capacity.
    No,
    /// Keys of which so many jobs run at once.
    Keys(u32),
}

impl Gated {
    /// Draws what holds jobs up, and which.
    pub(crate) fn draw((seed, kind): (u64, Kind), plans: &mut [Plan]) -> Self {
        // Chance of its own: worlds without such gates stay as they are.
        let chance = Chance::new(!seed);
        if kind != Kind::Slots && (kind != Kind::Mixed || seed % ONE_IN_WITH_KEYS != 3) {
            return Self::No;
        }
        let of: Vec<Option<u32>> = plans.iter().map(|_| chance.hits(7_500).then(|| chance.below(KEYS))).collect();
        for (index, plan) in plans.iter_mut().enumerate() {
            let is_chained = matches!(plan.way, Way::Follows(_)) || plan.is_followed();
            // Two submissions of an idempotency key are the same job.
            plan.group = if is_chained { None } else { of[plan.key.unwrap_or(index)] };
        }
        Self::Keys(chance.pick(&[1, 1, 2, 3]))
    }

    /// The settings of the type by which the gates go; `None`: they have nothing to hold up.
    pub(crate) fn policies(self, mutation: Option<Mutation>) -> Option<Arc<Policies>> {
        let Self::Keys(key_concurrency) = self else { return None };
        let concurrency_hold =
            if mutation == Some(Mutation::SlotsOfTheDeadKeptForTheTimeLimit) { Hold::Timeout } else { Hold::Lease };
        let timeout = millis(TIME_LIMIT);
        let default_type = TypePolicy { key_concurrency, concurrency_hold, timeout, ..TypePolicy::default() };
        Some(Arc::new(Policies { default_type, ..Policies::default() }))
    }
}

/// What is stored under a key.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Slots(Record),
    Session(Session),
}

/// What nodes share about gates.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    entries: BTreeMap<String, (Entry, u64)>,
    revision: u64,
    /// Writes that their senders have given up on, and when they arrive.
    late: Vec<(i64, String, Entry, u64)>,
}

impl Bucket {
    /// When the next late write arrives.
    pub(crate) fn next(&self) -> i64 {
        self.late.iter().map(|(at, ..)| *at).min().unwrap_or(NEVER)
    }

    /// Writes an entry over that of revision `expected`, 0 for none.
    fn write(&mut self, key: &str, entry: Entry, expected: u64) -> Option<u64> {
        if self.entries.get(key).map_or(0, |(_, revision)| *revision) != expected {
            return None;
        }
        self.revision += 1;
        self.entries.insert(key.to_owned(), (entry, self.revision));
        Some(self.revision)
    }
}

impl World {
    /// Stores an entry; other nodes learn of it.
    fn write_entry(&self, key: &str, entry: Entry, expected: u64) -> Option<u64> {
        let written = self.bucket.borrow_mut().write(key, entry.clone(), expected);
        self.say(|| format!("{key} over {expected}: {entry:?}: {written:?}"));
        if let Some(revision) = written {
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
        let found = world.bucket.borrow().entries.get(key).cloned();
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
