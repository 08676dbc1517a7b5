//! The tokens of one limit that a node holds, and what it has to ask the cluster for. The clock is the node's own and
//! monotonic.

use std::time::{Duration, Instant};

use smallvec::SmallVec;
use smol_str::SmolStr;

use super::record::{Ask, Lease};
use super::{RESERVE_WITHIN, RateLimit};
use crate::Timestamp;

/// A node asks for as many tokens as it used within this time, twice over.
const RECENT: Duration = Duration::from_millis(100);
/// How long a job waits that has to wait for an answer of the cluster.
const ANSWERS_WITHIN: Duration = Duration::from_millis(100);
/// If no job was here for the lease divided by this, and at most so long, blocks are given back before their end.
const IDLE_PART: u32 = 3;
const MAX_IDLE: Duration = Duration::from_millis(150);

/// Why a job gets no tokens now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// There are none before this moment, as far as is known.
    pub until: Instant,
    /// The cluster has to be asked.
    pub asks: bool,
}

/// Tokens that were taken for a job. If the job does not start, they go back ([`Holder::put_back`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "tokens that are not used go back"]
pub struct Taken {
    parts: SmallVec<[(u64, u32); 1]>,
    /// The job must not start later.
    pub until: Instant,
}

/// When the cluster was asked, by the node's own clock and by the cluster's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// By the node's.
    pub sent: Instant,
    /// By the cluster's.
    pub time: Timestamp,
}

#[derive(Debug, Clone)]
struct Block {
    number: u64,
    left: u32,
    from: Instant,
    until: Instant,
}

impl Block {
    fn is_usable(&self, now: Instant) -> bool {
        self.left > 0 && self.from <= now && now < self.until
    }
}

/// What a node holds of one limit.
#[derive(Debug, Clone)]
pub struct Holder {
    who: SmolStr,
    limit: RateLimit,
    blocks: SmallVec<[Block; 2]>,
    /// The request that is on its way, and when it was first sent.
    asked: Option<Ask>,
    next: u64,
    /// What jobs that wait need, at least.
    need: u32,
    /// The cluster is not asked again before the first moment, and has nothing before the second.
    not_before: Option<(Instant, Instant)>,
    /// Tokens used lately, where older ones count less and less, and when that was counted.
    used: (f64, Instant),
    /// When a job was last here.
    wanted_at: Instant,
    holders: usize,
    /// The last block was promised for later: others wait for tokens, too.
    is_short: bool,
}

impl Holder {
    /// A node that holds nothing; `who` names this life of it.
    pub fn new(who: SmolStr, limit: RateLimit, now: Instant) -> Self {
        let (blocks, used, not_before) = (SmallVec::new(), (0.0, now), None);
        let (wanted_at, holders, is_short) = (now, 1, false);
        Self { who, limit, blocks, asked: None, next: 1, need: 0, not_before, used, wanted_at, holders, is_short }
    }

    /// The limit.
    pub fn limit(&self) -> &RateLimit {
        &self.limit
    }

    /// The limit is another from now on. Tokens of the old one are not used any more, and what was asked for is not
    /// waited for: they may be more than the new one allows.
    pub fn set_limit(&mut self, limit: RateLimit) {
        if self.limit != limit {
            (self.limit, self.not_before, self.asked, self.is_short) = (limit, None, None, false);
            self.blocks.clear();
        }
    }

    /// Takes the tokens for a job that is to start at `now`.
    ///
    /// # Errors
    /// There are too few: says until when.
    pub fn take(&mut self, cost: u32, now: Instant) -> Result<Taken, Wait> {
        self.wanted_at = now;
        let cost = cost.max(1);
        if self.usable(now) < cost {
            return Err(self.wait(cost, now));
        }
        let mut taken = Taken { parts: SmallVec::new(), until: now + self.limit.lease() };
        let mut missing = cost;
        for block in self.blocks.iter_mut().filter(|block| block.is_usable(now)) {
            let part = block.left.min(missing);
            block.left -= part;
            missing -= part;
            taken.parts.push((block.number, part));
            taken.until = taken.until.min(block.until);
            if missing == 0 {
                break;
            }
        }
        self.used = (self.recent(now) + f64::from(cost), now);
        Ok(taken)
    }

    fn wait(&mut self, cost: u32, now: Instant) -> Wait {
        let coming = self.blocks.iter().filter(|block| block.from > now && block.left >= cost);
        if let Some(until) = coming.map(|block| block.from).min() {
            return Wait { until, asks: false };
        }
        self.need = self.need.max(cost);
        match self.not_before {
            Some((ask_at, _)) if now < ask_at => Wait { until: ask_at, asks: false },
            _ => Wait { until: now + ANSWERS_WITHIN, asks: self.asked.is_none() },
        }
    }

    /// Tokens that a job did not use.
    pub fn put_back(&mut self, taken: Taken) {
        for (number, part) in taken.parts {
            if let Some(block) = self.blocks.iter_mut().find(|block| block.number == number) {
                block.left += part;
            }
            self.used.0 = (self.used.0 - f64::from(part)).max(0.0);
        }
    }

    fn recent(&self, now: Instant) -> f64 {
        let (used, counted) = self.used;
        used * (-now.saturating_duration_since(counted).as_secs_f64() / RECENT.as_secs_f64()).exp()
    }

    /// How many tokens a job may take at `now`.
    pub fn usable(&self, now: Instant) -> u32 {
        self.blocks.iter().filter(|block| block.is_usable(now)).map(|block| block.left).sum()
    }

    /// How many tokens are here for use at `now`, or will be within a second.
    pub fn at_hand(&self, now: Instant) -> u32 {
        let soon = self.blocks.iter().filter(|block| now < block.until && block.from <= now + RESERVE_WITHIN);
        soon.map(|block| block.left).sum()
    }

