//! Drawn histories: thousands of sound ones pass, and none passes after one deciding event is removed.
//!
//! Runs are simulated at random (delays, deferrals, drains, snoozes, failures of every kind, replays, cancels, kills,
//! freezes). Their events are interleaved and repeated at random, with matching records, dead letters and calls.

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRng};

use super::super::*;
use super::from_words::{TENANT, at, event};
use crate::stored::Logged;
use crate::wire::{Event, EventName, Failure};

/// How long a lease lasts here, in seconds.
const LEASE: i64 = 4;

/// One simulated run.
#[derive(Default)]
struct Life {
    events: Vec<Event>,
    calls: Vec<Call>,
    failed: Vec<(u32, u32, String)>,
    /// For each failed attempt, the node that had begun it and when.
    holders: Vec<(String, i64)>,
    interruptions: Vec<Interruption>,
    silences: Vec<Silence>,
    /// The node that runs it now, and since when.
    held: (String, i64),
    state: &'static str,
    place: (u32, u32),
    second: i64,
}

impl Life {
    fn publish(&mut self, run: &str, name: &str, suffix: u32) -> &mut Event {
        self.second += 1;
        let mut event = event(run, name, self.place.0, self.place.1, self.second);
        if suffix > 0 {
            event.id = format!("{}#{suffix}", event.id);
        }
        self.events.push(event);
        self.events.last_mut().unwrap()
    }
}

fn chance(rng: &mut TestRng, percent: u32) -> bool {
    rng.random_range(0..100) < percent
}

fn live(run: &str, rng: &mut TestRng) -> Life {
    let mut life = Life { state: "completed", ..Life::default() };
    for round in 1.. {
        life.place = (round, 0);
        if round > 1 {
            life.publish(run, "replayed", 0);
        }
        if !live_round(run, &mut life, rng) || round == 3 || chance(rng, 60) {
            break;
        }
    }
    if life.state == "dead" && chance(rng, 30) {
        life.publish(run, "discarded", 0);
        life.state = "discarded";
    }
    life
}

/// Returns true if the round ended as a dead letter.
fn live_round(run: &str, life: &mut Life, rng: &mut TestRng) -> bool {
    if chance(rng, 20) {
        let due = at(life.second + 4);
        life.publish(run, "scheduled", 0).run_at = Some(due);
        life.second += 5;
    }
    if chance(rng, 3) {
        return end(run, life, "cancelled", "cancelled");
    }
    life.publish(run, "enqueued", 0);
    match rng.random_range(0..40) {
        0 => return end(run, life, "expired", "expired"),
        1 => return end(run, life, "duplicate", "duplicate"),
        _ => {}
    }
    for attempt in 1..=3 {
        wait(run, life, rng);
        life.place.1 = attempt;
        if chance(rng, 4) {
            life.place.1 = attempt - 1;
            return end(run, life, "cancelled", "cancelled");
        }
        run_attempt(run, life, rng);
        match rng.random_range(0..10) {
            0..5 => return end(run, life, "completed", "completed"),
            5 => return end(run, life, "cancelled", "cancelled"),
            what => {
                let kind = ["retryable", "panic", "lease_expired", "permanent"][what - 6];
                if kind == "lease_expired" {
                    lose_lease(life, rng);
                }
                life.holders.push(life.held.clone());
                let again = attempt < 3 && kind != "permanent";
                let due = at(life.second + 3);
                let failed = life.publish(run, "failed", 0);
                failed.error = Some(Failure { kind: kind.to_owned(), message: String::new() });
                failed.retry_at = again.then_some(due);
                life.failed.push((life.place.0, attempt, kind.to_owned()));
                if !again {
                    life.publish(run, "dlq", 0).error = Some(Failure { kind: kind.to_owned(), message: String::new() });
                    life.state = "dead";
                    return true;
                }
                life.second += 3;
            }
        }
    }
    unreachable!("the last attempt ends the round")
}

