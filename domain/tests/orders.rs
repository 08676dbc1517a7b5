//! The order of a concurrency key, in seeded worlds: jobs of one key and lane come to nodes that die, freeze and lose
//! their answers between any two steps, are parked and taken back, retried and cancelled. The domain's own functions
//! decide; that no run starts before all with a lower number in the lane have ended is checked against the lane itself.
//! Each rule is also broken on purpose, and some world must notice.

#![allow(clippy::unwrap_used, reason = "this whole program is tests; clippy excepts only the functions marked as such")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use longshore_domain::concurrency::{BATCH, Member, Next, Order, Place};
use longshore_domain::{RunId, Timestamp};

use crate::support::Chance;

const WORLDS: u64 = 3_000;
/// So many are played at most until one notices a broken rule: some need three steps of others in between.
const BROKEN: u64 = 60_000;
/// So many worlds have more runs than a batch.
const LARGE: u64 = 8;
const RUNS: u64 = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutation {
    StartsWhateverComes,
    WritesWithoutComparing,
    ReadsTheParkedBeforeTheLane,
    ReadsOnlyTheLane,
    ReadsOnlyTheParked,
    TakesRunsWithoutRecordForEnded,
    DoesNotReadTheRecordAgain,
    RunsThatEndedCount,
    ARetryCountsAsEnded,
    AcknowledgesBeforeItParks,
    TakesBackWhateverIsParked,
    CutsInTheOrderOfParking,
    PutsOffInsteadOfParking,
    CutsBeforeTheBatchIsOver,
}

impl Mutation {
    const ALL: [Self; 14] = [
        Self::StartsWhateverComes,
        Self::WritesWithoutComparing,
        Self::ReadsTheParkedBeforeTheLane,
        Self::ReadsOnlyTheLane,
        Self::ReadsOnlyTheParked,
        Self::TakesRunsWithoutRecordForEnded,
        Self::DoesNotReadTheRecordAgain,
        Self::RunsThatEndedCount,
        Self::ARetryCountsAsEnded,
        Self::AcknowledgesBeforeItParks,
        Self::TakesBackWhateverIsParked,
        Self::CutsInTheOrderOfParking,
        Self::PutsOffInsteadOfParking,
        Self::CutsBeforeTheBatchIsOver,
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No node has met it: it has no record.
    Unmet,
    Waits,
    Runs,
    Retries,
    Ended,
    /// It has ended, and its record is no longer kept.
    Gone,
}

impl State {
    fn has_ended(self) -> bool {
        matches!(self, Self::Ended | Self::Gone)
    }

