//! The cluster's protocol for concurrency limits, in seeded worlds: nodes that take and give back the slots of one
//! record by compare-and-set, with requests and answers that are late or lost, nodes that die or freeze at any moment,
//! handlers in the nodes and elsewhere. The domain's own functions decide, handlers are counted one by one; each rule
//! is also broken on purpose, and some world must notice.

#![expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]

mod support;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use longshore_domain::concurrency::session::{Session, Watch};
use longshore_domain::concurrency::{Ask, Block, Holder, SlotRecord, SlotVersion};
use longshore_domain::lease::Lease;
use longshore_domain::{SmolStr, Timestamp, format_smolstr};

use crate::support::Chance;

const WORLDS: u64 = 600;
const STEP: u64 = 5;
const LENGTH: u64 = 9_000;
/// After this time there are no more faults.
const CALM: u64 = 5_000;
/// Then it takes at most so long until no late write and no slot of the dead is left.
const SETTLES: u64 = 2_000;
/// So much of the slots is in use then.
const LEAST_USED: f64 = 0.25;
const LEASE: Duration = Duration::from_millis(300);
/// The time limits of handlers elsewhere: the long one, and one of most.
const LIMIT: Duration = Duration::from_millis(800);
const SHORT: Duration = Duration::from_millis(330);
const BEGIN: i64 = 1_700_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutation {
    WritesWithoutComparing,
    LostAnswerTakenForGranted,
    GivesBackWhatIsInUse,
    SessionEndsEarly,
    SessionEndsWithoutComparing,
    LeaseCountsFromTheAnswer,
    HandlersGoOnAfterTheLease,
    HandlersElsewhereAreForgotten,
    HoldIsTooShort,
    RecordForgottenEarly,
}

impl Mutation {
    const ALL: [Self; 10] = [
        Self::WritesWithoutComparing,
        Self::LostAnswerTakenForGranted,
        Self::GivesBackWhatIsInUse,
        Self::SessionEndsEarly,
        Self::SessionEndsWithoutComparing,
        Self::LeaseCountsFromTheAnswer,
        Self::HandlersGoOnAfterTheLease,
        Self::HandlersElsewhereAreForgotten,
        Self::HoldIsTooShort,
        Self::RecordForgottenEarly,
    ];
}

/// What is written: a record, or a session.
#[derive(Clone)]
enum Body {
    Record(Ask, SlotRecord),
    Session(SmolStr, Session),
}

/// A write on its way. It arrives whatever becomes of its node.
struct Write {
    node: u64,
    body: Body,
    expected: u64,
    sent: Instant,
    arrives: u64,
    /// The revision that it made, or that it was refused, once it has arrived.
    result: Option<Option<u64>>,
    answered: u64,
    is_lost: bool,
    answer_is_lost: bool,
}

/// A handler at work in a node: how long it still has to work.
struct Work {
    session: SmolStr,
    left: u64,
}

struct Node {
    number: u64,
    holder: Holder,
    lease: Option<Lease>,
    session_revision: u64,
    is_renewing: bool,
    frozen_until: u64,
    works: Vec<Work>,
    /// When the node learns of the ends of handlers elsewhere, and for how long each asked.
    elsewhere: Vec<(SmolStr, u64, Duration)>,
    watches: HashMap<SmolStr, Watch>,
    ends: Vec<(SmolStr, u64)>,
}

struct World {
    chance: Chance,
    mutation: Option<Mutation>,
    max: u32,
    faults: u64,
    /// How many of a hundred attempts call a handler elsewhere.
    share_elsewhere: u64,
    start: Instant,
    now: u64,
    revision: u64,
    record: Option<(SlotRecord, u64, u64)>,
    sessions: HashMap<SmolStr, (Session, u64)>,
    writes: Vec<Write>,
    nodes: Vec<Node>,
    lives: u64,
    /// When each handler elsewhere ends.
    elsewhere: Vec<u64>,
    /// The sum of the handlers at work over the steps in the calm.
    at_work_in_calm: u64,
}

