//! The recurring schedules of a chaos run. They are made before the faults and paused after them: in between each of
//! their times must become one run, and where overlaps are left out, a run may begin only after the end of the one
//! before.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::jobs::{SIDE, Sort};
use crate::history::Recurring;
use crate::world::{TENANT, World};

/// How often they are due.
const EVERY: Duration = Duration::from_secs(1);
/// Their ids, and whether a time is left out while the run before it has not ended.
const SCHEDULES: [(&str, bool); 2] = [("each", false), (ALONE, true)];
/// The one that leaves overlaps out.
pub(super) const ALONE: &str = "alone";
/// How long the faults may last: no time before that counts as missed.
const MISFIRE_AFTER: Duration = Duration::from_secs(3_600);

/// A schedule that was made, and its first time.
#[derive(Debug)]
pub(super) struct Made {
    id: &'static str,
    leaves_out: bool,
    first: Timestamp,
}

/// Makes them. Nothing has been hurt yet.
pub(super) async fn make(world: &World) -> Vec<Made> {
    let mut made = Vec::new();
    for (id, leaves_out) in SCHEDULES {
        let overlap = if leaves_out { "skip" } else { "allow" };
        let asked = json!({"id": id, "every": format!("{}s", EVERY.as_secs()), "type": Sort::Recurring.job_type(),
            "queue": SIDE, "overlap": overlap, "misfire_after_ms": MISFIRE_AFTER.as_secs() * 1_000});
        let answer = world.request("schedules.put", asked).await;
        made.push(Made { id, leaves_out, first: time(&answer["next_run"][0]) });
    }
    made
}

/// Pauses them; returns what must have become of them.
pub(super) async fn pause(world: &World, made: &[Made]) -> Vec<Recurring> {
    let mut schedules = Vec::new();
    for Made { id, leaves_out, first } in made {
        let paused = world.request("schedules.pause", json!({"id": id})).await;
        let last = match &paused["last_run"] {
            // It was paused before its first time.
            Value::Null => continue,
            last => time(&last["due_at"]),
        };
        let (tenant, id) = (TENANT.to_owned(), (*id).to_owned());
        schedules.push(Recurring { tenant, id, every: EVERY, first: *first, last, leaves_out: *leaves_out });
    }
    schedules
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{value} is no time"))
}