    fn has_record(self) -> bool {
        !matches!(self, Self::Unmet | Self::Gone)
    }
}

/// Who takes the steps: a node that holds a message, or one that takes parked jobs back.
type Who = Option<Message>;

#[derive(Debug, Clone)]
enum At {
    Record,
    Order,
    /// Looks at the runs of a batch, one after the other; `again` counts the looks at one.
    Look {
        order: Order,
        revision: u64,
        at: usize,
        again: u8,
    },
    Cut {
        revision: u64,
    },
    Lane {
        revision: u64,
        up_to: u64,
        found: Vec<Message>,
        is_second: bool,
    },
    Parked {
        revision: u64,
        up_to: u64,
        found: Vec<Message>,
        is_second: bool,
    },
    Judge {
        revision: u64,
        found: Vec<Message>,
    },
    Write {
        revision: u64,
        order: Order,
    },
    Decide,
    Park {
        wait: u32,
    },
    Acknowledge,
}

/// A run, and which of its waits the message speaks for: 0 in its lane, one more each time that it is parked or
/// retried.
type Message = (u64, u32);

struct World {
    chance: Chance,
    mutation: Option<Mutation>,
    faults: u64,
    /// How often another gate keeps a job from starting.
    gated: u64,
    /// How fast jobs come: those that come at once stand in the lane unmet for long.
    haste: u64,
    come: u64,
    runs: u64,
    order: (Order, u64),
    states: BTreeMap<u64, State>,
    /// Where messages are: in the lane, parked in this order, or where no reader of an order looks.
    lane: BTreeSet<u64>,
    parked: Vec<Message>,
    elsewhere: BTreeSet<Message>,
    /// How often each run has waited anew, as its record says.
    waits: BTreeMap<u64, u32>,
    hands: Vec<(Who, At)>,
}

fn member(number: u64) -> Member {
    let place = Place { at: Timestamp::from_millis(number as i64 / 2), number };
    Member { run_id: RunId::parse(&format!("r{number}")).unwrap(), round: 1, place }
}

impl World {
    fn new(seed: u64, runs: u64, mutation: Option<Mutation>) -> Self {
        let mut chance = Chance::of_world(seed);
        let faults = [0, 3, 10][chance.below(3) as usize];
        let gated = [0, 15, 60][chance.below(3) as usize];
        let haste = [10, 80][chance.below(2) as usize];
        Self {
            chance,
            mutation,
            faults,
            gated,
            haste,
            come: 0,
            runs,
            order: (Order::default(), 0),
            states: BTreeMap::new(),
            lane: BTreeSet::new(),
            parked: Vec::new(),
            elsewhere: BTreeSet::new(),
            waits: BTreeMap::new(),
            hands: Vec::new(),
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Plays the world; says what is wrong.
    fn play(mut self) -> Result<(), String> {
        let (calm, settles) = (60 * self.runs, 600 * self.runs);
        for step in 0..calm + settles {
            let is_calm = step >= calm;
            if self.come < self.runs && (self.chance.hits(self.haste) || is_calm) {
                self.come += 1;
                self.states.insert(self.come, State::Unmet);
                self.lane.insert(self.come);
                self.waits.insert(self.come, 0);
            }
            if !is_calm && self.chance.hits(self.faults) && !self.hands.is_empty() {
                let dead = self.chance.below(self.hands.len() as u64) as usize;
                self.hands.swap_remove(dead);
            }
            self.deliver();
            self.work(is_calm);
            if !self.hands.is_empty() {
                let hand = self.chance.below(self.hands.len() as u64) as usize;
                let (who, at) = self.hands.swap_remove(hand);
                self.step(who, at)?;
            }
            if self.come == self.runs && self.states.values().all(|state| state.has_ended()) {
                return Ok(());
            }
        }
        let open: Vec<_> = self.states.iter().filter(|(_, state)| !state.has_ended()).collect();
        Err(format!("these have not ended: {open:?}"))
    }

    /// A node gets a job that no node holds, now and then one that a node holds; or looks what is parked.
    fn deliver(&mut self) {
        let here = self.lane.iter().map(|run| (*run, 0)).chain(self.elsewhere.iter().copied());
        let here: Vec<Message> = here.collect();
        if !here.is_empty() && self.chance.hits(30) {
            let message = here[self.chance.below(here.len() as u64) as usize];
            let is_held = self.hands.iter().any(|(who, _)| *who == Some(message));
            if !is_held || self.chance.hits(self.faults) {
                self.hands.push((Some(message), At::Record));
            }
        }
        if !self.parked.is_empty()
            && self.chance.hits(15)
            && self.hands.iter().filter(|(who, _)| who.is_none()).count() < 2
        {
            self.hands.push((None, At::Order));
        }
    }

    /// Attempts end, runs are cancelled while they wait, and records of ended runs are forgotten.
    fn work(&mut self, is_calm: bool) {
        let (retries, cancels, forgets) =
            (!is_calm && self.chance.hits(40), !is_calm && self.chance.hits(4), self.chance.hits(10));
        for (run, state) in &mut self.states {
            match state {
                State::Runs if self.chance.hits(10) => {
                    *state = if retries { State::Retries } else { State::Ended };
                    self.lane.remove(run);
                    self.elsewhere.retain(|(of, _)| of != run);
                    if retries {
                        let wait = self.waits.get_mut(run).unwrap();
                        *wait += 1;
                        self.elsewhere.insert((*run, *wait));
                    }
                }
                State::Waits if cancels && self.chance.hits(20) => *state = State::Ended,
                State::Ended if forgets && !self.lane.contains(run) => *state = State::Gone,
                _ => {}
            }
        }
    }

    fn step(&mut self, who: Who, at: At) -> Result<(), String> {
        if let Some(message) = who
            && self.states[&message.0].has_ended()
        {
            self.acknowledges(message);
            return Ok(());
        }
        if let Some(next) = self.next(who, at)? {
            self.hands.push((who, next));
        }
        Ok(())
    }

    fn next(&mut self, who: Who, at: At) -> Result<Option<At>, String> {
        Ok(match at {
            At::Record => return self.meets(who.unwrap()),
            At::Order => Some(At::Look { order: self.order.0.clone(), revision: self.order.1, at: 0, again: 0 }),
            At::Look { order, revision, at, again } => return self.look(who, (order, revision), at, again),
            At::Cut { revision } => match who {
                Some((up_to, _)) => Some(self.first_read(revision, up_to)),
                None => self.parked.iter().map(|(run, _)| *run).max().map(|up_to| self.first_read(revision, up_to)),
            },
            at @ (At::Lane { .. } | At::Parked { .. } | At::Judge { .. }) => self.cuts(who, at),
            At::Write { revision, order } => {
                if revision == self.order.1 || self.is(Mutation::WritesWithoutComparing) {
                    self.order = (order, self.order.1 + 1);
                }
                Some(At::Order)
            }
            At::Decide => {
                let (run, wait) = who.unwrap();
                let is_first = self.waits[&run] == wait && self.states[&run] == State::Waits;
                is_first.then(|| {
                    self.waits.insert(run, wait + 1);
                    At::Park { wait: wait + 1 }
                })
            }
            At::Park { wait } => {
                let message = who.unwrap();
                if self.is(Mutation::AcknowledgesBeforeItParks) {
                    self.acknowledges(message);
                    // The node may die before it parks it.
                    if self.chance.hits(self.faults) {
                        return Ok(None);
                    }
                }
                self.parked.push((message.0, wait));
                Some(At::Acknowledge)
            }
            At::Acknowledge => {
                self.acknowledges(who.unwrap());
                None
            }
        })
    }

    /// The next step of the node that cuts a batch.
    fn cuts(&self, who: Who, at: At) -> Option<At> {
        match at {
            At::Lane { revision, up_to, mut found, is_second } => {
                if !self.is(Mutation::ReadsOnlyTheParked) {
                    found.extend(self.lane.range(..=up_to).map(|run| (*run, 0)));
                }
                Some(match is_second {
                    true => At::Judge { revision, found },
                    false => At::Parked { revision, up_to, found, is_second: true },
                })
            }
            At::Parked { revision, up_to, mut found, is_second } => {
                if !self.is(Mutation::ReadsOnlyTheLane) {
                    found.extend(self.parked.iter().filter(|(run, _)| *run <= up_to));
                }
                Some(match is_second {
                    true => At::Judge { revision, found },
                    false => At::Lane { revision, up_to, found, is_second: true },
                })
            }
            At::Judge { revision, found } => {
                let speaks = |(run, wait): &Message| [*wait, *wait + 1].contains(&self.waits[run]);
                let open = found.into_iter().filter(speaks).map(|(run, _)| run);
                let mut open: Vec<u64> = open.filter(|run| !self.states[run].has_ended()).collect();
                open.extend(who.map(|(run, _)| run));
                let order = match self.is(Mutation::CutsInTheOrderOfParking) {
                    true => {
                        let renumbered = open.iter().enumerate().map(|(at, run)| {
                            let place = Place { number: at as u64, ..member(*run).place };
                            Member { place, ..member(*run) }
                        });
                        Order::cut(renumbered)
                    }
                    false => Order::cut(open.into_iter().map(member)),
                };
                (!order.batch().is_empty()).then_some(At::Write { revision, order })
            }
            _ => None,
        }
    }

    fn acknowledges(&mut self, (run, wait): Message) {
        match wait {
            0 => drop(self.lane.remove(&run)),
            _ => drop(self.elsewhere.remove(&(run, wait))),
        }
    }

    fn first_read(&self, revision: u64, up_to: u64) -> At {
        let (found, is_second) = (Vec::new(), false);
        match self.is(Mutation::ReadsTheParkedBeforeTheLane) {
            true => At::Parked { revision, up_to, found, is_second },
            false => At::Lane { revision, up_to, found, is_second },
        }
    }

    /// A node reads and stores the record of a job that it holds. A job whose run works, or is parked and was not taken
    /// back, has nothing more to say.
    fn meets(&mut self, (run, wait): Message) -> Result<Option<At>, String> {
        let now = self.waits[&run];
        match self.states[&run] {
            State::Unmet => {
                self.states.insert(run, State::Waits);
            }
            State::Runs => return Ok(None),
            State::Retries if wait == now => return self.starts(run),
            // That it is to be parked was decided under this message: it is carried out again.
            State::Waits if wait + 1 == now => return Ok(Some(At::Park { wait: now })),
            State::Waits if wait == now => {}
            _ => return Ok(Some(At::Acknowledge)),
        }
        if self.is(Mutation::StartsWhateverComes) {
            return self.starts(run);
        }
        // Another gate keeps it from starting.
        if self.chance.hits(self.gated) {
            if self.is(Mutation::PutsOffInsteadOfParking) {
                self.lane.remove(&run);
                self.waits.insert(run, now + 1);
                self.elsewhere.insert((run, now + 1));
                return Ok(None);
            }
            return Ok(Some(At::Decide));
        }
        Ok(Some(At::Order))
    }

    fn look(&mut self, who: Who, (order, revision): (Order, u64), at: usize, again: u8) -> Result<Option<At>, String> {
        let cuts_early = self.is(Mutation::CutsBeforeTheBatchIsOver) && at == order.batch().len() / 2;
        let Some(first) = order.batch().get(at).filter(|_| !cuts_early).cloned() else {
            return Ok(Some(At::Cut { revision }));
        };
        let run = first.place.number;
        let run = if self.is(Mutation::CutsInTheOrderOfParking) { number_of(&first) } else { run };
        let state = self.states[&run];
        let is_open = match again {
            0 | 2 if state.has_record() => {
                let retries = state == State::Retries && self.is(Mutation::ARetryCountsAsEnded);
                !retries && (!state.has_ended() || self.is(Mutation::RunsThatEndedCount))
            }
            0 if self.is(Mutation::TakesRunsWithoutRecordForEnded) => false,
            0 => return Ok(Some(At::Look { order, revision, at, again: 1 })),
            1 if self.lane.contains(&run) => true,
            1 if self.is(Mutation::DoesNotReadTheRecordAgain) => false,
            1 => return Ok(Some(At::Look { order, revision, at, again: 2 })),
            _ => self.is(Mutation::RunsThatEndedCount),
        };
        if !is_open {
            return Ok(Some(At::Look { order, revision, at: at + 1, again: 0 }));
        }
        let Some(me) = who else {
            self.takes_back(run);
            return Ok(None);
        };
        match Order::next(&member(me.0), Some(&first)) {
            Next::Mine if self.waits[&me.0] != me.1 => Ok(None),
            Next::Mine => self.starts(me.0),
            Next::After(_) => Ok(Some(At::Decide)),
            Next::Cut => Ok(Some(At::Cut { revision })),
        }
    }

    fn takes_back(&mut self, next: u64) {
        let any = self.is(Mutation::TakesBackWhateverIsParked);
        let Some(at) = self.parked.iter().position(|(run, _)| any || *run == next) else { return };
        let message = self.parked.remove(at);
        self.elsewhere.insert(message);
    }

    /// A run starts: all with a lower number have ended.
    fn starts(&mut self, run: u64) -> Result<Option<At>, String> {
        if let Some((before, state)) = self.states.range(..run).find(|(_, state)| !state.has_ended()) {
            return Err(format!("{run} starts, and {before} has not ended: {state:?}"));
        }
        self.states.insert(run, State::Runs);
        Ok(None)
    }
}

fn number_of(member: &Member) -> u64 {
    member.run_id.as_str()[1..].parse().unwrap()
}

#[test]
fn no_world_starts_a_run_before_those_that_came_before_it_have_ended() {
    for seed in 0..WORLDS {
        if let Err(wrong) = World::new(seed, RUNS, None).play() {
            panic!("world {seed}: {wrong}");
        }
    }
    for seed in 0..LARGE {
        if let Err(wrong) = World::new(seed, BATCH as u64 + 9, None).play() {
            panic!("large world {seed}: {wrong}");
        }
    }
}

#[test]
fn every_broken_rule_is_found() {
    for mutation in Mutation::ALL {
        let is_found = (0..BROKEN).any(|seed| World::new(seed, RUNS, Some(mutation)).play().is_err());
        assert!(is_found, "{mutation:?} breaks no world");
    }
}