fn end(run: &str, life: &mut Life, name: &str, state: &'static str) -> bool {
    life.publish(run, name, 0);
    life.state = state;
    false
}

fn wait(run: &str, life: &mut Life, rng: &mut TestRng) {
    for number in 1..=rng.random_range(0..3) {
        life.publish(run, "deferred", number).reason = Some("rate_limited".to_owned());
    }
}

/// Its node dies, or freezes until its lease is over and goes on working when it thaws.
fn lose_lease(life: &mut Life, rng: &mut TestRng) {
    let (node, call) = (life.held.0.clone(), life.calls.last_mut().unwrap());
    if chance(rng, 50) {
        call.end = None;
        life.interruptions.push(Interruption { node: Some(node), at: at(life.second) });
        life.second += 1;
    } else {
        call.end = Some(at(life.second + LEASE + 3));
        life.silences.push(Silence { node: Some(node), from: at(life.second), until: at(life.second + LEASE + 2) });
        life.second += LEASE;
    }
}

fn take(life: &mut Life, rng: &mut TestRng) -> Option<String> {
    life.held = (format!("n{}", rng.random_range(1..4)), life.second);
    Some(life.held.0.clone())
}

/// Starts the attempt, and again each time it is returned, and calls its handler.
fn run_attempt(run: &str, life: &mut Life, rng: &mut TestRng) {
    for start in 0.. {
        life.publish(run, "started", start);
        let killed = chance(rng, 10);
        life.calls.push(Call {
            tenant: TENANT.to_owned(),
            run_id: run.to_owned(),
            round: life.place.0,
            attempt: life.place.1,
            start: at(life.second),
            end: (!killed).then(|| at(life.second + 1)),
            node: None,
        });
        life.calls.last_mut().unwrap().node = take(life, rng);
        if killed {
            // Its node died at once; the node that takes the same attempt calls again, and publishes the start again.
            life.interruptions.push(Interruption { node: Some(life.held.0.clone()), at: at(life.second) });
            life.second += 2;
            let node = take(life, rng);
            let (start, end) = (at(life.second), Some(at(life.second)));
            life.calls.push(Call { start, end, node, ..life.calls.last().unwrap().clone() });
        }
        for number in 1..=rng.random_range(0..3) {
            life.publish(run, "progress", start * 10 + number);
        }
        match rng.random_range(0..10) {
            0 => drop(life.publish(run, "released", start)),
            1 => life.publish(run, "deferred", start + 10).reason = Some("snoozed".to_owned()),
            _ => return,
        }
    }
}

/// A history of `runs` runs, whose events are mixed at random, with repeats.
fn draw(seed: u64, runs: usize) -> History {
    let mut rng = TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &seed_bytes(seed));
    let mut history = History::default();
    history.rules.lease = Some(std::time::Duration::from_secs(LEASE.unsigned_abs()));
    let mut lives = Vec::new();
    for number in 0..runs {
        let run = format!("r{number}");
        let life = live(&run, &mut rng);
        history.accepted.push(Accepted::of(TENANT, &run));
        super::from_words::record(
            &mut history,
            &run,
            life.state,
            life.place,
            &life.failed.iter().map(|(round, attempt, kind)| (*round, *attempt, kind.as_str())).collect::<Vec<_>>(),
        );
        for (tried, (node, since)) in history.records[number].attempts.iter_mut().zip(&life.holders) {
            (tried.node, tried.started_at) = (Some(node.clone()), Some(at(*since)));
        }
        history.rules.interruptions.extend(life.interruptions.clone());
        history.rules.silences.extend(life.silences.clone());
        if life.state == "dead" {
            super::from_words::add_dead_letter(&mut history, &run, life.place.0);
        }
        history.calls.extend(life.calls.clone());
        lives.push(life.events.into_iter().peekable());
    }
    while !lives.is_empty() {
        let whose = rng.random_range(0..lives.len());
        match lives[whose].next() {
            Some(event) => log(&mut history, event),
            None => drop(lives.swap_remove(whose)),
        }
        if chance(&mut rng, 15) && !history.events.is_empty() {
            let again = history.events[rng.random_range(0..history.events.len())].event.clone();
            log(&mut history, again);
        }
    }
    history
}

