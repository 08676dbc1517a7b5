//! Looking at what is durable, past the nodes: run records, the event log, dead letters, the depth of lanes.
//!
//! Everything is read as it stands, from the first message to the last that there was when the reading began.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use bytes::Bytes;
use futures_util::StreamExt;

use crate::history::{self, History};
use crate::publish::Receipt;
use crate::wire::{Event, Record};
use crate::world::{NAMESPACE, TENANT, World, chain};

/// Messages asked for at a time.
const PAGE: usize = 1_000;

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

    fn body(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.payload).ok()
    }
}

/// A stored message.
struct Stored {
    sequence: u64,
    subject: String,
    headers: BTreeMap<String, String>,
    payload: Bytes,
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
        self.try_event_log(tenant).await.unwrap_or_else(|error| panic!("the event log: {error:#}"))
    }

    /// Every dead letter of a tenant, oldest first; `*` for everybody's.
    ///
    /// # Panics
    /// If they cannot be read.
    pub async fn letters(&self, tenant: &str) -> Vec<Letter> {
        self.try_letters(tenant).await.unwrap_or_else(|error| panic!("dead letters: {error:#}"))
    }

    /// How many jobs lie in a lane, waiting or in some node's hand.
    ///
    /// # Panics
    /// If there is no such lane.
    pub async fn depth(&self, queue: &str, priority: u8) -> u64 {
        let stream = format!("{}_JOBS_{queue}_P{priority}", NAMESPACE.to_uppercase());
        let found = self.jetstream().get_stream(&stream).await;
        found.unwrap_or_else(|error| panic!("lane {stream}: {}", chain(&error))).cached_info().state.messages
    }

    /// Everything that the [checker](crate::history) needs and the server knows, with what only the test knows.
    ///
    /// # Panics
    /// If some of it cannot be read.
    pub async fn history(&self, receipts: &[Receipt], calls: Vec<history::Call>) -> History {
        let letters = self.letters("*").await;
        let records = self.try_records().await.unwrap_or_else(|error| panic!("run records: {error:#}"));
        History {
            accepted: receipts.iter().map(|receipt| history::Accepted::of(&receipt.tenant, &receipt.run_id)).collect(),
            events: self.event_log("*").await,
            records,
            letters: letters.iter().map(history::Letter::from).collect(),
            calls,
            ..History::default()
        }
    }

    pub(crate) async fn try_record(&self, tenant: &str, run: &str) -> anyhow::Result<Option<Record>> {
        let bucket = self.jetstream().get_key_value(format!("{NAMESPACE}_runs")).await?;
        let Some(value) = bucket.get(format!("{tenant}.{run}")).await? else { return Ok(None) };
        let record = serde_json::from_slice(&value);
        Ok(Some(record.with_context(|| format!("no run record: {}", String::from_utf8_lossy(&value)))?))
    }

    pub(crate) async fn try_records(&self) -> anyhow::Result<Vec<Record>> {
        let stream = format!("KV_{NAMESPACE}_runs");
        let stored = self.read(&stream, &format!("$KV.{NAMESPACE}_runs.>"), DeliverPolicy::LastPerSubject).await?;
        // What was deleted or purged has an empty message that says so.
        let kept = stored.into_iter().filter(|message| !message.headers.contains_key("KV-Operation"));
        kept.map(|message| {
            serde_json::from_slice(&message.payload).with_context(|| format!("no run record in {}", message.subject))
        })
        .collect()
    }

    pub(crate) async fn try_event_log(&self, tenant: &str) -> anyhow::Result<Vec<Logged>> {
        let stream = format!("{}_EVENTS", NAMESPACE.to_uppercase());
        let mut events = Vec::new();
        for message in self.read(&stream, &format!("{NAMESPACE}.eventlog.{tenant}"), DeliverPolicy::All).await? {
            for line in message.payload.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let event = serde_json::from_slice(line);
                let event = event.with_context(|| format!("no event: {}", String::from_utf8_lossy(line)))?;
                events.push(Logged { sequence: message.sequence, event });
            }
        }
        Ok(events)
    }

    pub(crate) async fn try_letters(&self, tenant: &str) -> anyhow::Result<Vec<Letter>> {
        let stream = format!("{}_DLQ", NAMESPACE.to_uppercase());
        let stored = self.read(&stream, &format!("{NAMESPACE}.dlq.{tenant}.>"), DeliverPolicy::All).await?;
        Ok(stored.into_iter().map(Letter::from).collect())
    }

    /// Reads what a stream holds under `filter`, by a consumer of its own that is gone afterwards.
    async fn read(&self, stream: &str, filter: &str, from: DeliverPolicy) -> anyhow::Result<Vec<Stored>> {
        let stream = self.jetstream().get_stream(stream).await.with_context(|| format!("stream {stream}"))?;
        let config = pull::Config {
            filter_subject: filter.to_owned(),
            deliver_policy: from,
            ack_policy: AckPolicy::None,
            inactive_threshold: Duration::from_secs(30),
            memory_storage: true,
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await?;
        let name = consumer.cached_info().name.clone();
        let mut left = usize::try_from(consumer.cached_info().num_pending)?;
        let mut stored = Vec::with_capacity(left);
        while left > 0 {
            let wanted = left.min(PAGE);
            let mut page = consumer.batch().max_messages(wanted).expires(Duration::from_secs(10)).messages().await?;
            let before = stored.len();
            while let Some(message) = page.next().await {
                stored.push(Stored::try_from(message.map_err(|error| anyhow::anyhow!(error))?)?);
            }
            if stored.len() == before {
                bail!("{left} messages did not come");
            }
            left = left.saturating_sub(stored.len() - before);
        }
        stream.delete_consumer(&name).await?;
        Ok(stored)
    }
}

impl TryFrom<async_nats::jetstream::Message> for Stored {
    type Error = anyhow::Error;

    fn try_from(message: async_nats::jetstream::Message) -> anyhow::Result<Stored> {
        let sequence = message.info().map_err(|error| anyhow::anyhow!(error))?.stream_sequence;
        let headers = message.headers.as_ref().map(|headers| {
            let first = |(name, values): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
                Some((name.to_string(), values.first()?.to_string()))
            };
            headers.iter().filter_map(first).collect()
        });
        Ok(Stored {
            sequence,
            subject: message.subject.to_string(),
            headers: headers.unwrap_or_default(),
            payload: message.payload.clone(),
        })
    }
}

impl From<Stored> for Letter {
    fn from(stored: Stored) -> Letter {
        let Stored { sequence, subject, headers, payload } = stored;
        Letter { sequence, subject, headers, payload }
    }
}