impl World {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut chance = Chance::of_world(seed);
        let max = [1, 1, 2, 3, 10][chance.below(5) as usize];
        let faults = [0, 10, 30, 50][chance.below(4) as usize];
        let share_elsewhere = [0, 40][chance.below(2) as usize];
        let mut world = Self {
            chance,
            mutation,
            max,
            faults,
            share_elsewhere,
            start: Instant::now(),
            now: 0,
            revision: 0,
            record: None,
            sessions: HashMap::new(),
            writes: Vec::new(),
            nodes: Vec::new(),
            lives: 0,
            elsewhere: Vec::new(),
            at_work_in_calm: 0,
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
        let holder = Holder::new(format_smolstr!("s{}", self.lives), self.max, self.instant());
        self.nodes.push(Node {
            number: self.lives,
            holder,
            lease: None,
            session_revision: 0,
            is_renewing: false,
            frozen_until: 0,
            works: Vec::new(),
            elsewhere: Vec::new(),
            watches: HashMap::new(),
            ends: Vec::new(),
        });
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_millis(BEGIN).plus(Duration::from_millis(self.now))
    }

    fn play(mut self) -> Option<String> {
        while self.now < LENGTH {
            self.now += STEP;
            if self.now < CALM && self.faults > 0 {
                self.harm();
            }
            self.arrive();
            for at in 0..self.nodes.len() {
                let mut node = self.nodes.swap_remove(at);
                if node.frozen_until <= self.now {
                    self.turn(&mut node);
                }
                self.nodes.push(node);
                let last = self.nodes.len() - 1;
                self.nodes.swap(at, last);
            }
            self.elsewhere.retain(|ends| *ends > self.now);
            let here = self.nodes.iter().filter(|node| node.frozen_until <= self.now).map(|node| node.works.len());
            let at_work = here.sum::<usize>() + self.elsewhere.len();
            if self.now > CALM + SETTLES {
                self.at_work_in_calm += at_work as u64;
            }
            if at_work > self.max as usize {
                return Some(format!("{at_work} handlers at work at {}, {} are allowed", self.now, self.max));
            }
        }
        // In the calm, once all that died is over, the slots are in use again, but for the pauses between attempts.
        let steps = (LENGTH - CALM - SETTLES) / STEP;
        let used = self.at_work_in_calm as f64 / (steps * u64::from(self.max)) as f64;
        (used < LEAST_USED).then(|| {
            format!("only {used:.2} of {} slots were used in the calm by {} nodes", self.max, self.nodes.len())
        })
    }

    fn harm(&mut self) {
        if self.chance.below(150) == 0 {
            let victim = self.chance.below(self.nodes.len() as u64) as usize;
            self.nodes.remove(victim);
            self.join();
        }
        if self.chance.below(80) == 0 {
            let (victim, lasts) = (self.chance.below(self.nodes.len() as u64) as usize, self.chance.below(900));
            self.nodes[victim].frozen_until = self.now + lasts;
        }
    }

    /// Carries out the writes that reach the server now.
    fn arrive(&mut self) {
        if let Some((record, _, written)) = &self.record {
            let kept =
                if self.is(Mutation::RecordForgottenEarly) { 200 } else { record.matters_for().as_millis() as u64 };
            if self.now > written + kept {
                self.record = None;
            }
        }
        let mut writes = std::mem::take(&mut self.writes);
        for write in writes.iter_mut().filter(|write| write.result.is_none() && write.arrives <= self.now) {
            if write.is_lost {
                write.result = Some(None);
                continue;
            }
            let (stored, may_skip) = match &write.body {
                Body::Record(..) => {
                    (self.record.as_ref().map(|(_, revision, _)| *revision), Mutation::WritesWithoutComparing)
                }
                Body::Session(of, _) => {
                    (self.sessions.get(of).map(|(_, revision)| *revision), Mutation::SessionEndsWithoutComparing)
                }
            };
            let wins = stored.unwrap_or(0) == write.expected || self.is(may_skip);
            write.result = Some(wins.then(|| {
                self.revision += 1;
                match &write.body {
                    Body::Record(_, record) => self.record = Some((record.clone(), self.revision, self.now)),
                    Body::Session(of, session) => {
                        drop(self.sessions.insert(of.clone(), (session.clone(), self.revision)))
                    }
                }
                self.revision
            }));
        }
        self.writes = writes;
    }

