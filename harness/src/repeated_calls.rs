//! How often a handler did its work twice, by its own report, and which node asked for it. Pure.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use crate::history::Call;
use crate::remote::Asked;
use crate::stored::Logged;
use crate::wire::{Event, EventName};

/// The calls for work that an earlier call had begun, although no handler failed and no node returned the job: a second
/// call of the same attempt, or a call of the next attempt because the lease was lost.
pub fn repeated_calls<'c>(calls: &'c [Call], events: &[Logged]) -> Vec<&'c Call> {
    let mut published: HashMap<(&str, &str), Vec<&Event>> = HashMap::new();
    for Logged { event, .. } in events {
        published.entry((&event.tenant, &event.run_id)).or_default().push(event);
    }
    let mut runs: BTreeMap<(&str, &str, u32), Vec<&Call>> = BTreeMap::new();
    for call in calls {
        runs.entry((&call.tenant, &call.run_id, call.round)).or_default().push(call);
    }
    let mut again = Vec::new();
    for (&(tenant, run, round), of_run) in &mut runs {
        of_run.sort_by_key(|call| call.start);
        let published = published.get(&(tenant, run)).map(Vec::as_slice).unwrap_or_default();
        let published: Vec<&Event> = published.iter().copied().filter(|event| event.round.max(1) == round).collect();
        let repeats =
            |(at, call): &(usize, &&'c Call)| of_run[..*at].iter().any(|earlier| repeats(call, earlier, &published));
        again.extend(of_run.iter().enumerate().filter(repeats).map(|(_, call)| *call));
    }
    again
}

fn repeats(call: &Call, earlier: &Call, published: &[&Event]) -> bool {
    let mut of_earlier = published.iter().filter(|event| event.attempt == earlier.attempt);
    if call.attempt == earlier.attempt {
        let handed_back = |event: &&Event| {
            let back = matches!(event.event, EventName::Released | EventName::Deferred);
            back && event.at >= earlier.start && event.at <= call.start
        };
        return !of_earlier.any(handed_back);
    }
    let lost = |event: &&Event| event.error.as_ref().is_some_and(|error| error.kind == "lease_expired");
    call.attempt == earlier.attempt + 1 && of_earlier.any(lost)
}

/// The calls, each with the node that asked for it: an inbox belongs to the node whose starts match the inbox's
/// requests.
pub fn with_nodes(asked: &[Asked], events: &[Logged]) -> Vec<Call> {
    let mut starters: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
    for Logged { event, .. } in events.iter().filter(|logged| logged.event.event == EventName::Started) {
        starters.entry((&event.tenant, &event.run_id)).or_default().extend(event.node.as_deref());
    }
    let mut votes: HashMap<&str, BTreeMap<&str, usize>> = HashMap::new();
    for Asked { call, asker, .. } in asked {
        // Only a run with a single start says for certain which node asked.
        if let Some([node]) = starters.get(&(call.tenant.as_str(), call.run_id.as_str())).map(Vec::as_slice) {
            *votes.entry(asker).or_default().entry(node).or_default() += 1;
        }
    }
    let node = |asker: &str| {
        let most = votes.get(asker)?.iter().max_by_key(|(_, count)| **count)?;
        Some((*most.0).to_owned())
    };
    asked.iter().map(|Asked { call, asker, .. }| Call { node: node(asker), ..call.clone() }).collect()
}

/// How many of these moments fall to each fault; a moment belongs to the last fault before it.
pub fn by_fault(moments: &[Timestamp], faults: &[(Timestamp, &str)]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for moment in moments {
        let last = faults.iter().filter(|(at, _)| at <= moment).max_by_key(|(at, _)| *at);
        let name = last.map_or("before any fault", |(_, name)| name);
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn call(run: &str, attempt: u32, start: i64) -> Call {
        let (tenant, run_id) = ("t".to_owned(), run.to_owned());
        Call { tenant, run_id, round: 1, attempt, start: at(start), end: None, node: None }
    }

    fn event(run: &str, name: &str, attempt: u32, second: i64, error: Option<&str>) -> Logged {
        let mut event = json!({
            "id": format!("{run}{name}{second}"), "event": name, "run_id": run, "tenant": "t", "queue": "main",
            "priority": 5, "type": "work", "attempt": attempt, "at": at(second).to_string(), "node": "n1",
        });
        if let Some(kind) = error {
            event["error"] = json!({"kind": kind});
        }
        Logged { sequence: 1, event: serde_json::from_value(event).unwrap() }
    }

    #[test]
    fn the_same_attempt_and_the_one_after_a_lost_lease_are_work_done_again() {
        let calls = [
            (call("same", 1, 1), false),
            (call("same", 1, 2), true),
            (call("back", 1, 1), false),
            (call("back", 1, 3), false),
            (call("lost", 1, 1), false),
            (call("lost", 2, 9), true),
            (call("failed", 1, 1), false),
            (call("failed", 2, 9), false),
        ];
        let events = [
            event("back", "released", 1, 2, None),
            event("lost", "failed", 1, 8, Some("lease_expired")),
            event("failed", "failed", 1, 8, Some("retryable")),
        ];
        let expected: Vec<&Call> = calls.iter().filter(|(_, again)| *again).map(|(call, _)| call).collect();
        let all: Vec<Call> = calls.iter().map(|(call, _)| call.clone()).collect();
        let mut found = repeated_calls(&all, &events);
        found.sort_by_key(|call| call.start);
        assert_eq!(found, expected);
        let moments: Vec<Timestamp> = found.iter().map(|call| call.start).collect();
        let by = by_fault(&moments, &[(at(5), "freeze"), (at(7), "kill")]);
        assert_eq!(by, [("before any fault".to_owned(), 1), ("kill".to_owned(), 1)].into());
    }

    #[test]
    fn an_inbox_is_the_nodes_whose_starts_its_requests_go_with() {
        let asked = |run: &str, asker: &str| Asked { call: call(run, 1, 1), asker: asker.to_owned(), deadline: None };
        let mut events = vec![event("a", "started", 1, 1, None), event("b", "started", 1, 1, None)];
        events[1].event.node = Some("n2".to_owned());
        events.extend(["n1", "n2"].map(|node| {
            let mut event = event("both", "started", 1, 1, None);
            event.event.node = Some(node.to_owned());
            event
        }));
        let calls = with_nodes(&[asked("a", "x"), asked("b", "y"), asked("both", "y"), asked("c", "z")], &events);
        let nodes: Vec<Option<&str>> = calls.iter().map(|call| call.node.as_deref()).collect();
        assert_eq!(nodes, [Some("n1"), Some("n2"), Some("n2"), None]);
    }
}