    /// How many tokens this node may get within a second. If there were some at once the last time, and nothing is
    /// known before the next answer, these are as many as if no other node wanted any.
    pub fn expected_in_a_second(&self, now: Instant) -> u32 {
        let may_have_all = !self.is_short && self.not_before(now).is_none();
        let all = self.limit.capacity() + self.limit.per_ms() * 1_000.0;
        if may_have_all { all as u32 } else { self.share() }
    }

    /// About how many tokens of the limit this node gets in a second.
    pub fn share(&self) -> u32 {
        (self.limit.per_ms() * 1_000.0 / self.holders.max(1) as f64) as u32
    }

    /// Before when it makes no sense to have a job that waits, if that is known.
    pub fn not_before(&self, now: Instant) -> Option<Instant> {
        self.not_before.map(|(ask_at, _)| ask_at).filter(|ask_at| *ask_at > now)
    }

    /// What the node has to ask for now. A request stays the same until it is answered.
    pub fn ask(&mut self, now: Instant) -> Option<Ask> {
        if let Some(asked) = &self.asked {
            return Some(asked.clone());
        }
        let is_wanted = now.saturating_duration_since(self.wanted_at) < ANSWERS_WITHIN;
        let may_ask = self.not_before.is_none_or(|(ask_at, _)| now >= ask_at);
        // Together with a block that lasts as long as the answer takes, the node never runs dry.
        let block = self.limit.block(self.holders);
        let wants = (self.recent(now) * 2.0).min(f64::from(block)) as u32;
        let want = wants.max(block.min(FIRST));
        // Where tokens are short, they are asked for as far ahead as they are promised: an answer may take its time.
        let enough = if self.is_short { want.saturating_mul(2) } else { want / 2 };
        if !is_wanted || !may_ask || (self.need == 0 && self.at_hand(now) > enough) {
            return None;
        }
        let need = self.need.max(1);
        let ask = Ask { who: self.who.clone(), number: self.next, need, want: want.max(need) };
        (self.next, self.need) = (self.next + 1, 0);
        self.asked = Some(ask.clone());
        Some(ask)
    }

    /// Whether a request is on its way, or was when its answer was lost.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// The cluster granted a request.
    pub fn granted(&mut self, number: u64, lease: Lease, Asked { sent, time }: Asked, holders: usize) {
        if self.asked.take_if(|asked| asked.number == number).is_none() {
            return;
        }
        self.holders = holders;
        self.not_before = None;
        self.is_short = lease.from > time;
        // What begins before the request was sent, by the cluster's time, has begun.
        let (from, until) = (sent + lease.from.since(time), sent + lease.until.since(time));
        self.blocks.push(Block { number, left: lease.tokens, from, until });
    }

    /// The cluster has too few tokens, until about `until` of its time.
    pub fn refused(&mut self, number: u64, until: Timestamp, Asked { sent, time }: Asked) {
        if self.asked.take_if(|asked| asked.number == number).is_none() {
            return;
        }
        let until = sent + until.since(time);
        let ask_at = match self.limit.window {
            super::Window::Bucket => until.checked_sub(RESERVE_WITHIN / 2).map_or(until, |at| at.max(sent)),
            super::Window::Fixed | super::Window::Sliding => until,
        };
        self.not_before = Some((ask_at.max(sent + PAUSE), until.max(sent + PAUSE)));
    }

    /// When the next tokens are there, if none are and that is known.
    pub fn next_at(&self, now: Instant) -> Option<Instant> {
        let coming = self.blocks.iter().filter(|block| block.from > now && block.left > 0).map(|block| block.from);
        coming.chain(self.not_before.map(|(_, until)| until)).filter(|at| *at > now).min()
    }

    /// The blocks to give back: their requests, and how many tokens of each were not used. They are no longer here. A
    /// bucket takes them only before their end.
    pub fn give_back(&mut self, now: Instant) -> Vec<(Ask, u32)> {
        let may_be_idle = (self.limit.lease() / IDLE_PART).min(MAX_IDLE);
        let is_idle = now.saturating_duration_since(self.wanted_at) >= may_be_idle;
        let is_over = |block: &Block| now >= block.until || is_idle;
        let over: Vec<Block> = self.blocks.iter().filter(|block| is_over(block)).cloned().collect();
        self.blocks.retain(|block| !is_over(block));
        let request = |block: &Block| Ask { who: self.who.clone(), number: block.number, need: 0, want: 0 };
        over.iter().filter(|block| block.left > 0).map(|block| (request(block), block.left)).collect()
    }

    /// What was given back is the cluster's again: what it answered before that, about when there will be tokens, is
    /// out of date. With a slow limit that may be a long time.
    pub fn returned(&mut self) {
        self.not_before = None;
    }

    /// Whether nothing here is worth remembering.
    pub fn is_over(&self, now: Instant) -> bool {
        self.is_idle(now) && self.not_before(now).is_none()
    }

    /// Whether nothing here is worth remembering but, perhaps, when there will be tokens: to ask again costs one read.
    pub fn is_idle(&self, now: Instant) -> bool {
        let is_quiet = now.saturating_duration_since(self.wanted_at) > 20 * RESERVE_WITHIN;
        is_quiet && self.blocks.is_empty() && self.asked.is_none()
    }
}

/// The first block is at least so large, if the limit allows that: as many jobs as a node soon holds, since those
/// that find no token and no room are parked, which costs far more than a token that goes back.
const FIRST: u32 = 4_096;
/// The least time between two requests that are refused.
const PAUSE: Duration = Duration::from_millis(20);
