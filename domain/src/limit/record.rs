//! The record of a limit: what was taken and by whom. Nodes agree on it by compare-and-set; every function here makes
//! the next version of it from the one that was read.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use super::{RESERVE_WITHIN, RateLimit, Window};
use crate::Timestamp;
use crate::run::whole_millis;

/// A lease stays listed for this long after its end, so that a node whose answer was lost finds it.
const LISTED: Duration = Duration::from_secs(5);
/// A window is counted in this many parts.
const SLICES: i64 = 50;
/// A time later than now by this much was written by a node whose clock went wrong: it does not count.
const WRONG_CLOCK: Duration = Duration::from_secs(5);

/// A node's request for a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The node, in this life.
    pub who: SmolStr,
    /// The number of the block: a request whose answer was lost is repeated under the same.
    pub number: u64,
    /// Fewer tokens are of no use.
    pub need: u32,
    /// More are not wanted.
    pub want: u32,
}

impl Ask {
    fn name(&self) -> SmolStr {
        format_smolstr!("{}.{}", self.who, self.number)
    }
}

/// What was taken of a limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The latest time at which anything was taken.
    at: Timestamp,
    meter: Meter,
    /// The blocks that may be in use, by holder and number.
    leases: BTreeMap<SmolStr, Lease>,
    /// The limit by which it was counted last.
    #[serde(default)]
    of: Option<RateLimit>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Meter {
    /// The tokens there are at [`Record::at`]; below 0 if some that are to come are taken already.
    Bucket(f64),
    /// The number of the window, and the tokens taken in it.
    Fixed(i64, u64),
    /// The tokens taken, by the slice in which their lease ends.
    Sliding(BTreeMap<i64, u64>),
}

/// A block of tokens that a node may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// How many.
    pub tokens: u32,
    /// From when on.
    pub from: Timestamp,
    /// Until when.
    pub until: Timestamp,
}

/// The answer to a node that asks for tokens.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The block is its own once the record is written.
    Granted(Record, Lease),
    /// It has the block already: its answer was lost.
    Has(Lease),
    /// There are too few, and will be until about this time.
    NotBefore(Timestamp),
}

impl Record {
    /// A limit that is counted from now on. Of one that was counted in another way before, nothing is there at first.
    fn begun(limit: &RateLimit, now: Timestamp, is_used_up: bool) -> Self {
        let used = is_used_up.then_some(u64::from(limit.rate));
        let meter = match limit.window {
            Window::Bucket => Meter::Bucket(if is_used_up { 0.0 } else { limit.capacity() }),
            Window::Fixed => Meter::Fixed(window_at(limit, now), used.unwrap_or(0)),
            Window::Sliding => Meter::Sliding(used.map(|used| (slice_at(limit, now), used)).into_iter().collect()),
        };
        Self { at: now, meter, leases: BTreeMap::new(), of: Some(*limit) }
    }

    /// The record as it is at `now`: what has flowed in since, and without what no longer counts.
    fn advanced(&self, limit: &RateLimit, now: Timestamp) -> Self {
        if let Some(before) = self.of.filter(|before| before != limit) {
            // Refusals are not stored, so what begins used up counts from the time that is.
            return self.advanced_by(&before, now).changed(&before, limit, self.at).advanced_by(limit, now);
        }
        self.advanced_by(limit, now)
    }

    /// The same tokens under another limit. Blocks in use are forgotten: what they hold under a large limit would be
    /// owed for long under a small one. They are used up, or over, within [`MAX_LEASE`](super::MAX_LEASE).
    /// One that counts in another way begins used up at `since`.
    fn changed(self, before: &RateLimit, limit: &RateLimit, since: Timestamp) -> Self {
        let promised = limit.per_ms() * RESERVE_WITHIN.as_secs_f64() * 1_000.0;
        let meter = match (self.meter, limit.window) {
            (Meter::Bucket(level), Window::Bucket) => Meter::Bucket(level.max(-promised).min(limit.capacity())),
            (meter @ Meter::Fixed(..), Window::Fixed) | (meter @ Meter::Sliding(_), Window::Sliding)
                if before.per == limit.per =>
            {
                meter
            }
            _ => return Self::begun(limit, since, true),
        };
        Self { at: self.at, meter, leases: BTreeMap::new(), of: Some(*limit) }
    }

