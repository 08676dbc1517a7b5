//! Reads durable data through any client: run records, the event log, dead letters, the messages of lanes.
//!
//! A reading covers the messages from the first to the last one stored when the reading began, one page at a time; the
//! caller decides what to keep. A reading writes nothing but a consumer, which it deletes at its end. Forbidden here:
//! judging what was read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context, bail};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use jiff::Timestamp;

use crate::stored::{DeadLetter, Logged};
use crate::wire::Record;

/// Messages requested at a time. Messages that arrive after their page has timed out are lost, so a page has to be
/// small enough for a busy machine: 1,000 messages of a full event log (60 MB) took one longer than 10 s.
const PAGE: usize = 200;

/// How long a page may take.
const PAGE_WITHIN: Duration = Duration::from_secs(60);

/// Reads the streams of one namespace.
#[derive(Debug, Clone)]
pub struct Reader {
    jetstream: jetstream::Context,
    namespace: String,
}

/// How much the event log holds, known before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Stored messages; each holds several events.
    pub messages: u64,
    /// The size of those messages.
    pub bytes: u64,
    /// When the oldest message was stored, if older ones are deleted: events before that time cannot be known.
    pub cut_before: Option<Timestamp>,
}

/// A line of the event log, as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct Line<'m> {
    /// The sequence of the message that holds it, perhaps among others.
    pub sequence: u64,
    /// When the server stored that message; nanoseconds since 1970.
    pub stored: i128,
    /// The line without its end: the JSON of an event.
    pub text: &'m [u8],
}

/// A stored message.
struct Stored {
    sequence: u64,
    at: i128,
    subject: String,
    headers: BTreeMap<String, String>,
    payload: Bytes,
}

impl Reader {
    /// A reader of the streams that belong to `namespace`.
    pub fn new(jetstream: jetstream::Context, namespace: &str) -> Reader {
        Reader { jetstream, namespace: namespace.to_owned() }
    }

    /// How much the event log holds, of all tenants.
    ///
    /// # Errors
    /// If there is no log, or no answer. The functions below fail for the same reasons.
    pub async fn extent(&self) -> anyhow::Result<Extent> {
        let state = self.stream(&self.event_log()).await?.cached_info().state.clone();
        let first = Timestamp::from_nanosecond(state.first_timestamp.unix_timestamp_nanos())?;
        let is_cut = state.first_sequence > 1 && state.messages > 0;
        Ok(Extent { messages: state.messages, bytes: state.bytes, cut_before: is_cut.then_some(first) })
    }

