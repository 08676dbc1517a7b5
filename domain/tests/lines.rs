//! The lines of concurrency keys, in seeded worlds: runs of one key come to its line from nodes that die, freeze and
//! lose their answers between any two steps, and come again. The domain's own functions decide; what the runs' records
//! say is the truth that is checked. Each rule is also broken on purpose, and some world must notice.

#![allow(clippy::unwrap_used, reason = "this whole program is tests; clippy excepts only the functions marked as such")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_domain::concurrency::{Entry, Judged, Leaving, Line, Member, OnBusy, Place};
use longshore_domain::{RunId, Timestamp};

use crate::support::Chance;

const WORLDS: u64 = 3_000;
const RUNS: u64 = 9;
/// After so many steps there are no more faults.
const CALM: u64 = 400;
/// Within so many more all has ended.
const SETTLES: u64 = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutation {
    WritesWithoutComparing,
    RunsThatEndedCount,
    GoneRecordsCount,
    CancelsNobody,
    StartsBeforeItCancels,
    CancelsOnlyAfterItsOwnWrite,
    TakesTheOlderForNewer,
    LetsItselfInAgain,
}

impl Mutation {
    const ALL: [Self; 8] = [
        Self::WritesWithoutComparing,
        Self::RunsThatEndedCount,
        Self::GoneRecordsCount,
        Self::CancelsNobody,
        Self::StartsBeforeItCancels,
        Self::CancelsOnlyAfterItsOwnWrite,
        Self::TakesTheOlderForNewer,
        Self::LetsItselfInAgain,
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Runs,
    Retries,
    Completed,
    MadeWay,
    /// It has ended, and its record is no longer kept.
    Gone,
}

impl State {
    fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::MadeWay | Self::Gone)
    }

    fn is_in(self) -> bool {
        matches!(self, Self::Runs | Self::Retries)
    }
}

/// How far a node is that holds a job of a run.
#[derive(Debug, Clone)]
enum At {
    Line,
    Records(Line, u64),
    Write(Line, u64, Vec<u64>),
    Cancel(Judged, Vec<Leaving>),
    Own(Entry),
}

struct World {
    chance: Chance,
    mutation: Option<Mutation>,
    on_busy: OnBusy,
    max: u32,
    faults: u64,
    line: (Line, u64),
    runs: BTreeMap<u64, State>,
    /// The nodes at work, each with the run whose job it has; a run may be in two hands.
    hands: Vec<(u64, At)>,
    come: u64,
}

fn member(run: u64) -> Member {
    let place = Place { at: Timestamp::from_millis(run as i64 / 2), number: run };
    Member { run_id: RunId::parse(&format!("r{run}")).unwrap(), round: 1, place }
}

fn number(member: &Member) -> u64 {
    member.place.number
}

impl World {
    fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut chance = Chance::of_world(seed);
        let on_busy = [OnBusy::Wait, OnBusy::DropNew, OnBusy::KeepNewest, OnBusy::CancelRunning];
        let on_busy = on_busy[chance.below(4) as usize];
        let max = [1, 1, 2, 3][chance.below(4) as usize];
        let faults = [0, 3, 10][chance.below(3) as usize];
        let (line, runs) = ((Line::default(), 0), BTreeMap::new());
        Self { chance, mutation, on_busy, max, faults, line, runs, hands: Vec::new(), come: 0 }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn has_ended(&self, run: u64) -> bool {
        let is_gone = self.runs[&run] == State::Gone;
        let counts = self.is(Mutation::RunsThatEndedCount) || is_gone && self.is(Mutation::GoneRecordsCount);
        self.runs[&run].has_ended() && !counts
    }

    /// Plays the world; says what is wrong.
    fn play(mut self) -> Result<(), String> {
        for step in 0..CALM + SETTLES {
            let is_calm = step >= CALM;
            if self.come < RUNS && (self.chance.hits(8) || is_calm) {
                self.come += 1;
                self.runs.insert(self.come, State::Waits);
                self.hands.push((self.come, At::Line));
            }
            if !is_calm && self.chance.hits(self.faults) && !self.hands.is_empty() {
                // A node dies; the job comes again, to another.
                let dead = self.chance.below(self.hands.len() as u64) as usize;
                self.hands.swap_remove(dead);
            }
            self.deliver_again();
            self.work();
            if !self.hands.is_empty() {
                let hand = self.chance.below(self.hands.len() as u64) as usize;
                let (run, at) = self.hands.swap_remove(hand);
                self.step(run, at, is_calm)?;
            }
            let inside = self.runs.values().filter(|state| state.is_in()).count();
            if inside > self.max as usize {
                return Err(format!("{inside} runs were let in and have not ended, of {}", self.max));
            }
        }
        let open: Vec<_> = self.runs.iter().filter(|(_, state)| !state.has_ended()).collect();
        if !open.is_empty() || self.come < RUNS {
            return Err(format!("these have not ended: {open:?}"));
        }
        let newest = self.runs[&RUNS];
        if newest == State::MadeWay && self.on_busy != OnBusy::DropNew {
            return Err("the newest made way".to_owned());
        }
        Ok(())
    }

