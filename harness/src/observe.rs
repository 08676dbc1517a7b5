//! Observes durable data without the nodes: run records, the event log, dead letters, the depth of lanes.
//!
//! These methods are for tests: they panic where the [`Reader`] behind them, which works for any client, returns an
//! error.

use std::collections::HashMap;
use std::time::Duration;

use crate::connect::chain;
use crate::eventually::eventually;
use crate::history::{self, History};
use crate::publish::Receipt;
use crate::read::Reader;
use crate::stored::{DeadLetter, Logged};
use crate::wire::{Event, Record};
use crate::world::{NAMESPACE, TENANT, World};

/// How long reading a stream of three servers may take.
const READ_WITHIN: Duration = Duration::from_secs(120);

/// Drops what an earlier event repeats word for word.
fn without_repeats(mut events: Vec<Logged>) -> Vec<Logged> {
    let mut seen: HashMap<String, Vec<Event>> = HashMap::new();
    events.retain(|Logged { event, .. }| {
        let of_this_id = seen.entry(event.id.clone()).or_default();
        let is_new = !of_this_id.contains(event);
        if is_new {
            of_this_id.push(event.clone());
        }
        is_new
    });
    events
}

impl World {
    /// The run's record in the bucket; `None` if there is none yet, or if it was deleted.
    ///
    /// # Panics
    /// If the bucket cannot be read, or holds something else. The functions below panic for the same reasons.
    pub async fn record(&self, run: &str) -> Option<Record> {
        self.record_as(TENANT, run).await
    }

    /// As [`World::record`], for any tenant.
    ///
    /// # Panics
    /// As [`World::record`].
    pub async fn record_as(&self, tenant: &str, run: &str) -> Option<Record> {
        self.try_record(tenant, run).await.unwrap_or_else(|error| panic!("record of {run}: {error:#}"))
    }

    /// The run's events in the order of the log, without repeats as in [`World::event_log`].
    ///
    /// # Panics
    /// If the log cannot be read.
    pub async fn events(&self, run: &str) -> Vec<Logged> {
        self.events_as(TENANT, run).await
    }

    /// As [`World::events`], for any tenant.
    ///
    /// # Panics
    /// As [`World::events`].
    pub async fn events_as(&self, tenant: &str, run: &str) -> Vec<Logged> {
        let mut events = self.event_log(tenant).await;
        events.retain(|logged| logged.event.run_id == run);
        events
    }

    /// The whole event log of a tenant; `*` for all tenants. An event whose publish was not confirmed in time is
    /// published again, under the same id: it is here once. Two different events under one id are both here.
    ///
    /// # Panics
    /// If it cannot be read, or holds something that is not a valid event.
    pub async fn event_log(&self, tenant: &str) -> Vec<Logged> {
        without_repeats(self.stored_events(tenant).await)
    }

    /// As [`World::event_log`], with every repeat that is stored.
    ///
    /// # Panics
    /// As [`World::event_log`].
    pub async fn stored_events(&self, tenant: &str) -> Vec<Logged> {
        self.read("the event log", async || self.try_event_log(tenant).await).await
    }

    /// Every dead letter of a tenant, oldest first; `*` for all tenants.
    ///
    /// # Panics
    /// If they cannot be read.
    pub async fn dead_letters(&self, tenant: &str) -> Vec<DeadLetter> {
        self.read("dead letters", async || self.try_dead_letters(tenant).await).await
    }

    /// How many jobs are in a lane, waiting or buffered by a node.
    ///
    /// # Panics
    /// If there is no such lane.
    pub async fn depth(&self, queue: &str, priority: u8) -> u64 {
        self.stored(&format!("{}_JOBS_{queue}_P{priority}", NAMESPACE.to_uppercase())).await
    }

    /// How many messages are in a stream.
    ///
    /// # Panics
    /// If there is no such stream.
    pub async fn stored(&self, stream: &str) -> u64 {
        let found = self.jetstream().get_stream(stream).await;
        found.unwrap_or_else(|error| panic!("stream {stream}: {}", chain(&error))).cached_info().state.messages
    }

    /// Everything that the [checker](crate::history) needs: the server's data, and the data that only the test has.
    ///
    /// # Panics
    /// If some of it cannot be read.
    pub async fn history(&self, receipts: &[Receipt], calls: Vec<history::Call>) -> History {
        let dead_letters = self.dead_letters("*").await;
        let records = self.read("run records", async || self.try_records().await).await;
        History {
            accepted: receipts.iter().map(|receipt| history::Accepted::of(&receipt.tenant, &receipt.run_id)).collect(),
            events: self.stored_events("*").await,
            records,
            dead_letters: dead_letters.iter().map(history::DeadLetter::from).collect(),
            calls,
            ..History::default()
        }
    }

    /// Reads a whole stream. It starts again if it missed something: with three servers, a reading stops early when its
    /// consumer's server steps down or stalls; and, with any number of servers, it misses messages that are deleted
    /// meanwhile.
    async fn read<T>(&self, what: &str, read: impl AsyncFn() -> anyhow::Result<T>) -> T {
        eventually(what, READ_WITHIN, async || read().await.map_err(|error| format!("{error:#}"))).await
    }

    /// The reader behind these methods.
    pub fn reader(&self) -> Reader {
        Reader::new(self.jetstream().clone(), NAMESPACE)
    }

    pub(crate) async fn try_record(&self, tenant: &str, run: &str) -> anyhow::Result<Option<Record>> {
        self.reader().record(tenant, run).await
    }

    pub(crate) async fn try_records(&self) -> anyhow::Result<Vec<Record>> {
        let mut records = Vec::new();
        self.reader().records("*", |record| records.push(record)).await?;
        Ok(records)
    }

    pub(crate) async fn try_event_log(&self, tenant: &str) -> anyhow::Result<Vec<Logged>> {
        let mut events = Vec::new();
        self.reader().events(tenant, |logged| events.push(logged)).await?;
        Ok(events)
    }

    pub(crate) async fn try_dead_letters(&self, tenant: &str) -> anyhow::Result<Vec<DeadLetter>> {
        let mut dead_letters = Vec::new();
        self.reader().dead_letters(tenant, |dead_letter| dead_letters.push(dead_letter)).await?;
        Ok(dead_letters)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A start that the log has under the id `r/1` at this sequence.
    fn started(sequence: u64, at: &str) -> Logged {
        let event = json!({
            "id": "r/1", "event": "started", "run_id": "r", "tenant": "t", "queue": "main", "priority": 5, "type": "work",
            "at": at,
        });
        Logged { sequence, event: serde_json::from_value(event).unwrap() }
    }

    #[test]
    fn drops_what_is_repeated_word_for_word_and_nothing_else() {
        let first = started(1, "2026-01-01T00:00:00Z");
        let later = started(3, "2026-01-01T00:00:01Z");

        let left = without_repeats(vec![first.clone(), Logged { sequence: 2, ..first.clone() }, later.clone()]);

        assert_eq!(left, [first, later]);
    }
}
