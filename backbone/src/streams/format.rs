//! The format of what is stored, and which nodes can read it.
//!
//! One number stands for records, headers, buckets and streams together. A version that stores what an older one would
//! read wrongly, and not merely skip, has a higher [`FORMAT`], and writes under `min_reader` in the control bucket what
//! a reader needs, before it stores any of that. A node reads this before it touches anything else.

use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::messages::refusal::NO_STREAM;
use crate::messages::request;
use crate::wire::subject::Names;

/// The format that this version reads and writes.
const FORMAT: u32 = 1;
const KEY: &str = "min_reader";

/// What a node must know to read the data.
#[derive(Debug, Serialize, Deserialize)]
struct MinReader {
    min_reader: u32,
    /// The first version of Longshore that reads it.
    version: String,
}

/// Reads which format the data need; `false`: they do not say, as before the cluster's first start.
pub(crate) async fn check(js: &Context, names: &Names) -> Result<bool, Error> {
    let subject = names.key("control", KEY);
    let failed = |source| Error::Read { subject: subject.clone(), source };
    let bucket =
        js.get_stream_no_info(names.bucket_stream("control")).await.map_err(|error| failed(Box::new(error)))?;
    let stored = match bucket.get_last_raw_message_by_subject(&subject).await {
        Ok(stored) => stored,
        Err(error) => match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => return Ok(false),
            LastRawMessageErrorKind::JetStream(refusal) if refusal.error_code().0 == NO_STREAM => {
                return Ok(false);
            }
            _ => return Err(failed(Box::new(error))),
        },
    };
    match serde_json::from_slice::<MinReader>(&stored.payload) {
        Ok(needs) if needs.min_reader <= FORMAT => Ok(true),
        Ok(MinReader { min_reader, version }) => Err(Error::TooNew { needed: min_reader, version, known: FORMAT }),
        Err(error) => {
            let (revision, value) = (stored.sequence, stored.payload);
            Err(Error::Unreadable { subject, revision, value, source: Box::new(error) })
        }
    }
}

/// Has the data say which format they need, if they do not yet.
pub(crate) async fn mark(js: &Context, names: &Names) -> Result<(), Error> {
    let subject = names.key("control", KEY);
    let needs = MinReader { min_reader: FORMAT, version: env!("CARGO_PKG_VERSION").to_owned() };
    let headers = request::conditions(Some(0), None);
    let written = match js.publish_with_headers(subject.clone(), headers, request::json(&needs)).await {
        Ok(confirmed) => confirmed.await.map(drop),
        Err(error) => Err(error),
    };
    match written {
        // Another node has done so meanwhile, perhaps one of another version.
        Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => check(js, names).await.map(drop),
        Err(error) => Err(Error::Publish { subject, source: Box::new(error) }),
        Ok(()) => Ok(()),
    }
}