    fn send(&mut self, node: u64, body: Body, expected: u64) {
        let faults = if self.now < CALM { self.faults } else { 0 };
        let (is_lost, answer_is_lost) = (self.chance.hits(faults), self.chance.hits(faults));
        // Some lie in a socket for long.
        let mut late = |most| if self.chance.hits(faults) { self.chance.below(most) } else { 0 };
        let (there, back) = (late(600), late(250));
        let arrives = self.now + self.chance.below(4) * STEP + there;
        let answered = arrives + self.chance.below(4) * STEP + back;
        let sent = self.instant();
        self.writes.push(Write {
            node,
            body,
            expected,
            sent,
            arrives,
            result: None,
            answered,
            is_lost,
            answer_is_lost,
        });
    }

    fn turn(&mut self, node: &mut Node) {
        self.keep_session(node);
        self.work(node);
        self.read_answers(node);
        self.keep_slots(node);
    }

    /// Loses the session if its lease is over, renews it when that is due.
    fn keep_session(&mut self, node: &mut Node) {
        let now = self.instant();
        if node.lease.is_some_and(|lease| lease.is_lost(now, LEASE)) {
            let lives_on = self.is(Mutation::HandlersGoOnAfterTheLease);
            node.works.retain(|_| lives_on);
            self.lives += 1;
            let session = format_smolstr!("s{}", self.lives);
            node.holder.begin_again(session, now);
            (node.lease, node.is_renewing, node.session_revision) = (None, false, 0);
        }
        let is_due = node.lease.is_none_or(|lease| lease.is_due(now, LEASE));
        if is_due && !node.is_renewing {
            let session = Session { node: "n".into(), lease_ms: LEASE.as_millis() as u64, ended_at: None };
            let of = node.holder.session().clone();
            if let Some(lease) = &mut node.lease {
                lease.ask(now);
            }
            self.send(node.number, Body::Session(of, session), node.session_revision);
            node.is_renewing = true;
        }
    }

    fn work(&mut self, node: &mut Node) {
        let (now, instant) = (self.now, self.instant());
        let session = node.holder.session().clone();
        for work in &mut node.works {
            work.left = work.left.saturating_sub(STEP);
        }
        let done = node.works.extract_if(.., |work| work.left == 0);
        let done = done.filter(|work| work.session == session).map(|_| Duration::ZERO);
        let answered = node.elsewhere.extract_if(.., |(_, ends, _)| *ends <= now);
        let answered = answered.filter(|(of, ..)| *of == session).map(|(.., holds_for)| holds_for);
        done.chain(answered).for_each(|holds_for| node.holder.put_back(instant, holds_for));
        // There are always more jobs.
        while node.lease.is_some() && self.chance.hits(60) {
            let is_elsewhere = self.chance.hits(self.share_elsewhere);
            let counted = is_elsewhere && !self.is(Mutation::HandlersElsewhereAreForgotten);
            let limit = if self.chance.hits(50) { LIMIT } else { SHORT };
            let asked = if self.is(Mutation::HoldIsTooShort) { SHORT } else { limit };
            let holds_for = if counted { asked } else { Duration::ZERO };
            if node.holder.take(instant, holds_for).is_err() {
                break;
            }
            let longest = if is_elsewhere { limit } else { LIMIT };
            let most = [30, longest.as_millis() as u64 - STEP][self.chance.below(2) as usize];
            let takes = STEP + self.chance.below(most);
            if is_elsewhere {
                self.elsewhere.push(now + takes);
                node.elsewhere.push((session.clone(), now + takes, holds_for));
            } else {
                node.works.push(Work { session: session.clone(), left: takes });
            }
        }
    }

