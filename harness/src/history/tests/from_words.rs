//! Writes histories from a few words, for tests: `"enqueued; started 1; failed 1 retryable +5; started 2; completed
//! 2"`.
//!
//! Each event is one second later than the one before. The words of an event, in this order: its name; the attempt (if
//! left out, the attempt before); a kind of error, or the reason of a deferral; `+5`: a retry or due time five seconds
//! after the event; `#x`: its own id instead of the usual one; `@7`: at second 7. `round 2;` begins the second round.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::super::{Accepted, Call, DeadLetter, History};
use crate::stored::Logged;
use crate::wire::{Event, Record};

pub(super) const TENANT: &str = "acme";

/// Second `second` of the test's clock.
pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// Adds a run that was accepted, with these events and nothing else.
pub(super) fn add_run(history: &mut History, run: &str, words: &str) {
    history.accepted.push(Accepted { at: at(0), ..Accepted::of(TENANT, run) });
    let (mut round, mut attempt, mut second) = (1, 0, 0);
    for phrase in words.split(';').map(str::trim).filter(|phrase| !phrase.is_empty()) {
        let mut words = phrase.split(' ').peekable();
        let name = words.next().unwrap();
        let number = words.next_if(|word| word.parse::<u32>().is_ok()).map(|word| word.parse().unwrap());
        if name == "round" {
            (round, attempt) = (number.unwrap(), 0);
            continue;
        }
        attempt = number.unwrap_or(attempt);
        second += 1;
        let mut event = event(run, name, round, attempt, second);
        for word in words {
            match word.split_at(1) {
                ("#", id) => event.id = id.to_owned(),
                ("@", moment) => event.at = at(moment.parse().unwrap()),
                ("+", seconds) => {
                    let due = event.at + SignedDuration::from_secs(seconds.parse().unwrap());
                    let field = if name == "failed" { &mut event.retry_at } else { &mut event.run_at };
                    *field = Some(due);
                }
                _ if name == "deferred" => event.reason = Some(word.to_owned()),
                _ => event.error = serde_json::from_value(json!({"kind": word})).unwrap(),
            }
        }
        second = event.at.as_second() - at(0).as_second();
        history.events.push(Logged { sequence: history.events.len() as u64 + 1, event });
    }
}

/// An event of type `work` with at most three attempts, with the usual id.
pub(super) fn event(run: &str, name: &str, round: u32, attempt: u32, second: i64) -> Event {
    serde_json::from_value(json!({
        "v": 1, "id": format!("{run}/{round}/{attempt}/{name}"), "event": name, "run_id": run, "tenant": TENANT,
        "queue": "main", "priority": 5, "type": "work", "round": round, "attempt": attempt, "max_attempts": 3,
        "at": at(second).to_string(), "node": "n1",
    }))
    .unwrap()
}

/// Gives a run its record; `failed` lists (round, attempt, kind of error).
pub(super) fn record(history: &mut History, run: &str, state: &str, place: (u32, u32), failed: &[(u32, u32, &str)]) {
    let attempts = failed
        .iter()
        .map(|(round, attempt, kind)| json!({"round": round, "attempt": attempt, "error": {"kind": kind}}));
    let record: Record = serde_json::from_value(json!({
        "run_id": run, "tenant": TENANT, "state": state, "round": place.0, "attempt": place.1,
        "attempts": attempts.collect::<Vec<_>>(),
    }))
    .unwrap();
    history.records.push(record);
}

/// Gives a run a dead letter.
pub(super) fn add_dead_letter(history: &mut History, run: &str, round: u32) {
    history.dead_letters.push(DeadLetter { tenant: TENANT.to_owned(), run_id: run.to_owned(), round: Some(round) });
}

/// As [`call`], on another node.
pub(super) fn call_on(node: &str, run: &str, attempt: u32, start: i64, end: Option<i64>) -> Call {
    Call { node: Some(node.to_owned()), ..call(run, attempt, start, end) }
}

/// A call of attempt `attempt` of the first round, over these seconds, on node `n1`.
pub(super) fn call(run: &str, attempt: u32, start: i64, end: Option<i64>) -> Call {
    Call {
        tenant: TENANT.to_owned(),
        run_id: run.to_owned(),
        round: 1,
        attempt,
        start: at(start),
        end: end.map(at),
        node: Some("n1".to_owned()),
    }
}
