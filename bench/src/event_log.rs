//! The event log, read through once: the events of each run, and when the server stored them.
//!
//! The harness keeps whole events, which is too much for a million runs; this module reads each line and drops it.

use std::collections::HashMap;

use anyhow::Context;
use jiff::Timestamp;
use longshore_harness::{Line, World};
use serde::Deserialize;

/// One line of the log.
#[derive(Debug, Deserialize)]
pub(crate) struct Event<'a> {
    /// The same whenever the same event is published again.
    pub id: &'a str,
    pub event: &'a str,
    pub run_id: &'a str,
    #[serde(default)]
    pub attempt: u32,
    /// When it happened, by the clock of the node.
    pub at: &'a str,
    /// When the server stored it; nanoseconds since 1970.
    #[serde(skip)]
    pub stored: i128,
}

/// Calls `each` with every line of the log, in its order.
pub(crate) async fn read(world: &World, mut each: impl FnMut(&Event<'_>)) -> anyhow::Result<()> {
    let take = |Line { stored, text, .. }: Line<'_>| {
        let event: Event<'_> =
            serde_json::from_slice(text).with_context(|| format!("no event: {}", String::from_utf8_lossy(text)))?;
        each(&Event { stored, ..event });
        Ok(())
    };
    world.reader().lines("*", take).await
}

/// How often the log has the three events of a completed run.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Runs with all three events in the log.
    pub whole: u64,
    /// Lines beyond the first copy of an event.
    pub repeats: u64,
    /// Events of other names.
    pub others: u64,
    /// When the first handler start counted here happened, by its node's clock.
    pub first_start: Option<Timestamp>,
}

/// Counts the log of runs that were published bare, whose ids consist of their lane and sequence. `since`: the moment
/// from which on the first start is searched.
pub(crate) async fn tally(world: &World, since: Timestamp) -> anyhow::Result<Tally> {
    let since = format!("{since:.3}");
    let mut tally = Tally::default();
    let mut seen: HashMap<String, Vec<u8>> = HashMap::new();
    let mut first = String::new();
    read(world, |event| {
        let bit = match event.event {
            "enqueued" => 1,
            "started" => 2,
            "completed" => 4,
            _ => 0,
        };
        let place =
            event.run_id.rsplit_once('-').and_then(|(lane, number)| Some((lane, number.parse::<usize>().ok()?)));
        let (Some((lane, number)), 1..) = (place, bit) else {
            tally.others += 1;
            return;
        };
        // Times have a fixed length, so the earlier text is the earlier time.
        if bit == 2 && event.at >= since.as_str() && (first.is_empty() || event.at < first.as_str()) {
            first = event.at.to_owned();
        }
        if !seen.contains_key(lane) {
            seen.insert(lane.to_owned(), Vec::new());
        }
        let Some(runs) = seen.get_mut(lane) else { return };
        if runs.len() <= number {
            runs.resize(number + 1, 0);
        }
        let known = runs[number];
        runs[number] |= bit;
        tally.repeats += u64::from(known & bit != 0);
        tally.whole += u64::from(known != 7 && runs[number] == 7);
    })
    .await?;
    tally.first_start = first.parse().ok();
    Ok(tally)
}