    fn advanced_by(&self, limit: &RateLimit, now: Timestamp) -> Self {
        let mut next = self.clone();
        next.of = Some(*limit);
        let is_wrong = self.is_ahead(now);
        next.at = if is_wrong { now } else { self.at.max(now) };
        let at = next.at;
        match (&mut next.meter, limit.window) {
            (Meter::Bucket(level), Window::Bucket) => *level = self.filled(*level, limit, at),
            (Meter::Fixed(window, used), Window::Fixed) => {
                let current = window_at(limit, at);
                if *window != current {
                    (*window, *used) = (current, 0);
                }
            }
            (Meter::Sliding(slices), Window::Sliding) => {
                slices.retain(|slice, _| leaves_at(limit, *slice) > at);
                if is_wrong {
                    let taken_ahead = slices.split_off(&(slice_at(limit, at.plus(limit.lease())) + 1));
                    *slices.entry(slice_at(limit, at)).or_default() += taken_ahead.values().sum::<u64>();
                }
            }
            _ => return Self::begun(limit, at, true),
        }
        next.leases.retain(|_, lease| !is_wrong && lease.until.plus(LISTED) > at);
        next
    }

    fn is_ahead(&self, now: Timestamp) -> bool {
        self.at > now.plus(WRONG_CLOCK)
    }

    /// The record as it counts from `now` on, if it is of another limit, or a clock that was ahead wrote it; else
    /// `None`. A node that is refused has to store it: as long as none does, it counts anew from each time that it is
    /// looked at, and a bucket fills as slowly as before.
    #[must_use]
    pub fn corrected(&self, limit: &RateLimit, now: Timestamp) -> Option<Self> {
        let is_of_another = self.of.is_some_and(|of| of != *limit);
        (is_of_another || self.is_ahead(now)).then(|| self.advanced(limit, now))
    }

    /// The level of the bucket once it has filled until `at`.
    fn filled(&self, mut level: f64, limit: &RateLimit, at: Timestamp) -> f64 {
        for (begin, end, most) in self.spans(limit).take_while(|(begin, ..)| *begin < at) {
            let more = end.min(at).since(begin).as_secs_f64() * 1_000.0 * limit.per_ms();
            level = (level + more).min(most.max(level));
        }
        level
    }

    /// When the bucket, which fills from `level` on, has `wanted`.
    fn fills_to(&self, wanted: f64, level: f64, limit: &RateLimit) -> Timestamp {
        let (mut level, mut at) = (level, self.at);
        for (begin, end, most) in self.spans(limit) {
            at = begin;
            if level >= wanted {
                break;
            }
            let takes = Duration::from_secs_f64(((wanted - level) / limit.per_ms()).ceil() / 1_000.0);
            if most >= wanted && end.since(begin) >= takes {
                return begin.plus(takes);
            }
            level = (level + end.since(begin).as_secs_f64() * 1_000.0 * limit.per_ms()).min(most.max(level));
        }
        at
    }

    /// The spans of time in which the bucket fills: the end of each is the end of a lease, and the last has none. In
    /// each it fills at most to the last value, so that it and the nodes' hands together never have more than the
    /// capacity: then no more can be used at once, whatever the nodes do. A token counts as held until the end of its
    /// lease.
    fn spans(&self, limit: &RateLimit) -> impl Iterator<Item = (Timestamp, Timestamp, f64)> {
        let mut ends: Vec<&Lease> = self.leases.values().filter(|lease| lease.until > self.at).collect();
        ends.sort_unstable_by_key(|lease| lease.until);
        let (mut begin, mut in_hands, capacity) = (self.at, self.in_hands(self.at), limit.capacity());
        let last = Lease { tokens: 0, from: self.at, until: Timestamp::LAST_SCHEDULE };
        let ends: Vec<Lease> = ends.into_iter().copied().chain([last]).collect();
        ends.into_iter().map(move |lease| {
            let span = (begin, lease.until, capacity - in_hands);
            begin = lease.until;
            in_hands = (in_hands - f64::from(lease.tokens)).max(0.0);
            span
        })
    }

