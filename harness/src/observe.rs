//! Looking at what is durable, past the nodes: run records, the event log, dead letters, the depth of lanes.
//!
//! The verbs of a test: they panic where the [`Reader`] behind them, which works for any client, gives an error.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::eventually::eventually;
use crate::history::{self, History};
use crate::publish::Receipt;
use crate::read::Reader;
use crate::wire::{Event, Record};
use crate::world::{NAMESPACE, TENANT, World, chain};

/// How long it may take to read a stream of three servers.
const READ_WITHIN: Duration = Duration::from_secs(120);

/// An event as it lies in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// The number of the stored message that holds it, perhaps among others.
    pub sequence: u64,
    /// The event.
    pub event: Event,
}

/// A dead letter as it lies in its stream.
#[derive(Debug, Clone)]
pub struct Letter {
    /// Its number in the stream.
    pub sequence: u64,
    /// `longshore.dlq.<tenant>.<queue>.<type…>`.
    pub subject: String,
    /// Its headers; of several of one name, the first.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub payload: Bytes,
}

impl Letter {
    /// Whose run it is.
    pub fn tenant(&self) -> &str {
        self.subject.split('.').nth(2).unwrap_or("")
    }

    /// Which run: by its header, or by its body where that is an object that says so.
    pub fn run_id(&self) -> Option<String> {
        self.headers.get("Longshore-Run-Id").cloned().or_else(|| Some(self.body()?["run_id"].as_str()?.to_owned()))
    }

    /// Which round of that run, if it says so.
    pub fn round(&self) -> Option<u32> {
        let header = self.headers.get("Longshore-Round").and_then(|round| round.parse().ok());
        header.or_else(|| u32::try_from(self.body()?["round"].as_u64()?).ok())
    }

    /// The kind of error it died of, by the record that it carries.
    pub fn error_kind(&self) -> Option<String> {
        let record: serde_json::Value = serde_json::from_str(self.headers.get("Longshore-Record")?).ok()?;
        Some(record["error"]["kind"].as_str()?.to_owned())
    }

    fn body(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.payload).ok()
    }
}

impl World {
    /// The run's record in the bucket, `None` if there is none (yet, or any more).
    ///
    /// # Panics
    /// If the bucket cannot be read, or holds something else; as do the others here.
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

    /// The run's events in the order of the log, repeats included.
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

    /// The whole event log of a tenant; `*` for everybody's.
    ///
    /// # Panics
    /// If it cannot be read, or holds something that is no event.
    pub async fn event_log(&self, tenant: &str) -> Vec<Logged> {
        self.read("the event log", async || self.try_event_log(tenant).await).await
    }

    /// Every dead letter of a tenant, oldest first; `*` for everybody's.
    ///
    /// # Panics
    /// If they cannot be read.
    pub async fn letters(&self, tenant: &str) -> Vec<Letter> {
        self.read("dead letters", async || self.try_letters(tenant).await).await
    }

    /// How many jobs lie in a lane, waiting or in some node's hand.
    ///
    /// # Panics
    /// If there is no such lane.
    pub async fn depth(&self, queue: &str, priority: u8) -> u64 {
        self.stored(&format!("{}_JOBS_{queue}_P{priority}", NAMESPACE.to_uppercase())).await
    }

    /// How many messages lie in a stream.
    ///
    /// # Panics
    /// If there is no such stream.
    pub async fn stored(&self, stream: &str) -> u64 {
        let found = self.jetstream().get_stream(stream).await;
        found.unwrap_or_else(|error| panic!("stream {stream}: {}", chain(&error))).cached_info().state.messages
    }

    /// Everything that the [checker](crate::history) needs and the server knows, with what only the test knows.
    ///
    /// # Panics
    /// If some of it cannot be read.
    pub async fn history(&self, receipts: &[Receipt], calls: Vec<history::Call>) -> History {
        let letters = self.letters("*").await;
        let records = self.read("run records", async || self.try_records().await).await;
        History {
            accepted: receipts.iter().map(|receipt| history::Accepted::of(&receipt.tenant, &receipt.run_id)).collect(),
            events: self.event_log("*").await,
            records,
            letters: letters.iter().map(history::Letter::from).collect(),
            calls,
            ..History::default()
        }
    }

    /// Reads a stream whole. A reading is begun again if it missed something: among three servers it is cut short when its
    /// consumer's server steps down or stalls, and what is taken out meanwhile is missed on one server, too.
    async fn read<T>(&self, what: &str, read: impl AsyncFn() -> anyhow::Result<T>) -> T {
        eventually(what, READ_WITHIN, async || read().await.map_err(|error| format!("{error:#}"))).await
    }

    /// The reader behind these verbs.
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

    pub(crate) async fn try_letters(&self, tenant: &str) -> anyhow::Result<Vec<Letter>> {
        let mut letters = Vec::new();
        self.reader().letters(tenant, |letter| letters.push(letter)).await?;
        Ok(letters)
    }
}
