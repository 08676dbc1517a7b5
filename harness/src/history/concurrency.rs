//! Checks concurrency limits by the handlers' own calls: never more at work at once than the limit says.
//!
//! A call counts from its start until its end, or until its attempt was ended by its time limit: a handler that works
//! on after that breaks the contract itself. It counts until its node has died or may have lost its lease; of a limit
//! that outlasts its nodes for as long as ever, since no death of a node stops a handler elsewhere. A call without an
//! end died at an unknown moment, and a request that silent servers held back until its attempt was over cannot be
//! prevented: both do not count.

use std::collections::HashMap;

use jiff::Timestamp;

use super::by_run::Run;
use super::call::{closings_by, lost_at, was_held_back};
use super::facts::{Call, History};
use super::violation::{Kind, Violation};
use crate::wire::EventName;

/// Judges every limit by the calls of its runs.
pub(super) fn judge(history: &History, runs: &[Run<'_>], found: &mut Vec<Violation>) {
    let by_name: HashMap<(&str, &str), &Run<'_>> =
        runs.iter().map(|run| ((run.tenant.as_str(), run.id.as_str()), run)).collect();
    for limit in &history.limits {
        let of_limit =
            limit.runs.iter().filter_map(|(tenant, run)| by_name.get(&(tenant.as_str(), run.as_str())).copied());
        let mut spans: Vec<(Timestamp, Timestamp, &Run<'_>, &Call)> = of_limit
            .flat_map(|run| run.calls.iter().map(move |call| (run, *call)))
            .filter(|(run, call)| !was_held_back(call, run, &history.rules))
            .filter_map(|(run, call)| {
                let lost = lost_at(call, run, &history.rules).filter(|_| !limit.outlasts_nodes);
                let until = at_work_until(call, run)?;
                Some((call.start, lost.map_or(until, |lost| lost.min(until)), run, call))
            })
            .collect();
        spans.sort_by_key(|(start, ..)| *start);
        for (number, (start, _, run, call)) in spans.iter().enumerate() {
            let others = spans[..number].iter().filter(|(_, until, ..)| until > start);
            let others: Vec<&str> = others.map(|(.., other, _)| other.id.as_str()).collect();
            if others.len() >= limit.at_most {
                let Call { round, attempt, .. } = call;
                let detail = format!(
                    "attempt {attempt} of round {round} was called at {start} while {} of {} were at work, of {} at most: {}",
                    others.len(),
                    limit.name,
                    limit.at_most,
                    others.join(", ")
                );
                found.push(run.violation(Kind::AboveConcurrency, detail));
            }
        }
    }
}

fn at_work_until(call: &Call, run: &Run<'_>) -> Option<Timestamp> {
    let timed_out = closings_by(call, run, |event| {
        event.event == EventName::Failed && event.error.as_ref().is_some_and(|error| error.kind == "timeout")
    });
    Some(timed_out.filter(|at| *at >= call.start).fold(call.end?, Timestamp::min))
}
