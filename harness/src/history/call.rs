//! Whether what handlers did is what was told, and whether two of them ever worked on one run at the same time.
//!
//! A call holds its run until the first of: its own end, the moment at which the log says that its attempt was over or
//! handed back, and the moment at which its node (or the server) was killed or frozen. After that moment another may
//! start, however long the first goes on.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::gather::Run;
use super::round::Round;
use super::{Call, Kind, Rules, Violation};
use crate::wire::{Event, EventName};

/// Judges the calls of `run` by its events.
pub(super) fn judge(run: &Run<'_>, rounds: &BTreeMap<u32, Round>, rules: &Rules, found: &mut Vec<Violation>) {
    for call in &run.calls {
        let told = |event: &&Event| event.round.max(1) == call.round && event.attempt == call.attempt;
        let none_is_told = rounds.is_empty() && run.may_be_traceless();
        if !none_is_told && !run.starters.iter().any(told) {
            let detail = format!("a handler was called for attempt {} of round {}", call.attempt, call.round);
            found.push(run.violation(Kind::CallUntold, detail));
        }
    }
    if rules.calls_complete {
        for round in rounds.values().filter(|round| round.end == Some(EventName::Completed)) {
            let is_it = |call: &&&Call| (call.round, call.attempt) == (round.number, round.started);
            if !run.calls.iter().filter(is_it).any(|call| call.end.is_some()) {
                let detail = format!("attempt {} of round {} completed without a call", round.started, round.number);
                found.push(run.violation(Kind::NotCalled, detail));
            }
        }
    }
    judge_overlaps(run, rules, found);
}

fn judge_overlaps(run: &Run<'_>, rules: &Rules, found: &mut Vec<Violation>) {
    let mut calls = run.calls.clone();
    calls.sort_by_key(|call| call.start);
    // Any earlier call, not the one before only: a long one may span several short ones.
    for (position, later) in calls.iter().enumerate() {
        for earlier in &calls[..position] {
            let over = held_until(earlier, run, rules).duration_since(later.start);
            if over > jiff::SignedDuration::try_from(rules.clock_skew).unwrap_or(jiff::SignedDuration::MAX) {
                let name = |call: &Call| format!("attempt {} of round {}", call.attempt, call.round);
                let detail = format!("{} began {over:#} before {} was over", name(later), name(earlier));
                found.push(run.violation(Kind::Overlap, detail));
            }
        }
    }
}

/// Until when the call had the run to itself.
fn held_until(call: &Call, run: &Run<'_>, rules: &Rules) -> Timestamp {
    // Without an end it died with its process, at an unknown moment: nothing can be held against it.
    let Some(end) = call.end else { return call.start };
    let of_attempt = |event: &&Event| event.round.max(1) == call.round && event.attempt == call.attempt;
    let over = run.told.iter().copied().filter(of_attempt).filter(|event| closes(event.event)).map(|event| event.at);

    let ran_on = |node: &str| match &call.node {
        Some(own) => own == node,
        // A remote handler does not know who asked: any node that told of the start may have.
        None => run.starters.iter().filter(|event| of_attempt(event)).any(|event| event.node.as_deref() == Some(node)),
    };
    let concerned = rules.interruptions.iter().filter(|interruption| interruption.node.as_deref().is_none_or(ran_on));
    let interrupted = concerned.map(|interruption| interruption.at);

    over.chain(interrupted).filter(|at| *at >= call.start).fold(end, Timestamp::min)
}

/// Whether an attempt is over, or handed back, with this event.
fn closes(event: EventName) -> bool {
    matches!(event, EventName::Failed | EventName::Released | EventName::Deferred) || event.is_end()
}
