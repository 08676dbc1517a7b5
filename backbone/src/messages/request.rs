//! One request and its answer: confirmed publishes and reads of stored messages. The slow path, one request at a time;
//! the steps of every job go through the pipelines of [`crate::lanes::pull`] and [`crate::messages::window`].

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message, Request, RequestErrorKind, StatusCode, Subject};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::connection::link::Link;
use crate::error::Error;
use crate::messages::raw::{self, Raw};
use crate::messages::refusal::Refusal;
use crate::wire::header::{self, kept, names};

/// JetStream's answer to a publish, or its refusal.
#[derive(Debug, Clone, Deserialize)]
pub struct PubAck {
    /// Sequence in the stream.
    #[serde(default)]
    pub seq: u64,
    /// The server had it already, by its `Nats-Msg-Id`.
    #[serde(default)]
    pub duplicate: bool,
    /// Why it was refused.
    #[serde(default)]
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
        let mut headers = HeaderMap::new();
        headers.insert(names::EXPECTED, self.expected.to_string());
        headers.insert(names::TTL, header::ttl(self.lasts));
        headers
    }
}

/// Publishes and waits for the server's answer.
///
/// # Errors
/// [`Error::Refused`] is final; after [`Error::Publish`] it is not known whether the message was stored.
pub async fn publish(link: &Link, subject: String, headers: HeaderMap, payload: Bytes) -> Result<PubAck, Error> {
    let failed = |source| Error::Publish { subject: subject.clone(), source };
    let request = Request::new().headers(headers).payload(payload);
    let sent = Instant::now();
    let answer = link.request(subject.clone(), request).await;
    match &answer {
        Ok(_) => link.silent_writes().answered(&subject),
        Err(error) if has_timed_out(error.as_ref()) => link.silent_writes().add(&subject, sent, Instant::now()),
        Err(_) => {}
    }
    let message = answer.map_err(failed)?;
    let ack: PubAck = serde_json::from_slice(&message.payload).map_err(|error| failed(Box::new(error)))?;
    match ack.error {
        None => Ok(ack),
        Some(refusal) => Err(Error::Refused { subject, code: refusal.err_code, description: refusal.description }),
    }
}

/// The connection stands, and no answer came.
fn has_timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<async_nats::RequestError>().is_some_and(|error| error.kind() == RequestErrorKind::TimedOut)
}

/// Asks JetStream's API about a stream or consumer, and reads the answer.
///
/// # Errors
/// No answer, or one that cannot be read. A refusal is an answer.
pub(crate) async fn ask<A: DeserializeOwned>(link: &Link, subject: String, body: Bytes) -> Result<A, Error> {
    let failed = |source| Error::Read { subject: subject.clone(), source };
    let answer = link.request(subject.clone(), Request::new().payload(body)).await.map_err(failed)?;
    serde_json::from_slice(&answer.payload).map_err(|error| failed(Box::new(error)))
}

/// Whether no server answered, which for a publish means that no stream takes the subject.
#[must_use]
pub fn is_no_responders_error(error: &Error) -> bool {
    matches!(error, Error::Publish { source, .. } if is_no_responders(source.as_ref()))
}

/// The same for a read: no such stream.
#[must_use]
pub fn nobody_answered(error: &Error) -> bool {
    matches!(error, Error::Read { source, .. } if is_no_responders(source.as_ref()))
}

/// The same of a request as such: nobody got it.
pub(crate) fn is_no_responders(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<async_nats::RequestError>().is_some_and(|error| error.kind() == RequestErrorKind::NoResponders)
}

/// Reads the last message of a subject from the stream's leader.
///
/// Any replica may answer a direct get, even one that lags behind; a decision about a run must not rest on that.
///
/// # Errors
/// No answer, or one that is neither a message nor "not found".
pub(crate) async fn latest(link: &Link, api: &str, stream: &str, subject: &str) -> Result<Option<Raw>, Error> {
    raw::get(link, api, stream, format!(r#"{{"last_by_subj":"{subject}"}}"#)).await
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
///
/// # Errors
/// No answer, or one that is neither a message nor "not found".
pub async fn direct_get(link: &Link, api: &str, stream: &str, query: String) -> Result<Option<Stored>, Error> {
    let subject = format!("{api}.DIRECT.GET.{stream}");
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

impl From<Raw> for Stored {
    /// With those of its headers that can be read.
    fn from(Raw { subject, sequence, at, headers, payload }: Raw) -> Self {
        Self { subject, sequence, at: at.to_string(), headers: raw::readable(&headers), payload }
    }
}

impl Stored {
    /// The headers the message was published with; `None` if there were none.
    #[must_use]
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