    /// Takes tokens out of the bucket. It may also promise some that are to come soon: nodes that wait get theirs in
    /// the order in which they asked. Says how many it has then, too.
    fn take_from_bucket(&self, level: f64, limit: &RateLimit, ask: &Ask) -> Result<(f64, Lease), Timestamp> {
        let there_at = |tokens: u32| self.fills_to(f64::from(tokens).min(limit.capacity()), level, limit);
        let there = level.max(0.0) as u32;
        let is_promised = |tokens: &u32| there_at(*tokens).since(self.at) <= RESERVE_WITHIN;
        let tokens = if there >= ask.need {
            there.min(ask.want)
        } else {
            // More than there can be is promised only to a single job that needs so much.
            let want = ask.want.min(limit.capacity() as u32).max(ask.need);
            let either = [want, ask.need].into_iter().find(is_promised);
            either.ok_or_else(|| there_at(ask.need))?
        };
        let from = there_at(tokens);
        Ok((level - f64::from(tokens), Lease { tokens, from, until: from.plus(limit.lease()) }))
    }

    /// How many tokens nodes may still use at `at`.
    fn in_hands(&self, at: Timestamp) -> f64 {
        self.leases.values().filter(|lease| lease.until > at).map(|lease| f64::from(lease.tokens)).sum()
    }

    /// Takes a block for a node that asks at `now`.
    pub fn lease(found: Option<&Self>, limit: &RateLimit, ask: &Ask, now: Timestamp) -> Answer {
        let mut next = found.map_or_else(|| Self::begun(limit, now, false), |found| found.advanced(limit, now));
        if let Some(lease) = next.leases.get(&ask.name()) {
            return Answer::Has(*lease);
        }
        let at = next.at;
        let granted = match &mut next.meter {
            Meter::Bucket(level) => {
                let level = *level;
                next.take_from_bucket(level, limit, ask).map(|(left, lease)| {
                    next.meter = Meter::Bucket(left);
                    lease
                })
            }
            Meter::Fixed(window, used) => {
                let end = Timestamp::from_millis((*window + 1).saturating_mul(millis(limit.per)));
                let there = u64::from(limit.rate).saturating_sub(*used);
                taken_of(there, limit, ask).ok_or(end).map(|tokens| {
                    *used += u64::from(tokens);
                    Lease { tokens, from: at, until: at.plus(limit.lease()).min(end) }
                })
            }
            Meter::Sliding(slices) => take_from_slices(slices, limit, ask, at),
        };
        match granted {
            Ok(lease) => {
                next.leases.insert(ask.name(), lease);
                Answer::Granted(next, lease)
            }
            Err(at) => Answer::NotBefore(at),
        }
    }

    /// Gives `unused` tokens of a node's block back; `None`: the block is not listed any more, or was given back
    /// before.
    #[must_use]
    pub fn give_back(&self, limit: &RateLimit, ask: &Ask, unused: u32, now: Timestamp) -> Option<Self> {
        let mut next = self.advanced(limit, now);
        let lease = next.leases.remove(&ask.name())?;
        let unused = unused.min(lease.tokens);
        match &mut next.meter {
            // After its end the bucket has filled as if they were used.
            Meter::Bucket(_) if lease.until <= next.at => return None,
            Meter::Bucket(level) => *level += f64::from(unused),
            Meter::Fixed(window, used) if window_at(limit, lease.from) == *window => {
                *used = used.saturating_sub(unused.into());
            }
            Meter::Fixed(..) => {}
            Meter::Sliding(slices) => {
                if let Some(taken) = slices.get_mut(&slice_at(limit, lease.until)) {
                    *taken = taken.saturating_sub(unused.into());
                }
            }
        }
        Some(next)
    }

