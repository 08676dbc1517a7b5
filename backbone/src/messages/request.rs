//! One request and its answer: confirmed publishes and reads of stored messages. The slow path, one request at a time;
//! the steps of every job go through the pipelines of [`crate::lanes::pull`] and [`crate::messages::window`].

use std::time::{Duration, Instant};

use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_TTL};
use async_nats::{HeaderMap, Message, Request, RequestError, RequestErrorKind, StatusCode, Subject};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::connection::link::Link;
use crate::error::{Cause, Error};
use crate::messages::get;
use crate::messages::raw::{self, Raw};
use crate::messages::refusal::{Refusal, WRITE_IN_FLIGHT, WRONG_SEQUENCE};
use crate::wire::header::{self, kept};

/// JetStream's answer to a publish, or its refusal.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PubAck {
    /// Sequence in the stream.
    pub seq: u64,
    /// The server had it already, by its `Nats-Msg-Id`.
    pub duplicate: bool,
    /// Why it was refused.
    pub error: Option<Refusal>,
}

/// What a compare-and-set writes over, and for how long what it writes is stored.
#[derive(Debug, Clone, Copy)]
pub struct Over {
    /// The revision that must still be the newest; 0: nothing is stored.
    pub expected: u64,
    /// From now on; the server counts whole seconds.
    pub lasts: Duration,
}

impl Over {
    pub(crate) fn headers(self) -> HeaderMap {
        conditions(Some(self.expected), Some(self.lasts))
    }
}

/// The headers of a write: the revision that must still be the newest (0: nothing is stored), and for how long it is
/// stored, from now on; without that, for good.
pub(crate) fn conditions(expected: Option<u64>, lasts: Option<Duration>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(expected) = expected {
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
    }
    if let Some(lasts) = lasts {
        headers.insert(NATS_MESSAGE_TTL, header::ttl(lasts));
    }
    headers
}

/// The headers of an empty write that removes a key of a bucket, and is itself stored for so long; without that, for
/// good. A server that was killed may bring back what was stored under the key before, once this write has expired
/// (nats-server #8505).
pub(crate) fn removal(expected: Option<u64>, lasts: Option<Duration>) -> HeaderMap {
    let mut headers = conditions(expected, lasts);
    headers.insert("KV-Operation", "DEL");
    headers
}

pub(crate) fn json(value: &impl Serialize) -> Bytes {
    Bytes::from(serde_json::to_vec(value).unwrap_or_default())
}

/// The outcome of a compare-and-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is stored, at this revision.
    Won(u64),
    /// Another write came first, or is on its way.
    Lost,
}

impl From<Option<u64>> for Written {
    fn from(revision: Option<u64>) -> Self {
        revision.map_or(Self::Lost, Self::Won)
    }
}

