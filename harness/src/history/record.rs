//! Checks whether a run's record agrees with its events, and whether the run has left any trace at all.

use std::collections::BTreeMap;

use super::by_run::Run;
use super::facts::Rules;
use super::round::Round;
use super::violation::{Kind, Violation};
use crate::wire::{EventName, Record};

/// Judges the record of `run` by the rounds in the log.
pub(super) fn judge(run: &Run<'_>, rounds: &BTreeMap<u32, Round>, rules: &Rules, found: &mut Vec<Violation>) {
    let Some(round) = rounds.values().next_back() else {
        return judge_unpublished(run, rules, found);
    };
    let Some(record) = run.record else {
        let invalid = round.end_error.as_deref() == Some("invalid");
        if rules.records_kept && round.end.is_some() && !invalid {
            found.push(run.violation(Kind::RecordMissing, "it has ended and has no record"));
        }
        return;
    };
    let mut disagrees = |detail: String| found.push(run.violation(Kind::RecordDisagrees, detail));
    if record.round.max(1) != round.number {
        return disagrees(format!("record in round {}, events in round {}", record.round.max(1), round.number));
    }
    let Some(end) = round.end else { return }; // reported as such already
    let state = state_after(end, round.discarded);
    if record.state != state {
        disagrees(format!("record {}, events {state}", record.state));
    }
    // An attempt that found no handler fails without having started; the record may or may not count it.
    let failed = round.failures.last().map_or(0, |(attempt, _)| *attempt);
    if round.started > 0 && record.attempt != round.started && record.attempt != failed {
        disagrees(format!("record at attempt {}, events at attempt {}", record.attempt, round.started));
    }
    if let (Some(error), Some(kind)) = (&record.error, &round.end_error)
        && error.kind != *kind
    {
        disagrees(format!("record ended by {}, events by {kind}", error.kind));
    }
    compare_attempts(record, rounds, &mut disagrees);
}

/// Judges a run that has no events in the log.
fn judge_unpublished(run: &Run<'_>, rules: &Rules, found: &mut Vec<Violation>) {
    if let Some(record) = run.record {
        if record.is_terminal() && !run.may_be_traceless() {
            found.push(run.violation(Kind::Missing, format!("its record is {}, and it has no event", record.state)));
        } else if !record.is_terminal() && !is_unanswered(run, record) {
            found.push(run.violation(Kind::NoEnd, format!("its record is {}, and it has no event", record.state)));
        }
        return;
    }
    let Some(accepted) = run.accepted else { return };
    let done = run.calls.iter().any(|call| call.end.is_some());
    if !run.may_be_traceless() || (rules.calls_complete && !done) {
        found.push(run.violation(Kind::Lost, format!("accepted at {}, never heard of again", accepted.at)));
    }
}

/// A submission that was never answered may leave a record that expires by itself if the client does not ask again.
fn is_unanswered(run: &Run<'_>, record: &Record) -> bool {
    run.accepted.is_none() && record.attempt == 0 && matches!(record.state.as_str(), "enqueued" | "scheduled")
}

fn state_after(end: EventName, discarded: bool) -> &'static str {
    match end {
        EventName::Completed => "completed",
        EventName::Dlq if discarded => "discarded",
        EventName::Dlq => "dead",
        EventName::Cancelled => "cancelled",
        EventName::Expired => "expired",
        EventName::Duplicate => "duplicate",
        EventName::Discarded => "discarded",
        _ => "no end",
    }
}

/// Compares the failed attempts of all rounds, by the record and by the events. The record may list a cancelled running
/// attempt with that error, while the log has it as the run's end.
fn compare_attempts(record: &Record, rounds: &BTreeMap<u32, Round>, disagrees: &mut impl FnMut(String)) {
    let recorded: BTreeMap<(u32, u32), &str> = record
        .attempts
        .iter()
        .filter_map(|tried| Some(((tried.round.max(1), tried.attempt), tried.error.as_ref()?.kind.as_str())))
        .filter(|(_, kind)| *kind != "cancelled")
        .collect();
    let mut published = BTreeMap::new();
    for round in rounds.values() {
        published.extend(round.failures.iter().map(|(attempt, kind)| ((round.number, *attempt), kind.as_str())));
    }
    for (&(round, attempt), kind) in &published {
        match recorded.get(&(round, attempt)) {
            None => disagrees(format!("attempt {attempt} of round {round} failed, which the record does not say")),
            Some(other) if other != kind => {
                disagrees(format!("attempt {attempt} of round {round}: record {other}, events {kind}"));
            }
            Some(_) => {}
        }
    }
    for (round, attempt) in recorded.keys().filter(|key| !published.contains_key(key)) {
        disagrees(format!("attempt {attempt} of round {round} failed by the record, not by the events"));
    }
}
