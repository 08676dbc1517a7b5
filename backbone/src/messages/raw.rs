//! Stored messages byte for byte: reads them without parsing any header, and finds what the client library cannot read
//! in them.
//!
//! The check here must agree with the client's own parser, line for line: what the client cannot read ends its
//! connection, so it must be found; what it can read must not be taken for broken. A test runs both on the same bytes.
//! The check is stricter in one point: only the server sets a status in the first header line, so a message with one is
//! never a job.

use std::collections::HashSet;
use std::str::FromStr as _;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longshore_domain::run::MessageId;
use longshore_domain::{SmolStr, Timestamp};
use serde::Deserialize;

use crate::connection::link::Link;
use crate::error::Error;
use crate::lanes::delivery::{AckToken, Delivery};
use crate::messages::refusal::{NO_MESSAGE, NO_STREAM, Refusal};

#[derive(Debug, Clone)]
pub(crate) struct Raw {
    /// Its subject; bytes in it that are not UTF-8 appear as U+FFFD.
    pub(crate) subject: String,
    pub(crate) sequence: u64,
    pub(crate) at: Timestamp,
    /// Its headers, including their first line; empty if it has none.
    pub(crate) headers: Bytes,
    pub(crate) payload: Bytes,
}

impl Raw {
    /// The message as if it had been delivered, with these of its headers.
    pub(crate) fn into_delivery(self, stream: &str, headers: HeaderMap, ack_token: AckToken) -> Delivery {
        let message = MessageId { stream: SmolStr::from(stream), sequence: self.sequence, at: self.at };
        let headers = (!headers.is_empty()).then_some(headers);
        Delivery::of_stored(message, self.subject, self.payload, headers, ack_token)
    }
}

