//! The cluster's protocol for rate limits, in seeded worlds: nodes that take tokens of one record by compare-and-set,
//! with lost requests and answers, deaths, and clocks that differ. The domain's own functions decide; each rule is also
//! broken on purpose, and some world must notice.

#![expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]

mod support;

use std::time::{Duration, Instant};

use longshore_domain::Timestamp;
use longshore_domain::limit::{Answer, Ask, Asked, Holder, RateLimit, Record, Window};

use crate::support::Chance;

const WORLDS: u64 = 120;
const STEP: u64 = 5;
const LENGTH: u64 = 12_000;
const BEGIN: i64 = 1_700_000_000_000;
/// The most by which two nodes' clocks differ.
const SKEW: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutation {
    WritesWithoutComparing,
    LostGrantTakenForGranted,
    GivenBackTwice,
    TokensOfTheDeadReturn,
    LeaseNeverEnds,
    RecordForgottenEarly,
    SameSpanFlowsInTwice,
    WindowForgetsWhatItGave,
}

impl Mutation {
    const ALL: [Self; 8] = [
        Self::WritesWithoutComparing,
        Self::LostGrantTakenForGranted,
        Self::GivenBackTwice,
        Self::TokensOfTheDeadReturn,
        Self::LeaseNeverEnds,
        Self::RecordForgottenEarly,
        Self::SameSpanFlowsInTwice,
        Self::WindowForgetsWhatItGave,
    ];
}

/// A record with one field that is still that of an older version.
fn with_old(field: &str, next: Record, before: Option<&(Record, u64)>) -> Record {
    let json = |record: &Record| serde_json::to_value(record).ok();
    let again = before.and_then(|(before, _)| {
        let mut json = json(&next).zip(json(before));
        json.iter_mut().for_each(|(next, before)| next[field] = before[field].take());
        serde_json::from_value(json?.0).ok()
    });
    again.unwrap_or(next)
}

struct Node {
    holder: Holder,
    /// How far its clock is ahead.
    ahead: u64,
    /// What it read, with the revision, and when it sends the write.
    read: Option<(Option<Record>, u64, u64)>,
    back: Vec<(Ask, u32)>,
    /// Nothing wants tokens until then.
    idle_until: u64,
    /// The block that it got last, for the mutations.
    last: Option<(Ask, u32, u64)>,
}

struct World {
    chance: Chance,
    mutation: Option<Mutation>,
    limit: RateLimit,
    start: Instant,
    now: u64,
    record: Option<(Record, u64)>,
    revision: u64,
    faults: u64,
    is_saturated: bool,
    lives: u64,
    nodes: Vec<Node>,
    starts: Vec<i64>,
    written_at: u64,
}