    /// How many nodes hold tokens, or did a moment ago.
    pub fn holders(&self) -> usize {
        let names = self.leases.keys().filter_map(|name| name.rsplit_once('.').map(|(holder, _)| holder));
        names.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// How many tokens there are at `now`, outside of the nodes' hands.
    pub fn left(&self, limit: &RateLimit, now: Timestamp) -> u64 {
        match self.advanced(limit, now).meter {
            Meter::Bucket(level) => level.max(0.0) as u64,
            Meter::Fixed(_, used) => u64::from(limit.rate).saturating_sub(used),
            Meter::Sliding(slices) => u64::from(limit.rate).saturating_sub(slices.values().sum()),
        }
    }

    /// When a node that asks now may use the next token; `None`: at once.
    pub fn next_at(&self, limit: &RateLimit, now: Timestamp) -> Option<Timestamp> {
        let ask = Ask { who: SmolStr::default(), number: 0, need: 1, want: 1 };
        match Self::lease(Some(self), limit, &ask, now) {
            Answer::Granted(_, lease) | Answer::Has(lease) => Some(lease.from).filter(|from| *from > now),
            Answer::NotBefore(at) => Some(at),
        }
    }

    /// For how long the record says more than none would.
    pub fn matters_for(&self, limit: &RateLimit) -> Duration {
        let refill = match &self.meter {
            Meter::Bucket(level) => {
                Duration::from_secs_f64(((limit.capacity() - level) / limit.per_ms() / 1_000.0).max(0.0))
            }
            Meter::Fixed(..) => limit.per,
            Meter::Sliding(_) => limit.per * 2,
        };
        refill + limit.lease() + LISTED + RESERVE_WITHIN + WRONG_CLOCK
    }
}

fn take_from_slices(
    slices: &mut BTreeMap<i64, u64>,
    limit: &RateLimit,
    ask: &Ask,
    now: Timestamp,
) -> Result<Lease, Timestamp> {
    let there = u64::from(limit.rate).saturating_sub(slices.values().sum());
    let Some(tokens) = taken_of(there, limit, ask) else {
        let need = u64::from(ask.need.min(limit.rate));
        let mut there = there;
        let frees = slices.iter().find(|(_, taken)| {
            there += **taken;
            there >= need
        });
        return Err(frees.map_or(now.plus(limit.per), |(slice, _)| leaves_at(limit, *slice)));
    };
    let until = now.plus(limit.lease());
    *slices.entry(slice_at(limit, until)).or_default() += u64::from(tokens);
    Ok(Lease { tokens, from: now, until })
}

/// How many tokens of a window a node gets; a job that costs more than all of them takes all.
fn taken_of(there: u64, limit: &RateLimit, ask: &Ask) -> Option<u32> {
    let need = ask.need.min(limit.rate);
    (there >= u64::from(need)).then(|| u32::try_from(there).unwrap_or(u32::MAX).min(ask.want).max(need))
}

fn millis(span: Duration) -> i64 {
    i64::try_from(whole_millis(span)).unwrap_or(i64::MAX).max(1)
}

fn window_at(limit: &RateLimit, at: Timestamp) -> i64 {
    at.millis().div_euclid(millis(limit.per))
}

fn slice(limit: &RateLimit) -> i64 {
    (millis(limit.per) / SLICES).max(1)
}

fn slice_at(limit: &RateLimit, at: Timestamp) -> i64 {
    at.millis().div_euclid(slice(limit))
}

/// When the tokens of a slice no longer count.
fn leaves_at(limit: &RateLimit, number: i64) -> Timestamp {
    Timestamp::from_millis((number + 1).saturating_mul(slice(limit)).saturating_add(millis(limit.per)))
}