/// The revision that a compare-and-set has got; `None`: another write came first, or is on its way.
pub(crate) fn won(published: Result<PubAck, Error>) -> Result<Option<u64>, Error> {
    match published {
        Ok(ack) => Ok(Some(ack.seq)),
        Err(Error::Refused { code: WRONG_SEQUENCE | WRITE_IN_FLIGHT, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Publishes and waits for the server's answer. [`Error::Refused`] is final; after [`Error::Publish`] it is not known
/// whether the message was stored.
pub(crate) async fn publish(link: &Link, subject: String, headers: HeaderMap, payload: Bytes) -> Result<PubAck, Error> {
    let failed = |source| Error::Publish { subject: subject.clone(), source };
    let request = Request::new().headers(headers).payload(payload);
    let sent = Instant::now();
    let answer = link.request(subject.clone(), request).await;
    match &answer {
        Ok(_) => link.silent_writes().answered(&subject),
        // The connection stands, and no answer came.
        Err(error) if kind(error) == Some(RequestErrorKind::TimedOut) => {
            link.silent_writes().add(&subject, sent, Instant::now());
        }
        Err(_) => {}
    }
    let message = answer.map_err(failed)?;
    let ack: PubAck = serde_json::from_slice(&message.payload).map_err(|error| failed(Box::new(error)))?;
    match ack.error {
        None => Ok(ack),
        Some(refusal) => Err(refusal.of(subject)),
    }
}

/// As [`publish`], again and again while another write is in flight, so that nothing is decided.
pub(crate) async fn publish_until_decided(
    link: &Link,
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
) -> Result<PubAck, Error> {
    loop {
        match publish(link, subject.clone(), headers.clone(), payload.clone()).await {
            Err(Error::Refused { code: WRITE_IN_FLIGHT, .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            decided => return decided,
        }
    }
}

pub(crate) fn kind(error: &Cause) -> Option<RequestErrorKind> {
    error.downcast_ref::<RequestError>().map(RequestError::kind)
}

/// Asks JetStream's API about a stream or consumer, and reads the answer, which may be a refusal.
pub(crate) async fn ask<A: DeserializeOwned>(link: &Link, subject: String, body: Bytes) -> Result<A, Error> {
    let failed = |source| Error::Read { subject: subject.clone(), source };
    let answer = link.request(subject.clone(), Request::new().payload(body)).await.map_err(failed)?;
    serde_json::from_slice(&answer.payload).map_err(|error| failed(Box::new(error)))
}

/// Whether no server answered, which for a publish means that no stream takes the subject.
pub fn is_no_responders_error(error: &Error) -> bool {
    matches!(error, Error::Publish { source, .. } if kind(source) == Some(RequestErrorKind::NoResponders))
}

/// Reads the last message of a subject from the stream's leader.
///
/// Any replica may answer a direct get, even one that lags behind; a decision about a run must not rest on that.
pub(crate) async fn latest(link: &Link, stream: &str, subject: &str) -> Result<Option<Raw>, Error> {
    get::one(link, stream, format!(r#"{{"last_by_subj":"{subject}"}}"#)).await
}

/// A stored message.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its subject.
    pub subject: String,
    /// Its sequence.
    pub sequence: u64,
    /// When it was stored, RFC 3339.
    pub at: String,
    /// Its headers, with those of the answer.
    pub headers: HeaderMap,
    /// Its payload.
    pub payload: Bytes,
}

/// Reads a stored message by a direct get; `query` is JSON as ADR-31 has it.
pub(crate) async fn direct_get(link: &Link, stream: &str, query: String) -> Result<Option<Stored>, Error> {
    let subject = format!("{}.DIRECT.GET.{stream}", link.api());
    let read = |source| Error::Read { subject: format!("{stream} {query}"), source };
    let request = Request::new().payload(Bytes::from(query.clone()));
    let message = link.request(Subject::from(subject), request).await.map_err(read)?;
    match message.status {
        Some(StatusCode::NOT_FOUND) => Ok(None),
        Some(status) if !status.is_success() => {
            let text = message.description.unwrap_or_default();
            Err(read(format!("{} {text}", status.as_u16()).into()))
        }
        _ => stored(message).ok_or_else(|| read("the answer names no sequence".into())).map(Some),
    }
}

pub(crate) fn stored(message: Message) -> Option<Stored> {
    let headers = message.headers?;
    let text = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    Some(Stored {
        subject: text("Nats-Subject")?,
        sequence: text("Nats-Sequence")?.parse().ok()?,
        at: text("Nats-Time-Stamp")?,
        payload: message.payload,
        headers,
    })
}

/// The revision of a stored message that the server republishes.
pub(crate) fn revision_of(message: &Message) -> Option<u64> {
    message.headers.as_ref()?.get("Nats-Sequence")?.as_str().parse().ok()
}

impl From<Raw> for Stored {
    /// With those of its headers that can be read.
    fn from(Raw { subject, sequence, at, headers, payload }: Raw) -> Self {
        Self { subject, sequence, at: at.to_string(), headers: raw::readable(&headers), payload }
    }
}

impl Stored {
    /// The headers the message was published with; `None` if there were none.
    pub fn job_headers(&self) -> Option<HeaderMap> {
        let answers = [
            "Nats-Stream",
            "Nats-Subject",
            "Nats-Sequence",
            "Nats-Time-Stamp",
            "Nats-Num-Pending",
            "Nats-Last-Sequence",
        ];
        let headers = kept(Some(&self.headers), |name| !answers.contains(&name));
        (!headers.is_empty()).then_some(headers)
    }
}