#[derive(Deserialize)]
struct MessageAnswer {
    message: Option<StoredMessage>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct StoredMessage {
    subject: String,
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    time: String,
}

/// The stored message of each subject, from this sequence on, as the stream's leader has them; the subject may have
/// wildcards. Reads them one by one: for buckets that have few.
pub(crate) async fn all(link: &Link, stream: &str, subject: &str, mut from: u64) -> Result<Vec<Raw>, Error> {
    let mut all = Vec::new();
    while let Some(raw) = next(link, stream, subject, from).await? {
        from = raw.sequence + 1;
        all.push(raw);
    }
    Ok(newest(all))
}

/// The last message of each subject: one that is written anew while all are read comes twice.
fn newest(mut all: Vec<Raw>) -> Vec<Raw> {
    let mut seen = HashSet::new();
    all.reverse();
    all.retain(|raw| seen.insert(raw.subject.clone()));
    all.reverse();
    all
}

/// The stored message at a sequence, as the stream's leader has it.
pub(crate) async fn at(link: &Link, stream: &str, sequence: u64) -> Result<Option<Raw>, Error> {
    get(link, stream, format!(r#"{{"seq":{sequence}}}"#)).await
}

/// The first message under a subject, which may have wildcards, from a sequence on, as the stream's leader has it.
pub(crate) async fn next(link: &Link, stream: &str, subject: &str, from: u64) -> Result<Option<Raw>, Error> {
    get(link, stream, format!(r#"{{"seq":{},"next_by_subj":"{subject}"}}"#, from.max(1))).await
}

/// Reads a stored message from the stream's leader; `query` is JSON such as `{"seq":7}`. A stream that does not exist
/// has none.
pub(super) async fn get(link: &Link, stream: &str, query: String) -> Result<Option<Raw>, Error> {
    let what = format!("{stream} {query}");
    let request = Request::new().payload(Bytes::from(query));
    match link.request(format!("{}.STREAM.MSG.GET.{stream}", link.api()), request).await {
        Ok(answer) => found(what, &answer.payload),
        Err(source) => Err(Error::Read { subject: what, source }),
    }
}

fn found(what: String, answer: &[u8]) -> Result<Option<Raw>, Error> {
    let failed = |source| Error::Read { subject: what.clone(), source };
    let answer: MessageAnswer = serde_json::from_slice(answer).map_err(|error| failed(Box::new(error)))?;
    let found = match answer {
        MessageAnswer { message: Some(found), .. } => found,
        MessageAnswer { error: Some(refusal), .. }
            if NO_MESSAGE.contains(&refusal.err_code) || refusal.err_code == NO_STREAM =>
        {
            return Ok(None);
        }
        MessageAnswer { error: Some(refusal), .. } => return Err(failed(Box::new(refusal))),
        MessageAnswer { .. } => return Err(failed("neither a message nor an error".into())),
    };
    let bytes = |text: &str| STANDARD.decode(text).map(Bytes::from).map_err(|error| failed(Box::new(error)));
    Ok(Some(Raw {
        headers: bytes(&found.hdrs)?,
        payload: bytes(&found.data)?,
        at: Timestamp::parse(&found.time).unwrap_or_default(),
        subject: found.subject,
        sequence: found.seq,
    }))
}

/// The part of a message that the client library cannot read; `None`: it can read all of it.
pub(crate) fn fault(subject: &str, headers: &[u8]) -> Option<String> {
    if subject.contains('\u{fffd}') {
        return Some("subject: is not UTF-8".to_owned());
    }
    if headers.is_empty() {
        return None;
    }
    if subject.contains(char::is_whitespace) {
        return Some("subject: has a blank".to_owned());
    }
    parse(headers).err().map(|reason| format!("headers: {reason}"))
}

/// As [`fault`] for the headers of a message that came straight from the server, which may set a status.
pub(crate) fn fault_on_the_way(headers: &[u8]) -> Option<String> {
    text(headers).and_then(|text| read(text, Status::Allowed, &mut |_, _| {})).err()
}

/// The headers that can be read, line by line, whatever the other lines are.
pub(crate) fn readable(headers: &[u8]) -> HeaderMap {
    let mut all = HeaderMap::new();
    for line in headers.split(|byte| *byte == b'\n').skip(1) {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let Some((name, value)) = line.strip_suffix('\r').unwrap_or(line).split_once(':') else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::from_str(name), HeaderValue::from_str(value.trim())) {
            all.append(name, value);
        }
    }
    all
}

/// Parses headers from their bytes on the wire, for a message whose headers were not parsed when it was read.
pub(crate) fn parse(headers: &[u8]) -> Result<HeaderMap, String> {
    let mut all = HeaderMap::new();
    let text = text(headers)?;
    if !text.is_empty() {
        read(text, Status::Refused, &mut |name, value| all.append(name, value))?;
    }
    Ok(all)
}

/// Headers as text; the error names the first header that is none, if it has a name.
fn text(headers: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(headers).map_err(|error| {
        let before = &headers[..error.valid_up_to()];
        let line = &before[before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)..];
        let name = std::str::from_utf8(line).ok().and_then(|line| line.split_once(':')).map(|(name, _)| name);
        match name.filter(|name| HeaderName::from_str(name).is_ok()) {
            Some(name) => format!("{name} is not UTF-8"),
            None => "are not UTF-8".to_owned(),
        }
    })
}

/// Whether the first line may have a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Allowed,
    Refused,
}

/// Reads headers as the client library does, except for the status, which the library takes from the first line. Why
/// they cannot be read is logged, so it quotes no line: half a header may be a password.
fn read(text: &str, status: Status, take: &mut dyn FnMut(HeaderName, HeaderValue)) -> Result<(), String> {
    let mut lines = (1..).zip(text.lines()).peekable();
    match lines.next().and_then(|(_, first)| first.strip_prefix("NATS/1.0")) {
        None => return Err("do not begin with NATS/1.0".to_owned()),
        Some(rest) if status == Status::Allowed && is_status(rest.trim()) => {}
        Some(rest) if !rest.trim().is_empty() => return Err("have more than NATS/1.0 in the first line".to_owned()),
        Some(_) => {}
    }
    while let Some((number, line)) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| format!("line {number} has no colon"))?;
        let header = HeaderName::from_str(name).map_err(|_| format!("line {number} has a name that is not valid"))?;
        let mut value = value.trim_start().to_owned();
        while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        value.truncate(value.trim_end().len());
        let value = HeaderValue::from_str(&value).map_err(|_| format!("{name} has a carriage return in its value"))?;
        take(header, value);
    }
    Ok(())
}

/// Whether the client library can read the rest of a first line as a status and its description.
fn is_status(rest: &str) -> bool {
    let code = rest.split_once(' ').map_or(rest, |(code, _)| code.trim());
    code.parse::<StatusCode>().is_ok()
}

#[cfg(test)]
mod tests;
