//! Which node could hold a run, and until when: leases, as far as they can be judged from outside.
//!
//! A holder sends signs of life (renewals, records), at least every third of its lease; the checker allows a busy one
//! half a lease. It sends none while it is frozen or cut off, or while the servers are silent. So the last sign before
//! a silence is at most half a lease old, and another node may take its jobs from half a lease after the silence began,
//! if the silence lasts that long. A shorter silence costs no holder its lease.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::by_run::Run;
use super::call::ON_ITS_WAY;
use super::facts::{Call, Rules, Silence};
use super::span;
use super::violation::{Kind, Violation};
use crate::wire::{Event, EventName};

/// An attempt that is reported to have lost its lease.
struct Lost<'r> {
    round: u32,
    attempt: u32,
    started: Timestamp,
    lost: Timestamp,
    /// The node in the record; `None` if the record names none, so that it may have been any node.
    holder: Option<&'r str>,
}

/// Judges every attempt that is reported to have lost its lease.
pub(super) fn judge(run: &Run<'_>, rules: &Rules, found: &mut Vec<Violation>) {
    let Some(lease) = rules.lease else { return };
    for failed in run.events.iter().filter(|event| is_lost_lease(event)) {
        let Some(lost) = Lost::of(failed, run) else { continue };
        if lost.holder_died(rules) || lost.holder_was_silent(lease, rules) {
            continue;
        }
        let after = lost.lost.duration_since(lost.started);
        let name = format!("attempt {} of round {}", lost.attempt, lost.round);
        let holder = lost.holder.unwrap_or("a node");
        if after + span(rules.clock_skew) < span(lease) {
            let detail = format!("{name} began on {holder}, which lived, and was said to be lost {after:#} later");
            found.push(run.violation(Kind::LeaseLostTooSoon, detail));
        } else if run.calls.iter().any(|call| lost.went_on(call)) {
            let detail = format!("{name} was said to be lost while {holder} lived and its handler worked on");
            found.push(run.violation(Kind::LeaseLostTooSoon, detail));
        }
    }
}

fn is_lost_lease(event: &Event) -> bool {
    event.event == EventName::Failed && event.error.as_ref().is_some_and(|error| error.kind == "lease_expired")
}

impl<'r> Lost<'r> {
    fn of(failed: &Event, run: &Run<'r>) -> Option<Lost<'r>> {
        let (round, attempt) = (failed.round.max(1), failed.attempt);
        let tried = run.record.and_then(|record| {
            record.attempts.iter().find(|tried| (tried.round.max(1), tried.attempt) == (round, attempt))
        });
        let is_start = |event: &&&Event| {
            event.event == EventName::Started && (event.round.max(1), event.attempt) == (round, attempt)
        };
        // If it started again after a return, the last start counts.
        let published = run.events.iter().filter(is_start).map(|event| event.at).filter(|at| *at <= failed.at).max();
        let started = tried.and_then(|tried| tried.started_at).max(published)?;
        // Another node publishes the events of a dead holder, under its own name.
        let holder = tried.and_then(|tried| tried.node.as_deref());
        Some(Lost { round, attempt, started, lost: failed.at, holder })
    }

    fn is_holder(&self, node: &str) -> bool {
        self.holder.is_none_or(|holder| holder == node)
    }

    fn holder_died(&self, rules: &Rules) -> bool {
        let since = self.started - span(rules.clock_skew);
        let of_it = |kill: &&super::facts::Interruption| kill.node.as_deref().is_some_and(|node| self.is_holder(node));
        rules.interruptions.iter().filter(of_it).any(|kill| kill.at >= since && kill.at <= self.lost)
    }

    /// Whether its holder was silent for so long that the lease may have run out.
    fn holder_was_silent(&self, lease: Duration, rules: &Rules) -> bool {
        let silences = joined(rules, |node| self.is_holder(node), lease);
        let long = |from: Timestamp, until: Timestamp| until.min(self.lost).duration_since(from) >= span(lease / 2);
        silences.iter().any(|&(from, until)| until > self.started && long(from, until))
    }

    /// Whether this call of it was still at work when the attempt was reported as lost.
    fn went_on(&self, call: &Call) -> bool {
        let of_it = (call.round, call.attempt) == (self.round, self.attempt);
        of_it && call.start <= self.lost && call.end.is_some_and(|end| end > self.lost)
    }
}

/// From when on another node may take the job of a call that began at `start`, because its lease could not be renewed;
/// `None` if the lease could always be renewed.
pub(super) fn over_after(start: Timestamp, ran_on: impl Fn(&str) -> bool, rules: &Rules) -> Option<Timestamp> {
    let lease = rules.lease?;
    let half = span(lease / 2);
    let silences = joined(rules, ran_on, lease);
    let long = silences.iter().filter(|(from, to)| *to > start && to.duration_since(*from) >= half);
    long.map(|(from, _)| *from.max(&start) + half).min()
}

/// Silences of these nodes and of the servers, in order. Two that are close together are joined: there need not have
/// been a sign between them.
fn joined(rules: &Rules, concerns: impl Fn(&str) -> bool, lease: Duration) -> Vec<(Timestamp, Timestamp)> {
    join(rules.silences.iter().filter(|silence| silence.node.as_deref().is_none_or(&concerns)), lease)
}

fn join<'s>(silences: impl Iterator<Item = &'s Silence>, lease: Duration) -> Vec<(Timestamp, Timestamp)> {
    let mut times: Vec<(Timestamp, Timestamp)> = silences.map(|silence| (silence.from, silence.until)).collect();
    times.sort_unstable();
    let mut joined: Vec<(Timestamp, Timestamp)> = Vec::new();
    for (from, until) in times {
        match joined.last_mut() {
            Some(last) if from.duration_since(last.1) < span(lease / 2) => last.1 = last.1.max(until),
            _ => joined.push((from, until)),
        }
    }
    joined
}

/// The node that had just come back from a freeze or cut of it alone at that moment, and when that began and ended: it
/// may have held its jobs from before. `None` as the node is any. "Just" is a lease, and at least for as long as what
/// it called may wait for its connection, which it has lost by then.
pub(super) fn back_from<'r>(
    node: Option<&str>,
    at: Timestamp,
    rules: &'r Rules,
) -> Option<(&'r str, Timestamp, Timestamp)> {
    let lease = rules.lease.unwrap_or(Duration::from_secs(1));
    // The test reads the clock around the signal that thaws the node, not exactly at it.
    let latest = at + span(rules.call_delay);
    let names: BTreeSet<&str> = rules.silences.iter().filter_map(|silence| silence.node.as_deref()).collect();
    names.into_iter().filter(|name| node.is_none_or(|node| node == *name)).find_map(|name| {
        let own = |silence: &&Silence| silence.node.as_deref() == Some(name) && silence.until <= latest;
        let last = join(rules.silences.iter().filter(own), lease).pop();
        let (from, until) = last.filter(|(_, until)| at.duration_since(*until) <= span(lease.max(ON_ITS_WAY)))?;
        Some((name, from, until))
    })
}

/// Whether the servers were silent at that moment or just before: messages sent before that arrive late.
pub(super) fn servers_were_silent(at: Timestamp, rules: &Rules) -> bool {
    let delay = span(rules.call_delay);
    rules.silences.iter().any(|silence| silence.node.is_none() && silence.from <= at && at <= silence.until + delay)
}