    /// Jobs that no node holds come again, and now and then one comes twice.
    fn deliver_again(&mut self) {
        let runs: Vec<(u64, State)> = self.runs.iter().map(|(run, state)| (*run, *state)).collect();
        for (run, state) in runs {
            let waits = matches!(state, State::Waits | State::Retries);
            let hands = self.hands.iter().filter(|(of, _)| *of == run).count();
            if waits && (hands == 0 && self.chance.hits(20) || hands == 1 && self.chance.hits(self.faults / 3)) {
                self.hands.push((run, At::Line));
            }
        }
    }

    /// Attempts end.
    fn work(&mut self) {
        let (retries, forgets) = (self.chance.hits(30), self.chance.hits(20));
        for state in self.runs.values_mut() {
            match state {
                State::Runs if self.chance.hits(6) => {
                    *state = if retries { State::Retries } else { State::Completed };
                }
                State::Completed if forgets => *state = State::Gone,
                _ => {}
            }
        }
    }

    /// The next step of a node that has a job of this run.
    fn step(&mut self, run: u64, at: At, is_calm: bool) -> Result<(), String> {
        if self.runs[&run].has_ended() || self.runs[&run] == State::Runs {
            return Ok(());
        }
        let me = member(run);
        let next = match at {
            At::Line => At::Records(self.line.0.clone(), self.line.1),
            At::Records(line, revision) => {
                let ended = line.members().map(number).filter(|run| self.has_ended(*run)).collect();
                At::Write(line, revision, ended)
            }
            At::Write(line, revision, ended) => {
                let mut judged = self.judge(&line, &me, |member| ended.contains(&number(member)));
                if let Some(write) = &judged.write {
                    if revision != self.line.1 && !self.is(Mutation::WritesWithoutComparing) {
                        self.hands.push((run, At::Line));
                        return Ok(());
                    }
                    self.line = (write.clone(), self.line.1 + 1);
                    if !is_calm && self.chance.hits(self.faults) {
                        // The answer was lost: the job comes again.
                        return Ok(());
                    }
                } else if self.is(Mutation::CancelsOnlyAfterItsOwnWrite) {
                    judged.cancel.clear();
                }
                if self.is(Mutation::CancelsNobody) {
                    judged.cancel.clear();
                }
                let cancel = judged.cancel.clone();
                if self.is(Mutation::StartsBeforeItCancels) && judged.entry == Entry::In {
                    self.runs.insert(run, State::Runs);
                }
                At::Cancel(judged, cancel)
            }
            At::Cancel(judged, mut cancel) => match cancel.pop() {
                Some(Leaving { member, .. }) => {
                    let state = self.runs.get_mut(&number(&member)).unwrap();
                    if !state.has_ended() {
                        *state = State::MadeWay;
                    }
                    At::Cancel(judged, cancel)
                }
                None => At::Own(judged.entry),
            },
            At::Own(entry) => return self.goes_on(run, entry),
        };
        self.hands.push((run, next));
        Ok(())
    }

    fn judge(&self, line: &Line, me: &Member, has_ended: impl Fn(&Member) -> bool) -> Judged {
        let mut judged = line.judge(me, self.on_busy, self.max, &has_ended);
        if self.is(Mutation::TakesTheOlderForNewer)
            && matches!(self.on_busy, OnBusy::KeepNewest | OnBusy::CancelRunning)
        {
            let at = Timestamp::from_millis((RUNS - number(me)) as i64);
            let old = Member { place: Place { at, ..me.place }, ..me.clone() };
            judged = line.judge(&old, self.on_busy, self.max, &has_ended);
        }
        if self.is(Mutation::LetsItselfInAgain) {
            let again = Member { round: 2 + self.line.1 as u32, ..me.clone() };
            judged = line.judge(&again, self.on_busy, self.max, &has_ended);
        }
        judged
    }

    /// The line has judged the run: it starts, waits, or ends.
    fn goes_on(&mut self, run: u64, entry: Entry) -> Result<(), String> {
        let started_before = self.runs[&run] == State::Retries;
        match entry {
            Entry::In => {
                self.runs.insert(run, State::Runs);
            }
            Entry::Waits(of) if of == member(run).run_id => return Err(format!("{run} waits for itself")),
            // It comes again.
            Entry::Waits(_) => {}
            Entry::Busy(_) if started_before => return Err(format!("{run} was dropped although it was let in")),
            Entry::Busy(_) => {
                self.runs.insert(run, State::MadeWay);
            }
            Entry::Superseded(by) if (1..run).any(|older| by == member(older).run_id) => {
                return Err(format!("{run} made way for {by}, which is older"));
            }
            Entry::Superseded(_) => {
                self.runs.insert(run, State::MadeWay);
            }
        }
        Ok(())
    }
}

#[test]
fn no_world_lets_in_more_than_may_be_loses_a_run_or_ends_the_newest() {
    for seed in 0..WORLDS {
        let world = World::new(seed, None);
        let rules = (world.on_busy, world.max);
        if let Err(wrong) = world.play() {
            panic!("world {seed}, {rules:?}: {wrong}");
        }
    }
}