impl World {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut chance = Chance::of_world(seed);
        let window = [Window::Bucket, Window::Bucket, Window::Fixed, Window::Sliding][chance.below(4) as usize];
        let rate = [1, 5, 40, 100, 400][chance.below(5) as usize];
        let per = Duration::from_millis([500, 1_000, 3_000][chance.below(3) as usize]);
        let burst = [1, rate, 2 * rate][chance.below(3) as usize];
        let limit = RateLimit { rate, per, burst, window };
        let faults = [0, 5, 30][chance.below(3) as usize];
        let is_saturated = chance.hits(50);
        let (start, nodes, starts) = (Instant::now(), Vec::new(), Vec::new());
        let (record, revision, now, lives, written_at) = (None, 0, 0, 0, 0);
        let mut world = Self {
            chance,
            mutation,
            limit,
            start,
            now,
            record,
            revision,
            faults,
            is_saturated,
            lives,
            nodes,
            starts,
            written_at,
        };
        for _ in 0..1 + world.chance.below(4) {
            world.join();
        }
        world
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn join(&mut self) {
        self.lives += 1;
        let (name, ahead) = (self.lives, self.chance.below(SKEW));
        let holder = Holder::new(format!("n{name}").into(), self.limit, self.instant());
        self.nodes.push(Node { holder, ahead, read: None, back: Vec::new(), idle_until: 0, last: None });
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    /// The cluster's time by this node's clock.
    fn time(&self, node: &Node) -> Timestamp {
        Timestamp::from_millis(BEGIN).plus(Duration::from_millis(self.now + node.ahead))
    }

    fn play(mut self) -> Option<String> {
        while self.now < LENGTH {
            self.now += STEP;
            if self.faults > 0 && self.chance.below(400) == 0 && self.nodes.len() > 1 {
                self.kill();
            }
            let kept = match self.is(Mutation::RecordForgottenEarly) {
                true => 150,
                false => {
                    self.record.as_ref().map_or(0, |(record, _)| record.matters_for(&self.limit).as_millis() as u64)
                }
            };
            if self.now > self.written_at + kept {
                self.record = None;
            }
            for number in 0..self.nodes.len() {
                let mut node = self.nodes.remove(number);
                self.turn(&mut node);
                self.nodes.insert(number, node);
            }
        }
        self.judge()
    }

    fn kill(&mut self) {
        let victim = self.chance.below(self.nodes.len() as u64) as usize;
        let dead = self.nodes.remove(victim);
        if let Some((ask, tokens, _)) = dead.last.as_ref().filter(|_| self.is(Mutation::TokensOfTheDeadReturn)) {
            let time = self.time(&dead);
            if let Some((record, revision)) = &self.record
                && let Some(next) = record.give_back(&self.limit, ask, *tokens, time)
            {
                self.record = Some((next, *revision));
            }
        }
        self.join();
    }

    fn turn(&mut self, node: &mut Node) {
        let now = self.instant();
        if !self.is_saturated && self.now >= node.idle_until && self.chance.below(60) == 0 {
            node.idle_until = self.now + self.chance.below(1_500);
        }
        if self.is_saturated || self.now >= node.idle_until {
            self.use_tokens(node, now);
        }
        self.write(node);
        node.back.extend(node.holder.give_back(now));
        if node.read.is_none() && (node.holder.ask(now).is_some() || !node.back.is_empty()) {
            // A read, and some time until the write arrives.
            let (record, revision) =
                self.record.clone().map_or((None, 0), |(record, revision)| (Some(record), revision));
            node.read = Some((record, revision, self.now + self.chance.below(4) * STEP));
        }
    }

    fn use_tokens(&mut self, node: &mut Node, now: Instant) {
        let at = BEGIN + self.now as i64;
        for _ in 0..1 + self.chance.below(20) {
            let Ok(taken) = node.holder.take(1, now) else { break };
            match self.chance.below(20) {
                0 => node.holder.put_back(taken),
                _ => self.starts.push(at),
            }
        }
        if let Some((_, tokens, got)) = node.last.as_mut().filter(|_| self.mutation == Some(Mutation::LeaseNeverEnds)) {
            // What was not used in time is used later.
            if self.now > *got + 900 && *tokens > 0 {
                self.starts.extend(std::iter::repeat_n(at, *tokens as usize));
                *tokens = 0;
            }
        }
    }

    /// Writes what the node made of the record that it read, if that is still the record.
    fn write(&mut self, node: &mut Node) {
        let Some((record, revision, _)) = node.read.take_if(|(.., at)| *at <= self.now) else { return };
        let current = self.record.as_ref().map_or(0, |(_, revision)| *revision);
        let wins = current == revision || self.is(Mutation::WritesWithoutComparing);
        let (time, sent) = (self.time(node), self.instant());
        let is_lost = self.chance.hits(self.faults);
        let arrives = !is_lost || self.chance.hits(50);
        if let Some((ask, unused)) = node.back.first().cloned() {
            let next = record.and_then(|record| record.give_back(&self.limit, &ask, unused, time));
            match next {
                Some(next) if wins && arrives => {
                    let again = self.is(Mutation::GivenBackTwice);
                    let stored = if again { with_old("leases", next, self.record.as_ref()) } else { next };
                    self.store(stored);
                    if !is_lost && !again {
                        node.back.remove(0);
                    }
                }
                Some(_) => {}
                None => drop(node.back.remove(0)),
            }
            return;
        }
        let Some(ask) = node.holder.ask(sent) else { return };
        match Record::lease(record.as_ref(), &self.limit, &ask, time) {
            Answer::Granted(next, lease) => {
                let holders = next.holders();
                if wins && arrives {
                    self.store(self.granted(next));
                }
                let is_granted = wins && arrives && !is_lost;
                if is_granted || self.is(Mutation::LostGrantTakenForGranted) {
                    node.last = Some((ask.clone(), lease.tokens, self.now));
                    node.holder.granted(ask.number, lease, Asked { sent, time }, holders);
                }
            }
            Answer::Has(lease) if !is_lost => node.holder.granted(ask.number, lease, Asked { sent, time }, 1),
            Answer::NotBefore(at) if !is_lost => node.holder.refused(ask.number, at, Asked { sent, time }),
            Answer::Has(_) | Answer::NotBefore(_) => {}
        }
    }

    /// The record that is stored for a grant.
    fn granted(&self, next: Record) -> Record {
        let old = match self.mutation {
            Some(Mutation::SameSpanFlowsInTwice) if self.limit.window == Window::Bucket => "at",
            Some(Mutation::WindowForgetsWhatItGave) if self.limit.window != Window::Bucket => "meter",
            _ => return next,
        };
        with_old(old, next, self.record.as_ref())
    }

    fn store(&mut self, record: Record) {
        self.revision += 1;
        self.record = Some((record, self.revision));
        self.written_at = self.now;
    }

    /// What is wrong with the starts: too many in a span, or too few though there were always jobs.
    fn judge(&self) -> Option<String> {
        let (limit, starts) = (&self.limit, &self.starts);
        let per = limit.per.as_millis() as i64;
        let skew = SKEW as i64;
        for (first, begin) in starts.iter().enumerate() {
            for (last, end) in starts.iter().enumerate().skip(first) {
                let (count, span) = (last - first + 1, end - begin);
                let max = match limit.window {
                    // A node whose clock is ahead begins the next window before the others.
                    Window::Fixed if begin.div_euclid(per) != (end + skew).div_euclid(per) => break,
                    Window::Sliding if span + skew >= per => break,
                    Window::Fixed | Window::Sliding => f64::from(limit.rate),
                    Window::Bucket if span > 2_000 => break,
                    Window::Bucket => limit.bound(Duration::from_millis((span + 1 + skew).unsigned_abs())),
                };
                if count as f64 > max + 1e-6 {
                    return Some(format!("{count} starts within {span} ms, {max} are allowed by {limit:?}"));
                }
            }
        }
        let could = f64::from(limit.rate) * (LENGTH as f64 / per as f64);
        let share = starts.len() as f64 / could;
        // A quiet world uses what there is. One with lost answers and deaths loses some, but goes on.
        let least = if self.faults == 0 { 0.85 } else { 0.4 };
        let judged = self.is_saturated && could >= 100.0 && self.faults <= 5;
        (judged && share < least).then(|| format!("{share:.2} of the rate was used, of {limit:?}"))
    }
}

#[test]
fn no_world_exceeds_its_limit_and_each_uses_it() {
    for seed in 1..=WORLDS {
        if let Some(wrong) = World::new(seed, None).play() {
            panic!("world {seed}: {wrong}");
        }
    }
}

#[test]
fn every_mutation_is_found() {
    let finds = |mutation: &Mutation| (1..=WORLDS).any(|seed| World::new(seed, Some(*mutation)).play().is_some());
    let unfound: Vec<Mutation> = Mutation::ALL.into_iter().filter(|mutation| !finds(mutation)).collect();
    assert!(unfound.is_empty(), "no world is broken by {unfound:?}");
}