fn log(history: &mut History, event: Event) {
    let sequence = history.events.len() as u64 / 3 + 1;
    history.events.push(Logged { sequence, event });
}

fn seed_bytes(seed: u64) -> [u8; 32] {
    std::array::from_fn(|position| seed.to_le_bytes()[position % 8])
}

/// Whether a history cannot be sound without this event. Waiting runs may be cancelled, and scheduled ones may expire,
/// without having been enqueued; a start after a return is not required if the run was cancelled instead.
fn decides(history: &History, event: &Event) -> bool {
    let ended = |by: &[EventName]| {
        let same = |other: &&Logged| (&other.event.run_id, other.event.round) == (&event.run_id, event.round);
        history.events.iter().filter(same).any(|other| by.contains(&other.event.event))
    };
    match event.event {
        EventName::Enqueued => !ended(&[EventName::Cancelled, EventName::Expired, EventName::Duplicate]),
        EventName::Started => !event.id.contains('#') || !ended(&[EventName::Cancelled]),
        EventName::Failed | EventName::Replayed => true,
        name => name.is_end(),
    }
}

fn without_repeats(mut history: History) -> History {
    let mut seen = std::collections::HashSet::new();
    history.events.retain(|logged| seen.insert(logged.event.id.clone()));
    history
}

/// Positions of deciding events that directly follow another one.
fn deciding_pairs(history: &History) -> Vec<usize> {
    let decides = |place: usize| decides(history, &history.events[place].event);
    (1..history.events.len()).filter(|place| decides(*place) && decides(place - 1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        rng_seed: RngSeed::Fixed(7), // the same ones each time; PROPTEST_CASES draws more
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sound_histories_pass(seed: u64, runs in 1_usize..30) {
        prop_assert_eq!(draw(seed, runs).check(), []);
    }

    #[test]
    fn a_call_after_the_end_is_noticed(seed: u64, late in 1_i64..9) {
        let mut history = draw(seed, 6);
        let end = history.events.iter().map(|logged| &logged.event).find(|event| event.event.is_end()).unwrap().clone();
        history.calls.push(Call {
            tenant: TENANT.to_owned(),
            run_id: end.run_id.clone(),
            round: end.round,
            attempt: end.attempt,
            start: end.at + jiff::SignedDuration::from_secs(late),
            end: None,
            node: Some("n4".to_owned()),
        });
        let found = history.check();
        prop_assert!(found.iter().any(|violation| violation.kind == Kind::CallAfterEnd), "{:?}", found);
    }

    #[test]
    fn a_deciding_event_taken_out_is_missed(seed: u64, pick: prop::sample::Index) {
        let mut history = draw(seed, 6);
        let deciding: Vec<&Event> =
            history.events.iter().map(|logged| &logged.event).filter(|event| decides(&history, event)).collect();
        let gone = pick.get(&deciding).id.clone();
        history.events.retain(|logged| logged.event.id != gone);
        prop_assert!(!history.check().is_empty(), "{} was not missed", gone);
    }

    #[test]
    fn a_deciding_event_moved_before_the_one_ahead_of_it_is_noticed(seed: u64, pick: prop::sample::Index) {
        // Most lives, but not all, have two such events in a row.
        let mut lives = (0..).map(|more| without_repeats(draw(seed.wrapping_add(more), 1)));
        let mut history = lives.find(|life| !deciding_pairs(life).is_empty()).unwrap();
        let pairs = deciding_pairs(&history);
        let place = *pick.get(&pairs);
        history.events.swap(place - 1, place);
        prop_assert!(!history.check().is_empty(), "not noticed: {:?}", history.events[place].event.id);
    }
}
