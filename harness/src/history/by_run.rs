//! Sorts a history by run, and keeps only the first copy of an event that was published again.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::facts::{Accepted, Call, DeadLetter, History, Kept};
use super::violation::{Kind, Violation};
use crate::stored::Logged;
use crate::wire::{Event, EventName, Record};

/// All that is known of one run.
pub(super) struct Run<'h> {
    pub tenant: String,
    pub id: String,
    pub accepted: Option<&'h Accepted>,
    /// The first copy of each event, in the order of the log.
    pub events: Vec<&'h Event>,
    /// By the id of each: the sequence of its message in the log.
    pub logged: HashMap<&'h str, u64>,
    /// Every copy of each `started`: any node that published it, not only the first.
    pub starters: Vec<&'h Event>,
    pub record: Option<&'h Record>,
    pub dead_letters: Vec<&'h DeadLetter>,
    pub calls: Vec<&'h Call>,
}

impl Run<'_> {
    pub(super) fn violation(&self, kind: Kind, detail: impl Into<String>) -> Violation {
        Violation { tenant: self.tenant.clone(), run_id: self.id.clone(), kind, detail: detail.into(), thawed: None }
    }

    /// Whether the run may lack all traces because its settings say so.
    pub(super) fn may_be_traceless(&self) -> bool {
        self.accepted.is_some_and(|accepted| accepted.kept == Kept::Failures)
    }
}

/// Every run that appears anywhere.
pub(super) fn runs<'h>(history: &'h History, found: &mut Vec<Violation>) -> Vec<Run<'h>> {
    let mut runs = Runs(BTreeMap::new());
    for accepted in &history.accepted {
        runs.of(&accepted.tenant, &accepted.run_id).accepted = Some(accepted);
    }
    for record in &history.records {
        runs.of(&record.tenant, &record.run_id).record = Some(record);
    }
    for dead_letter in &history.dead_letters {
        runs.of(&dead_letter.tenant, &dead_letter.run_id).dead_letters.push(dead_letter);
    }
    for call in &history.calls {
        runs.of(&call.tenant, &call.run_id).calls.push(call);
    }
    let mut first_copies: HashMap<&str, &Event> = HashMap::new();
    for Logged { event, sequence } in &history.events {
        let run = runs.of(&event.tenant, &event.run_id);
        if event.event == EventName::Started {
            run.starters.push(event);
        }
        match first_copies.entry(&event.id) {
            Entry::Vacant(place) => {
                place.insert(event);
                run.events.push(event);
                run.logged.insert(&event.id, *sequence);
            }
            Entry::Occupied(first) => {
                if let Some(difference) = difference(first.get(), event) {
                    found.push(run.violation(Kind::Rewritten, format!("event {}: {difference}", event.id)));
                }
            }
        }
    }
    runs.0.into_values().collect()
}

struct Runs<'h>(BTreeMap<(&'h str, &'h str), Run<'h>>);

impl<'h> Runs<'h> {
    fn of(&mut self, tenant: &'h str, id: &'h str) -> &mut Run<'h> {
        self.0.entry((tenant, id)).or_insert_with(|| Run {
            tenant: tenant.to_owned(),
            id: id.to_owned(),
            accepted: None,
            events: Vec::new(),
            logged: HashMap::new(),
            starters: Vec::new(),
            record: None,
            dead_letters: Vec::new(),
            calls: Vec::new(),
        })
    }
}

/// The difference between two copies of one event: whichever node publishes it, it says the same.
fn difference(first: &Event, again: &Event) -> Option<String> {
    let facts = |event: &Event| {
        let error = event.error.as_ref().map(|error| format!("{}: {}", error.kind, error.message)).unwrap_or_default();
        [
            ("event", event.event.to_string()),
            ("run_id", event.run_id.clone()),
            ("tenant", event.tenant.clone()),
            ("queue", event.queue.clone()),
            ("priority", event.priority.to_string()),
            ("type", event.job_type.clone()),
            ("round", event.round.to_string()),
            ("attempt", event.attempt.to_string()),
            ("at", event.at.to_string()),
            ("node", event.node.clone().unwrap_or_default()),
            ("max_attempts", event.max_attempts.to_string()),
            ("run_at", format!("{:?}", event.run_at)),
            ("retry_at", format!("{:?}", event.retry_at)),
            ("error", error),
            ("reason", event.reason.clone().unwrap_or_default()),
            ("result", format!("{:?}", event.result)),
            ("duplicate_of", event.duplicate_of.clone().unwrap_or_default()),
        ]
    };
    let pairs = facts(first).into_iter().zip(facts(again));
    let mut differing = pairs.filter(|(before, after)| before.1 != after.1);
    differing.next().map(|((name, before), (_, after))| format!("{name} was {before}, published again as {after}"))
}
