//! Reads stored messages from their stream's leader, byte for byte.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longshore_domain::Timestamp;
use serde::Deserialize;
use tokio::time::timeout;

use crate::connection::link::Link;
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::refusal::{NO_MESSAGE, NO_STREAM, Refusal};

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
pub(crate) async fn all(link: &Link, stream: &str, subject: &str, from: u64) -> Result<Vec<Raw>, Error> {
    all_within(link, stream, subject, from, Duration::MAX).await
}

/// The same, but that the answer about each may take so long, however many there are.
pub(crate) async fn all_within(
    link: &Link,
    stream: &str,
    subject: &str,
    mut from: u64,
    within: Duration,
) -> Result<Vec<Raw>, Error> {
    let mut all = Vec::new();
    loop {
        let Ok(answer) = timeout(within, next(link, stream, subject, from)).await else {
            let source = format!("no answer within {} s", within.as_secs_f64()).into();
            return Err(Error::Read { subject: subject.to_owned(), source });
        };
        let Some(raw) = answer? else { return Ok(newest(all)) };
        from = raw.sequence + 1;
        all.push(raw);
    }
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
    one(link, stream, format!(r#"{{"seq":{sequence}}}"#)).await
}

/// The first message under a subject, which may have wildcards, from a sequence on, as the stream's leader has it.
pub(crate) async fn next(link: &Link, stream: &str, subject: &str, from: u64) -> Result<Option<Raw>, Error> {
    one(link, stream, format!(r#"{{"seq":{},"next_by_subj":"{subject}"}}"#, from.max(1))).await
}

/// Reads a stored message from the stream's leader; `query` is JSON such as `{"seq":7}`. A stream that does not exist
/// has none.
pub(super) async fn one(link: &Link, stream: &str, query: String) -> Result<Option<Raw>, Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_was_refused_does_not_speak_of_a_publish() {
        let answer = |json: &str| found(r#"S {"seq":0}"#.to_owned(), json.as_bytes());
        let error = answer(r#"{"error":{"code":400,"err_code":10025,"description":"bad request"}}"#).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(
            (error.to_string(), source),
            (r#"cannot read S {"seq":0}"#.into(), "bad request (code 10025)".into())
        );
        assert!(
            answer(r#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#).unwrap().is_none()
        );
        assert!(answer("{}").unwrap_err().to_string().starts_with("cannot read"));
        let raw = answer(r#"{"message":{"subject":"s","seq":7,"data":"YQ==","time":"2026-01-01T00:00:00Z"}}"#);
        let raw = raw.unwrap().unwrap();
        assert_eq!((raw.sequence, raw.payload.as_ref(), raw.headers.is_empty()), (7, b"a".as_slice(), true));
    }

    #[test]
    fn of_each_subject_the_newest_message_counts() {
        let raw = |subject: &str, sequence| Raw {
            subject: subject.to_owned(),
            sequence,
            at: Timestamp::default(),
            headers: Bytes::new(),
            payload: Bytes::new(),
        };
        let newest = newest(vec![raw("a", 1), raw("b", 2), raw("a", 3)]);
        assert_eq!(newest.iter().map(|raw| raw.sequence).collect::<Vec<_>>(), [2, 3]);
    }
}
