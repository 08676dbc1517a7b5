//! Reads stored messages in order, and removes single ones: the basis of lists, cancels and replays. The slow path, for
//! people's requests; no job passes through here on its own way.

use std::time::Duration;

use async_nats::{Request, StatusCode};
use bytes::Bytes;
use longshore_domain::{Queue, QueueLane, Run, Tenant, Timestamp};

use crate::Backbone;
use crate::connection::link::Link;
use crate::error::Error;
use crate::messages::get;
use crate::messages::refusal::Refusal;
use crate::messages::request::{self, Stored};

/// Maximum number of messages in a page.
pub const PAGE: usize = 256;
/// Bytes of one page; the server ends it after the message that exceeds this.
pub(crate) const PAGE_BYTES: usize = 4 << 20;
/// How long the server may take over one message of a page.
const WITHIN: Duration = Duration::from_secs(5);
/// Some messages of a stream, and where the next page begins.
#[derive(Debug)]
pub struct Page {
    /// In the order in which they were stored.
    pub messages: Vec<Stored>,
    /// The sequence from which the next page begins; `None`: there are no more.
    pub next: Option<u64>,
}

/// The streams that can be read this way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each has the name of its stream")]
pub enum Source {
    Lane(Queue, QueueLane),
    Parked,
    /// Delayed jobs and retries.
    Schedules,
    DeadLetters,
    Audit,
    Events,
}

impl Backbone {
    pub(crate) fn stream_of(&self, place: &Source) -> String {
        match place {
            Source::Lane(queue, lane) => self.names().lane_stream(queue, *lane),
            Source::Parked => self.names().parked_stream(),
            Source::Schedules => self.names().schedules_stream(),
            Source::DeadLetters => self.names().dlq_stream(),
            Source::Audit => self.names().audit_stream(),
            Source::Events => self.names().events_stream(),
        }
    }

