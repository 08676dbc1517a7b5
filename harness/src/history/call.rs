//! Checks three things: whether the handlers' calls agree with the published events, whether two calls ever worked on
//! one run at the same time, and whether a call was made that should not have been.
//!
//! A call holds its run until the first of: its own end, the moment at which the log says that its attempt was over or
//! returned, the death of its node or of the server, and the end of its lease if the lease could not be renewed. After
//! that moment another call may start, however long the first one goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::by_run::Run;
use super::facts::{Call, Rules};
use super::round::Round;
use super::violation::{Kind, Violation};
use super::{lease, span};
use crate::wire::{Event, EventName};

/// A node that lives for so long after it called a handler has published that.
const PUBLISHES_WITHIN: Duration = Duration::from_secs(1);

/// Longer than any request is on its way to a handler, on a loaded machine just after its connection was lost.
pub(super) const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// Judges the calls of `run` by its events.
pub(super) fn judge(run: &Run<'_>, rounds: &BTreeMap<u32, Round>, rules: &Rules, found: &mut Vec<Violation>) {
    for call in &run.calls {
        let none_is_published = rounds.is_empty() && run.may_be_traceless();
        // A node that died at once could publish nothing; and if the run is then cancelled, no next holder publishes it
        // either.
        let died_with_it = was_lost(call, Timestamp::MAX, rules) || may_have_died_at_once(call, rules);
        if !none_is_published && !died_with_it && !run.starters.iter().any(|event| is_of_attempt(event, call)) {
            let detail = format!("a handler was called for attempt {} of round {}", call.attempt, call.round);
            found.push(run.violation(Kind::CallUnpublished, detail));
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
    let stale: Vec<&Call> = run.calls.iter().copied().filter(|call| judge_lateness(call, run, rules, found)).collect();
    judge_overlaps(run, rules, &stale, found);
}

/// Whether this call should never have begun: the run had ended, or another node had taken it over while the call's
/// node was frozen.
fn judge_lateness(call: &Call, run: &Run<'_>, rules: &Rules, found: &mut Vec<Violation>) -> bool {
    let frozen = lease::back_from(call.node.as_deref(), call.start, rules);
    let name = format!("attempt {} of round {}", call.attempt, call.round);
    let mut stale = |(node, until): (&str, Timestamp), after: SignedDuration, what: &str| {
        let detail = format!("{name} was called by {node} after its freeze, {after:#} after {what}");
        let thawed = Some((node.to_owned(), until));
        found.push(Violation { thawed, ..run.violation(Kind::StaleStart, detail) });
    };
    if let Some((node, from, until)) = frozen
        && let Some(other) = taken_over(call, run, rules).filter(|other| other.start > from && other.start <= until)
    {
        let taker = other.node.as_deref().unwrap_or("");
        stale((node, until), call.start.duration_since(other.start), &format!("{taker} had called its handler"));
        return true;
    }
    let Some(ended) = ended_at(call.round, run) else { return false };
    let late = call.start.duration_since(ended);
    if late <= span(rules.clock_skew + rules.call_delay) || lease::servers_were_silent(call.start, rules) {
        return false;
    }
    match frozen.filter(|(_, from, _)| *from < ended) {
        Some((node, _, until)) => stale((node, until), late, "the run's end"),
        None if late <= span(ON_ITS_WAY) && was_sent_before_the_end(call, run) => return false,
        None => {
            found.push(run.violation(Kind::CallAfterEnd, format!("{name} was called {late:#} after the run's end")));
        }
    }
    true
}

/// Whether the log had the start of the call's attempt before it had the end, and no other call is that start's: then
/// the request was on its way when the run was cancelled, or the attempt's time was over.
fn was_sent_before_the_end(call: &Call, run: &Run<'_>) -> bool {
    let logged = |event: &Event| run.logged.get(event.id.as_str()).copied();
    let start = run.events.iter().find(|event| event.event == EventName::Started && is_of_attempt(event, call));
    let end = run.events.iter().find(|event| event.round.max(1) == call.round && event.event.is_end());
    let of_it = run.calls.iter().filter(|other| (other.round, other.attempt) == (call.round, call.attempt));
    let before = start.zip(end).is_some_and(|(start, end)| logged(start) < logged(end));
    before && of_it.min_by_key(|other| other.start).is_some_and(|first| *first == call)
}

/// An earlier call, by another node, of the same attempt or a later one, which still held the run: the attempt had not
/// been returned, its node and the servers lived, and its lease was not over.
fn taken_over<'r>(call: &Call, run: &Run<'r>, rules: &Rules) -> Option<&'r Call> {
    let place = |call: &Call| (call.round, call.attempt);
    run.calls.iter().copied().find(|other| {
        let elsewhere = other.node.is_some() && other.node != call.node;
        let before = other.start < call.start && place(other) >= place(call);
        elsewhere && before && !was_handed_back(other, call.start, run, rules) && !was_lost(other, call.start, rules)
    })
}

/// Whether some node died so soon after a call, whose node is not known, that it may have been that one: a
/// node that dies within moments of its start leaves too few starts in the log to know it by.
fn may_have_died_at_once(call: &Call, rules: &Rules) -> bool {
    let since = call.start - span(rules.clock_skew);
    let until = call.start + span(rules.clock_skew + PUBLISHES_WITHIN);
    call.node.is_none() && rules.interruptions.iter().any(|kill| (since..=until).contains(&kill.at))
}

