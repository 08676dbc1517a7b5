//! Checks the order of keys whose jobs run one after the other: no run begins before those ahead of it have ended.
//!
//! By what handlers saw: a run begins with its first call, and is over once its last call has begun and its end is
//! published. Requests that silent servers held back until their attempt was over cannot be prevented and do not count.

use std::collections::HashMap;

use jiff::Timestamp;

use super::by_run::Run;
use super::call::{ended_at, was_held_back};
use super::facts::History;
use super::span;
use super::violation::{Kind, Violation};

/// Judges every order by the calls of its runs.
pub(super) fn judge(history: &History, runs: &[Run<'_>], found: &mut Vec<Violation>) {
    let by_name: HashMap<(&str, &str), &Run<'_>> =
        runs.iter().map(|run| ((run.tenant.as_str(), run.id.as_str()), run)).collect();
    let skew = span(history.rules.clock_skew);
    for order in &history.orders {
        let in_order = order.runs.iter();
        let in_order = in_order.filter_map(|(tenant, run)| by_name.get(&(tenant.as_str(), run.as_str())).copied());
        let mut ahead: Option<(Timestamp, &str)> = None;
        for run in in_order {
            let calls = || run.calls.iter().filter(|call| !was_held_back(call, run, &history.rules));
            let first = calls().map(|call| call.start).min();
            if let (Some(first), Some((over, other))) = (first, ahead)
                && first + skew < over
            {
                let early = over.duration_since(first);
                let detail =
                    format!("was called {early:#} before {other} was over, which is ahead of it in {}", order.name);
                found.push(run.violation(Kind::Overtakes, detail));
            }
            let over = calls().map(|call| call.start).chain(ended_at(1, run)).max();
            ahead = ahead.into_iter().chain(over.map(|over| (over, run.id.as_str()))).max();
        }
    }
}