    /// Reads every event of a tenant's log (`*` for all tenants) in the order of the log, repeats included.
    ///
    /// # Errors
    /// Also if something in it is not a valid event.
    pub async fn events(&self, tenant: &str, mut each: impl FnMut(Logged)) -> anyhow::Result<()> {
        let take = |Line { sequence, text, .. }: Line<'_>| {
            let event = serde_json::from_slice(text);
            let event = event.with_context(|| format!("not an event: {}", String::from_utf8_lossy(text)))?;
            each(Logged { sequence, event });
            Ok(())
        };
        self.lines(tenant, take).await
    }

    /// As [`Reader::events`], for a caller that keeps less of each line than an event.
    ///
    /// # Errors
    /// Also those of `each`.
    pub async fn lines(
        &self,
        tenant: &str,
        mut each: impl FnMut(Line<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let filter = format!("{}.eventlog.{tenant}", self.namespace);
        let take = |Stored { sequence, at: stored, payload, .. }: Stored| {
            let mut lines = payload.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines.try_for_each(|text| each(Line { sequence, stored, text }))
        };
        self.each(&self.event_log(), &filter, DeliverPolicy::All, take).await
    }

    /// Reads every run record of a tenant (`*` for all tenants).
    ///
    /// # Errors
    /// Also if something in the bucket is not a valid record.
    pub async fn records(&self, tenant: &str, mut each: impl FnMut(Record)) -> anyhow::Result<()> {
        let bucket = format!("{}_runs", self.namespace);
        let take = |message: Stored| {
            // A deleted or purged key has an empty message with this header.
            if !message.headers.contains_key("KV-Operation") {
                let record = serde_json::from_slice(&message.payload);
                each(record.with_context(|| format!("not a run record in {}", message.subject))?);
            }
            Ok(())
        };
        let filter = format!("$KV.{bucket}.{tenant}.>");
        self.each(&format!("KV_{bucket}"), &filter, DeliverPolicy::LastPerSubject, take).await
    }

    /// One run's record; `None` if there is none yet, or if it was deleted.
    ///
    /// # Errors
    /// Also if it is not a valid record.
    pub async fn record(&self, tenant: &str, run: &str) -> anyhow::Result<Option<Record>> {
        use async_nats::jetstream::stream::LastRawMessageErrorKind;
        // The stream's leader is asked: a replica that is behind may answer a bucket's own `get`.
        let bucket = format!("{}_runs", self.namespace);
        let stream = self.jetstream.get_stream_no_info(format!("KV_{bucket}")).await?;
        let found = match stream.get_last_raw_message_by_subject(&format!("$KV.{bucket}.{tenant}.{run}")).await {
            Ok(found) if found.headers.get("KV-Operation").is_none() => found,
            Ok(_deleted) => return Ok(None),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("record of {run}")),
        };
        let record = serde_json::from_slice(&found.payload);
        Ok(Some(record.with_context(|| format!("not a run record: {}", String::from_utf8_lossy(&found.payload)))?))
    }

    /// Reads every dead letter of a tenant (`*` for all tenants), oldest first.
    ///
    /// # Errors
    /// As [`Reader::extent`].
    pub async fn dead_letters(&self, tenant: &str, mut each: impl FnMut(DeadLetter)) -> anyhow::Result<()> {
        let filter = format!("{}.dlq.{tenant}.>", self.namespace);
        let take = |message: Stored| {
            let Stored { sequence, subject, headers, payload, .. } = message;
            each(DeadLetter { sequence, subject, headers, payload });
            Ok(())
        };
        self.each(&format!("{}_DLQ", self.namespace.to_uppercase()), &filter, DeliverPolicy::All, take).await
    }

    /// Whether the job with this `sequence` is still in its lane, waiting or buffered by a node.
    ///
    /// # Errors
    /// As [`Reader::extent`]; a lane that does not exist is not an error.
    pub async fn waits(&self, lane: &str, sequence: u64) -> anyhow::Result<bool> {
        use async_nats::jetstream::context::GetStreamErrorKind;
        use async_nats::jetstream::stream::RawMessageErrorKind;
        let stream = match self.jetstream.get_stream_no_info(lane).await {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                GetStreamErrorKind::InvalidStreamName | GetStreamErrorKind::EmptyName => return Ok(false),
                _ => return Err(error).with_context(|| format!("stream {lane}")),
            },
        };
        let none = [ErrorCode::NO_MESSAGE_FOUND, ErrorCode::STREAM_NOT_FOUND];
        match stream.get_raw_message(sequence).await {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                RawMessageErrorKind::NoMessageFound => Ok(false),
                RawMessageErrorKind::JetStream(refusal) if none.contains(&refusal.error_code()) => Ok(false),
                _ => Err(error).with_context(|| format!("message {sequence} of {lane}")),
            },
        }
    }

    /// What is left, in words that begin with its subject, in the streams that jobs go through (lanes, parked jobs,
    /// schedules and retries), and how many messages these streams have ever stored: if two readings agree on that,
    /// nothing moved from one to another in between. The tick of a recurring schedule is no job: one that is paused may
    /// keep its last. Nor is a schedule that was written after its run had ended: a node that stood still writes one
    /// again whose confirmation it missed, and it does nothing once its time comes.
    ///
    /// # Errors
    /// As [`Reader::extent`].
    pub async fn jobs_left(&self) -> anyhow::Result<(BTreeSet<String>, u64)> {
        let prefix = format!("{}_", self.namespace.to_uppercase());
        let names: Vec<String> = self.jetstream.stream_names().try_collect().await?;
        let holds_jobs = |name: &str| name.starts_with("JOBS_") || ["PARKED", "SCHEDULES"].contains(&name);
        let (mut left, mut ever) = (BTreeSet::new(), 0);
        for name in names.iter().filter(|name| name.strip_prefix(&prefix).is_some_and(holds_jobs)) {
            let stream = self.stream(name).await?;
            ever += stream.cached_info().state.last_sequence;
            if stream.cached_info().state.messages > 0 {
                let subjects: HashMap<String, usize> = stream.info_with_subjects(">").await?.try_collect().await?;
                for subject in subjects.into_keys().filter(|subject| !subject.contains("._tick.")) {
                    left.extend(self.left_under(&stream, subject).await?);
                }
            }
        }
        Ok((left, ever))
    }

    /// What is left under a subject that the server counts, in words; `None`: the schedule of a run that has ended. A
    /// write whose answer was lost is repeated, and may store one that another write had replaced; it does nothing at
    /// its time.
    async fn left_under(&self, stream: &jetstream::stream::Stream, subject: String) -> anyhow::Result<Option<String>> {
        let mut tokens = subject.strip_prefix(&format!("{}.", self.namespace)).unwrap_or_default().split('.');
        let (Some("schedules" | "retries"), Some(tenant), Some(run)) = (tokens.next(), tokens.next(), tokens.next())
        else {
            return Ok(Some(subject));
        };
        // The next reading does not count it, unless the server counts what it does not have.
        if let Err(error) = stream.get_last_raw_message_by_subject(&subject).await {
            return Ok(Some(format!("{subject}, which is counted and cannot be read: {error}")));
        }
        let has_ended = self.record(tenant, run).await?.is_some_and(|record| record.is_terminal());
        Ok((!has_ended).then_some(subject))
    }

    fn event_log(&self) -> String {
        format!("{}_EVENTS", self.namespace.to_uppercase())
    }

    async fn stream(&self, name: &str) -> anyhow::Result<jetstream::stream::Stream> {
        self.jetstream.get_stream(name).await.with_context(|| format!("stream {name}"))
    }

    /// Reads what a stream holds under `filter`, with a consumer of its own that it deletes afterwards.
    async fn each(
        &self,
        stream: &str,
        filter: &str,
        from: DeliverPolicy,
        mut take: impl FnMut(Stored) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let stream = self.stream(stream).await?;
        let config = pull::Config {
            filter_subject: filter.to_owned(),
            deliver_policy: from,
            ack_policy: AckPolicy::None,
            inactive_threshold: 2 * PAGE_WITHIN,
            memory_storage: true,
            ..pull::Config::default()
        };
        // A consumer reads from the server it is on, which may be behind the stream's leader.
        let stored = match from {
            DeliverPolicy::All => messages_under(&stream, filter).await?,
            _ => 0,
        };
        let consumer = stream.create_consumer(config).await?;
        let name = consumer.cached_info().name.clone();
        let mut left = usize::try_from(consumer.cached_info().num_pending)?;
        if left < stored {
            stream.delete_consumer(&name).await?;
            bail!("the server that reads {filter} has {left} messages of it, the leader {stored}");
        }
        while left > 0 {
            let wanted = left.min(PAGE);
            // What is there now: messages that are removed or replaced meanwhile do not come, and are not waited for.
            let mut page = consumer.fetch().max_messages(wanted).messages().await?;
            let before = left;
            while let Some(message) = tokio::time::timeout(PAGE_WITHIN, page.next()).await? {
                take(Stored::try_from(message.map_err(|error| anyhow::anyhow!(error))?)?)?;
                left = left.saturating_sub(1);
            }
            if left == before {
                bail!("{left} messages did not come");
            }
        }
        stream.delete_consumer(&name).await?;
        Ok(())
    }
}

/// How many messages the stream's leader has under a filter.
async fn messages_under(stream: &jetstream::stream::Stream, filter: &str) -> anyhow::Result<usize> {
    // Counted by subject: the pages overlap if a new subject appears between two of them.
    let subjects: HashMap<String, usize> = stream.info_with_subjects(filter).await?.try_collect().await?;
    Ok(subjects.values().sum())
}

impl TryFrom<jetstream::Message> for Stored {
    type Error = anyhow::Error;

    fn try_from(message: jetstream::Message) -> anyhow::Result<Stored> {
        let info = message.info().map_err(|error| anyhow::anyhow!(error))?;
        let (sequence, at) = (info.stream_sequence, info.published.unix_timestamp_nanos());
        let headers = message.headers.as_ref().map(|headers| {
            let first = |(name, values): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
                Some((name.to_string(), values.first()?.to_string()))
            };
            headers.iter().filter_map(first).collect()
        });
        Ok(Stored {
            sequence,
            at,
            subject: message.subject.to_string(),
            headers: headers.unwrap_or_default(),
            payload: message.payload.clone(),
        })
    }
}