    fn read_answers(&mut self, node: &mut Node) {
        let now = self.instant();
        let mut writes = std::mem::take(&mut self.writes);
        let due = writes
            .extract_if(.., |write| write.node == node.number && write.result.is_some() && write.answered <= self.now);
        for write in due.collect::<Vec<_>>() {
            let is_known = !write.is_lost && !write.answer_is_lost;
            let won = write.result.flatten();
            match write.body {
                Body::Record(ask, record) => self.written(node, (&ask, record), won, is_known),
                Body::Session(of, session) if session.ended_at.is_some() => {
                    node.ends.retain(|(ending, _)| *ending != of);
                    if let (Some(_), Some(at), Some(watch)) = (won, session.ended_at, node.watches.get_mut(&of))
                        && is_known
                    {
                        watch.ended(at);
                    }
                }
                Body::Session(of, _) if of == *node.holder.session() => {
                    node.is_renewing = false;
                    let stored = self.sessions.get(&of).filter(|(session, _)| session.ended_at.is_none());
                    match won.filter(|_| is_known) {
                        Some(revision) => {
                            node.session_revision = revision;
                            let sent = if self.is(Mutation::LeaseCountsFromTheAnswer) { now } else { write.sent };
                            match &mut node.lease {
                                Some(lease) => lease.confirm(sent, now, LEASE),
                                None => node.lease = Some(Lease::new(sent)),
                            }
                        }
                        // Read again: the next renewal is based on what is there.
                        None => node.session_revision = stored.map_or(node.session_revision, |(_, revision)| *revision),
                    }
                }
                Body::Session(..) => {}
            }
        }
        self.writes.append(&mut writes);
    }

    fn written(&mut self, node: &mut Node, (ask, record): (&Ask, SlotRecord), won: Option<u64>, is_known: bool) {
        let (now, time) = (self.instant(), self.time());
        let watches = &node.watches;
        let is_over = |of: &str, block: &Block| watches.get(of).is_some_and(|watch| watch.is_over(block, time));
        match (won, is_known) {
            (Some(revision), true) => node.holder.won(ask, SlotVersion { record, revision }, now, is_over),
            (_, false) if self.mutation == Some(Mutation::LostAnswerTakenForGranted) => {
                node.holder.won(ask, SlotVersion { record, revision: self.revision }, now, is_over);
            }
            (None, true) => node.holder.lost(ask),
            (_, false) => node.holder.unclear(ask),
        }
    }

    fn keep_slots(&mut self, node: &mut Node) {
        let (now, time) = (self.instant(), self.time());
        if self.chance.hits(30) {
            let rivals = self.nodes.iter().filter(|other| other.holder.lacks(now) && other.frozen_until <= self.now);
            rivals.for_each(|rival| node.holder.is_wanted_by(rival.holder.session(), now));
        }
        self.watch(node);
        let watches = node.watches.clone();
        let is_over = |of: &str, block: &Block| watches.get(of).is_some_and(|watch| watch.is_over(block, time));
        node.holder.count_again(is_over);
        if node.holder.is_to_be_read(now) || self.chance.hits(20) {
            let (record, revision) = self
                .record
                .as_ref()
                .map_or((SlotRecord::default(), 0), |(record, revision, _)| (record.clone(), *revision));
            node.holder.learned(SlotVersion { record, revision }, is_over);
        }
        if node.lease.is_none() {
            return;
        }
        let Some((mut ask, base, revision)) = node.holder.ask(now) else { return };
        if self.is(Mutation::GivesBackWhatIsInUse) {
            ask = Ask { keeps: ask.keeps.saturating_sub(1), ..ask };
        }
        let next = base.after(&ask, self.max, is_over);
        self.send(node.number, Body::Record(ask, next), revision);
    }