/// Whether another node may have taken the job of `call` by `until`.
fn was_lost(call: &Call, until: Timestamp, rules: &Rules) -> bool {
    let its_node = |node: &str| call.node.as_deref() == Some(node);
    let since = call.start - span(rules.clock_skew);
    let died = rules.interruptions.iter().filter(|kill| kill.node.as_deref().is_none_or(its_node));
    let lease_over = lease::over_after(call.start, its_node, rules);
    died.map(|kill| kill.at).filter(|at| *at >= since).chain(lease_over).any(|at| at <= until)
}

/// Whether the attempt of `call` was returned after the call began, and before `until`. What returned an earlier start
/// of the same attempt does not count. The event's clock may be a little behind the call's.
fn was_handed_back(call: &Call, until: Timestamp, run: &Run<'_>, rules: &Rules) -> bool {
    let since = call.start - span(rules.clock_skew);
    let back = |event: &&&Event| matches!(event.event, EventName::Released | EventName::Deferred);
    run.events.iter().filter(back).any(|event| is_of_attempt(event, call) && event.at >= since && event.at <= until)
}

/// When a round ended, by the first copy of its end event or by the record, whichever is earlier.
pub(super) fn ended_at(round: u32, run: &Run<'_>) -> Option<Timestamp> {
    let ends = run.events.iter().filter(|event| event.round.max(1) == round && event.event.is_end());
    let record = run.record.filter(|record| record.is_terminal() && record.round.max(1) == round);
    ends.map(|event| event.at).chain(record.and_then(|record| record.ended_at)).min()
}

fn judge_overlaps(run: &Run<'_>, rules: &Rules, stale: &[&Call], found: &mut Vec<Violation>) {
    let mut calls = run.calls.clone();
    calls.retain(|call| !was_held_back(call, run, rules));
    calls.sort_by_key(|call| call.start);
    // Every earlier call counts, not just the one before: a long call may span several short ones.
    for (position, later) in calls.iter().enumerate() {
        // A call that should not have begun at all has been reported as that.
        if stale.contains(later) {
            continue;
        }
        for earlier in &calls[..position] {
            let over = held_until(earlier, run, rules).duration_since(later.start);
            if over > span(rules.clock_skew) {
                let name = |call: &Call| format!("attempt {} of round {}", call.attempt, call.round);
                let detail = format!("{} began {over:#} before {} was over", name(later), name(earlier));
                found.push(run.violation(Kind::Overlap, detail));
            }
        }
    }
}

/// Whether the call's attempt was over before the call began, and silent servers had delayed its request until then.
pub(super) fn was_held_back(call: &Call, run: &Run<'_>, rules: &Rules) -> bool {
    closings(call, run).any(|over| over < call.start) && lease::servers_were_silent(call.start, rules)
}

/// When the call's attempt was over, by each event that says so.
fn closings(call: &Call, run: &Run<'_>) -> impl Iterator<Item = Timestamp> {
    closings_by(call, run, |event| closes(event.event))
}

/// When the call's attempt was over, by each event of it that fits.
pub(super) fn closings_by(
    call: &Call,
    run: &Run<'_>,
    fits: impl Fn(&Event) -> bool,
) -> impl Iterator<Item = Timestamp> {
    run.events.iter().filter(move |event| is_of_attempt(event, call) && fits(event)).map(|event| event.at)
}

fn is_of_attempt(event: &Event, call: &Call) -> bool {
    event.round.max(1) == call.round && event.attempt == call.attempt
}

/// Until when no other call may work on the run.
fn held_until(call: &Call, run: &Run<'_>, rules: &Rules) -> Timestamp {
    // Without an end, the call died with its process at an unknown moment: no overlap can be proved.
    let Some(end) = call.end else { return call.start };
    let concerned = rules.interruptions.iter().filter(|interruption| interruption.node.is_none());
    let interrupted = concerned.map(|interruption| interruption.at).filter(|at| *at >= call.start);
    let lost = lost_at(call, run, rules);
    closings(call, run).filter(|at| *at >= call.start).chain(interrupted).chain(lost).fold(end, Timestamp::min)
}

/// From when on others may have what the call's node held for it: that node died, or its lease may be over.
pub(super) fn lost_at(call: &Call, run: &Run<'_>, rules: &Rules) -> Option<Timestamp> {
    let ran_on = |node: &str| match &call.node {
        Some(own) => own == node,
        // A remote handler does not know the node that asked it: any node that published the start may be the one.
        None => run.starters.iter().any(|event| is_of_attempt(event, call) && event.node.as_deref() == Some(node)),
    };
    let deaths = rules.interruptions.iter().filter(|interruption| interruption.node.as_deref().is_some_and(ran_on));
    let died = deaths.map(|interruption| interruption.at).filter(|at| *at >= call.start);
    died.chain(lease::over_after(call.start, ran_on, rules)).min()
}

/// Whether this event ends an attempt or returns it.
fn closes(event: EventName) -> bool {
    matches!(event, EventName::Failed | EventName::Released | EventName::Deferred) || event.is_end()
}