/// Given two runs of a key that start again and again, with time limits of up to three days and waits of up to one,
/// when they do, then each finds the line stored; and where their attempts follow each other, few of them write it.
#[test]
fn a_line_outlasts_each_attempt_of_its_runs_and_a_day_of_waiting() {
    let nobody = |_: &Member| false;
    let comes = |line: &mut Line, run: u64, now: Timestamp, limit: Duration| {
        let judged = line.judge(&member(run), OnBusy::DropNew, 2, nobody).kept(line, now, limit);
        assert_eq!(judged.entry, Entry::In);
        let is_written = judged.write.is_some();
        if let Some(next) = judged.write {
            *line = next;
        }
        is_written
    };
    let mut chance = Chance::of_world(7);
    let (mut line, mut now) = (Line::default(), Timestamp::from_millis(0));
    for _ in 0..1_000 {
        let limit = Duration::from_secs(chance.below(3 * 86_400));
        comes(&mut line, 1, now, limit);
        comes(&mut line, 2, now, Duration::from_secs(chance.below(60)));
        now = now.plus(limit).plus(Duration::from_secs(chance.below(86_400)));
        assert!(line.lasts(now) > Duration::ZERO, "{line:?} is gone at {now}");
    }
    let (mut line, start) = (Line::default(), now);
    let minutes = (0..24 * 60).map(|minute| start.plus(Duration::from_secs(60 * minute)));
    let writes = minutes.filter(|at| comes(&mut line, 1, *at, Duration::from_secs(60))).count();
    assert_eq!(writes, 4, "within a day");
}

/// Given a run that waits for others of its key, parked for a month each time, then its line is stored until it comes
/// again, and again after that.
#[test]
fn a_line_outlasts_the_wait_of_a_parked_run() {
    let (nobody, start, month) = (|_: &Member| false, Timestamp::from_millis(0), Duration::from_secs(30 * 86_400));
    let mut line = Line::default().judge(&member(1), OnBusy::KeepNewest, 1, nobody).write.unwrap();
    for months in 0..3 {
        let now = start.plus(month * months);
        let judged = line.judge(&member(2), OnBusy::KeepNewest, 1, nobody).kept(&line, now, month);
        assert_eq!(judged.entry, Entry::Waits(member(1).run_id));
        line = judged.write.expect("it is written again");
        assert!(line.lasts(now.plus(month)) > Duration::ZERO, "{line:?}");
    }
}

#[test]
fn every_broken_rule_is_found() {
    for mutation in Mutation::ALL {
        let is_found = (0..WORLDS).any(|seed| World::new(seed, Some(mutation)).play().is_err());
        assert!(is_found, "{mutation:?} breaks no world");
    }
}

#[test]
fn what_becomes_of_a_run_whose_key_is_busy() {
    let (first, second, third) = (member(1), member(2), member(3));
    let nobody = |_: &Member| false;
    let one = Line::default().judge(&first, OnBusy::DropNew, 1, nobody).write.unwrap();
    let judge = |line: &Line, me: &Member, on_busy| line.judge(me, on_busy, 1, nobody);
    let makes_way = |member: &Member, by: &Member| Leaving { member: member.clone(), by: by.run_id.clone() };
    let waits_for = |member: &Member| Entry::Waits(member.run_id.clone());
    let superseded_by = |member: &Member| Entry::Superseded(member.run_id.clone());

    assert_eq!(judge(&one, &second, OnBusy::Wait).entry, waits_for(&first));
    assert_eq!(judge(&one, &second, OnBusy::DropNew).entry, Entry::Busy(first.run_id.clone()));
    assert_eq!(judge(&one, &first, OnBusy::DropNew).entry, Entry::In, "once it was let in");
    let kept = judge(&one, &second, OnBusy::KeepNewest);
    assert_eq!((kept.entry, kept.cancel), (waits_for(&first), vec![]));
    let newer = judge(&kept.write.unwrap(), &third, OnBusy::KeepNewest);
    assert_eq!((newer.entry, &newer.cancel), (waits_for(&first), &vec![makes_way(&second, &third)]));
    let line = newer.write.unwrap();
    assert_eq!(judge(&line, &second, OnBusy::KeepNewest).entry, superseded_by(&third));
    let after = line.judge(&third, OnBusy::KeepNewest, 1, |member| member.is(&first));
    assert_eq!((after.entry, after.cancel), (Entry::In, vec![makes_way(&second, &third)]), "its node may have died");
    let taken = judge(&one, &second, OnBusy::CancelRunning);
    assert_eq!((taken.entry, taken.cancel), (Entry::In, vec![makes_way(&first, &second)]));
    let line = taken.write.unwrap();
    assert_eq!(judge(&line, &first, OnBusy::CancelRunning).entry, superseded_by(&second));
    assert_eq!(judge(&line, &second, OnBusy::CancelRunning).cancel, [makes_way(&first, &second)], "until it has ended");
}