    /// One page of the messages under `subject` from sequence `from` on. A source that does not exist is empty.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn page(&self, place: &Source, subject: &str, from: u64) -> Result<Page, Error> {
        self.page_of(place, subject, from, PAGE).await
    }

    /// The same, with at most so many messages.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn page_of(&self, place: &Source, subject: &str, from: u64, most: usize) -> Result<Page, Error> {
        batch(self.service(), &self.stream_of(place), &query(subject, from, most as u64)).await
    }

    /// The same from a point in time on.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn page_since(&self, place: &Source, subject: &str, since: Timestamp) -> Result<Page, Error> {
        let from = format!(r#""start_time":"{since}""#);
        batch(self.service(), &self.stream_of(place), &query_from(subject, &from, PAGE as u64)).await
    }

    /// The first message under `subject` from sequence `from` on, as the source's leader has it; `None`: there is none.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn next_of(&self, place: &Source, subject: &str, from: u64) -> Result<Option<Stored>, Error> {
        let raw = get::next(self.service(), &self.stream_of(place), subject, from).await?;
        Ok(raw.map(Stored::from))
    }

    /// The sequence of the oldest message that a source still has (of an empty one, of the next message), and the last
    /// that it assigned.
    ///
    /// # Errors
    /// The server did not answer, or the source does not exist.
    pub async fn sequences(&self, place: &Source) -> Result<(u64, u64), Error> {
        self.sequences_in(&self.stream_of(place)).await
    }

    /// The same of a stream.
    pub(crate) async fn sequences_in(&self, stream: &str) -> Result<(u64, u64), Error> {
        let state = self.stream_info(stream).await?.state;
        Ok((state.first_sequence, state.last_sequence))
    }

    /// Removes one message; returns whether it was there.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error> {
        let (subject, body) = self.deletion(&self.stream_of(place), sequence);
        self.ask_to_delete(subject, body).await
    }

    /// Subject and body of the request that deletes a message. Overwriting its bytes on disk would cost a seek, and is
    /// not needed: the message is done with, not secret.
    pub(crate) fn deletion(&self, stream: &str, sequence: u64) -> (String, Bytes) {
        let body = Bytes::from(format!(r#"{{"seq":{sequence},"no_erase":true}}"#));
        (format!("{}.STREAM.MSG.DELETE.{stream}", self.api()), body)
    }

    /// Removes one message as [`Backbone::take_out`] does, and has its bytes overwritten on disk.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn erase_message(&self, place: &Source, sequence: u64) -> Result<bool, Error> {
        let subject = format!("{}.STREAM.MSG.DELETE.{}", self.api(), self.stream_of(place));
        self.ask_to_delete(subject, Bytes::from(format!(r#"{{"seq":{sequence}}}"#))).await
    }

    /// Has a message deleted; returns whether it was there.
    pub(crate) async fn ask_to_delete(&self, subject: String, body: Bytes) -> Result<bool, Error> {
        let failed = |source| Error::Publish { subject: subject.clone(), source };
        let request = Request::new().payload(body);
        let answer = self.control().request(subject.clone(), request).await.map_err(failed)?;
        let answer: Deleted = serde_json::from_slice(&answer.payload).map_err(|error| failed(Box::new(error)))?;
        match answer.error {
            None => Ok(answer.success),
            Some(refusal) if refusal.is_no_message() => Ok(false),
            Some(refusal) => Err(refusal.of(subject)),
        }
    }

    /// Removes the job that waits for its time, for a run that has just finished; returns whether it was there.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn unschedule(&self, run: &Run) -> Result<bool, Error> {
        match self.find_schedule(run).await? {
            Some(sequence) => self.take_out(&Source::Schedules, sequence).await,
            None => Ok(false),
        }
    }

    /// Deletes every checkpoint of a run.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn purge_checkpoints(&self, tenant: &Tenant, run: &str) -> Result<(), Error> {
        self.purge_checkpoints_under(&format!("{tenant}.{run}.>")).await
    }

    pub(crate) async fn purge_checkpoints_under(&self, keys: &str) -> Result<(), Error> {
        let stream = self.names().bucket_stream("checkpoints");
        let subject = self.names().key("checkpoints", keys);
        let failed = |source| Error::Publish { subject: subject.clone(), source };
        let found = self.jetstream().get_stream(&stream).await.map_err(|error| failed(Box::new(error)))?;
        found.purge().filter(&subject).await.map(|_| ()).map_err(|error| failed(Box::new(error)))
    }
}

#[derive(serde::Deserialize)]
struct Deleted {
    #[serde(default)]
    success: bool,
    error: Option<Refusal>,
}

/// One page of the messages under `subject` from a sequence on.
pub(crate) async fn page(link: &Link, stream: &str, subject: &str, from: u64) -> Result<Page, Error> {
    batch(link, stream, &query(subject, from, PAGE as u64)).await
}

/// The fields of a request for the messages under `subject` from a sequence on, at most so many.
pub(crate) fn query(subject: &str, from: u64, most: u64) -> String {
    query_from(subject, &format!(r#""seq":{}"#, from.max(1)), most)
}

/// The same; `from` is the field that says where they begin.
fn query_from(subject: &str, from: &str, most: u64) -> String {
    format!(r#"{from},"batch":{most},"max_bytes":{PAGE_BYTES},"next_by_subj":"{subject}""#)
}

/// A batched direct get (ADR-31): the messages, then a status that ends the page. `query` has the fields of the
/// request.
pub(crate) async fn batch(link: &Link, stream: &str, query: &str) -> Result<Page, Error> {
    // An error shows a query that names hundreds of subjects cut.
    let shown = &query[..query.floor_char_boundary(200)];
    let failed = |source| Error::Read { subject: format!("{stream} {shown}"), source };
    let inbox = link.new_inbox();
    let mut made = link.connected();
    let mut answers = link.subscribe(inbox.clone()).await?;
    let body = Bytes::from(format!("{{{query}}}"));
    link.publish_with_reply(format!("{}.DIRECT.GET.{stream}", link.api()).into(), inbox, body).await;
    let mut messages: Vec<Stored> = Vec::new();
    loop {
        let answer = tokio::time::timeout(WITHIN, async {
            tokio::select! {
                answer = answers.next() => answer,
                // The rest of the page is lost.
                _ = made.changed() => None,
            }
        });
        let message = match answer.await {
            Ok(Some(message)) => message,
            Ok(None) => return Err(failed(Box::new(crate::connection::link::Lost))),
            Err(_) => return Err(failed("no answer within 5 s".into())),
        };
        match message.status {
            // Nothing from there on, or no such stream.
            Some(StatusCode::NOT_FOUND | StatusCode::NO_RESPONDERS) => return Ok(Page { messages, next: None }),
            // The end of the page, and how many lie beyond it.
            Some(status) if status.as_u16() == 204 => {
                let pending = message.headers.as_ref().and_then(|headers| headers.get("Nats-Num-Pending"));
                let more = pending.is_some_and(|pending| pending.as_str() != "0");
                let next = messages.last().filter(|_| more).map(|last| last.sequence + 1);
                return Ok(Page { messages, next });
            }
            Some(status) if !status.is_success() => {
                let text = message.description.unwrap_or_default();
                return Err(failed(format!("{} {text}", status.as_u16()).into()));
            }
            _ => {
                let stored = request::stored(message);
                messages.push(stored.ok_or_else(|| failed("the answer names no sequence".into()))?);
            }
        }
    }
}