    /// Looks at the sessions that the node waits for, and ends those that are over.
    fn watch(&mut self, node: &mut Node) {
        let (now, time) = (self.instant(), self.time());
        let waits_for: Vec<SmolStr> = node.holder.waits_for(now).cloned().collect();
        for of in waits_for {
            let watch = node.watches.entry(of.clone()).or_default();
            if self.chance.hits(30) {
                let found = self.sessions.get(&of).map(|(session, revision)| (session, *revision));
                watch.found(found, now);
            }
            let early = self.mutation == Some(Mutation::SessionEndsEarly);
            let at = if early { now + LEASE * 3 / 4 } else { now };
            if let Some(expected) = watch.may_end(at)
                && !node.ends.iter().any(|(ending, _)| *ending == of)
            {
                let session = Session { node: "n".into(), lease_ms: 0, ended_at: Some(time) };
                node.ends.push((of.clone(), expected));
                self.send(node.number, Body::Session(of, session), expected);
            }
        }
    }
}

#[test]
fn no_world_has_more_handlers_at_work_than_allowed_and_slots_come_back() {
    for seed in 1..=WORLDS {
        if let Some(wrong) = World::new(seed, None).play() {
            panic!("world {seed}: {wrong}");
        }
    }
}

#[test]
fn every_mutation_is_found() {
    let finds = |mutation: &Mutation| {
        let worlds = (1..=WORLDS).map(|seed| World::new(seed, Some(*mutation)).play());
        let at = worlds.enumerate().find(|(_, wrong)| wrong.as_ref().is_some_and(|wrong| wrong.contains("at work")));
        println!("FIRST {mutation:?} {:?}", at.as_ref().map(|at| at.0));
        at.is_some()
    };
    let unfound: Vec<Mutation> = Mutation::ALL.into_iter().filter(|mutation| !finds(mutation)).collect();
    assert!(unfound.is_empty(), "no world is broken by {unfound:?}");
}

#[test]
fn what_a_long_attempt_asked_for_goes_soon_after_it() {
    let (start, long, short) = (Instant::now(), Duration::from_secs(3_600), Duration::from_secs(60));
    let nobody = |_: &str, _: &Block| false;
    let mut holder = Holder::new("a".into(), 1, start);
    holder.learned(SlotVersion { record: SlotRecord::default(), revision: 0 }, nobody);
    let mut revision = 0;
    let mut write = |holder: &mut Holder, now| {
        let (ask, base, _) = holder.ask(now)?;
        revision += 1;
        let next = base.after(&ask, 1, nobody);
        holder.won(&ask, SlotVersion { record: next.clone(), revision }, now, nobody);
        Some(next.of("a"))
    };
    assert!(holder.take(start, long).is_err());
    assert_eq!(write(&mut holder, start), Some(Block { slots: 1, holds_for_ms: 3_600_000 }));
    holder.take(start, long).unwrap();
    let late = start + Duration::from_secs(30);
    assert_eq!(write(&mut holder, late), None, "it is at work");
    holder.put_back(late, long);
    holder.take(late, short).unwrap();
    assert_eq!(write(&mut holder, late + Duration::from_millis(400)), None, "the next may ask for as much");
    let later = late + Duration::from_millis(600);
    assert!(holder.is_due(later));
    assert_eq!(write(&mut holder, later), Some(Block { slots: 1, holds_for_ms: 60_000 }));
    holder.put_back(later, short);
    assert!(holder.take(later, long).is_err(), "the record does not say so any more");
    assert_eq!(write(&mut holder, later), Some(Block { slots: 1, holds_for_ms: 3_600_000 }));
    holder.take(later, long).unwrap();
}
