//! Errors between a node and NATS. Each says what was being done, to what, and the cause.

use std::error::Error as StdError;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;

/// JetStream's error code for a stream that is full.
pub(crate) const STREAM_FULL: u64 = 10_077;
/// JetStream's error codes where the server has no room for any stream.
const NO_ROOM: [u64; 2] = [10_047, 10_023];
/// Bytes of a value that are shown.
const SHOWN: usize = 512;

/// A boxed cause.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// An error of the backbone.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what it is about")]
pub enum Error {
    #[error("cannot connect to NATS at {url}")]
    Connect { url: String, source: Cause },
    #[error("nats-server {found} is too old, {needed} or newer is needed")]
    ServerTooOld { found: String, needed: &'static str },
    #[error(
        "what is stored here needs Longshore {version} or newer (format {needed}; this version knows up to {known}): \
         install that on this node"
    )]
    TooNew { needed: u32, version: String, known: u32 },
    #[error(
        "JetStream is not available at {url}: start nats-server with JetStream (-js), and see that the account may use it"
    )]
    NoJetStream { url: String, source: Cause },
    #[error(
        "stream {stream} has {setting} {found}, wanted {wanted}; it cannot be changed in place: choose another namespace, or move its messages away and delete it"
    )]
    Shape { stream: String, setting: &'static str, found: String, wanted: String },
    #[error(
        "the server has no room for stream {stream}: {wanted} MiB are to be reserved for it; raise the server's \
         jetstream max_file_store, or lower storage.jobs_max_bytes (ten lanes per queue), events_max_bytes or dlq_max_bytes"
    )]
    NoRoom { stream: String, wanted: i64 },
    /// The account may have no more streams. So many are needed for this node's queues.
    #[error(
        "stream {stream} cannot be made: the account may have no more streams; {needed} are needed in all: {} \
         and ten per queue; raise max_streams", needed % 10
    )]
    NoStreamLeft { stream: String, needed: usize },
    /// A stream or consumer could not be created or read.
    #[error("cannot {doing} {name}")]
    Provision { doing: &'static str, name: String, source: Cause },
    /// A publish was not confirmed.
    #[error("cannot publish to {subject}")]
    Publish { subject: String, source: Cause },
    /// A publish was refused by the stream, with JetStream's own code and description.
    #[error("the publish to {subject} was refused: {description} (code {code})")]
    Refused { subject: String, code: u64, description: String },
    /// Something stored could not be read.
    #[error("cannot read {subject}")]
    Read { subject: String, source: Cause },
    /// What is stored under a key is not what nodes of this version write there. Asking again does not help. A
    /// compare-and-set that is to replace the value must name its revision.
    #[error("what is stored under {subject} is not what nodes write")]
    Unreadable { subject: String, revision: u64, value: Bytes, source: Cause },
    #[error("cannot subscribe to {subject}")]
    Subscribe { subject: String, source: Cause },
    #[error("cannot use {path}")]
    File { path: String, source: Cause },
}

impl Error {
    /// Whether a stream takes no more, because it is full, or its server is.
    pub fn is_stream_full(&self) -> bool {
        matches!(self, Self::Refused { code: STREAM_FULL, .. }) || self.is_server_full()
    }

    /// Whether no stream takes any more, because the server has no room.
    pub fn is_server_full(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if NO_ROOM.contains(code))
    }

    /// The revision of a value that nodes did not write, if the error is that one.
    pub fn unreadable_at(&self) -> Option<u64> {
        if let Self::Unreadable { revision, .. } = self { Some(*revision) } else { None }
    }

    /// What is stored instead of what nodes write, as a person may look at it.
    pub fn stored_instead(&self) -> Option<String> {
        if let Self::Unreadable { value, .. } = self { Some(shown(value)) } else { None }
    }

    /// The error with its causes, on one line. Some errors of the client library have their cause's text as their own.
    pub fn with_causes(&self) -> String {
        use std::error::Error as _;
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(source) = cause {
            let own = source.to_string();
            if !text.ends_with(&own) {
                text = format!("{text}: {own}");
            }
            cause = source.source();
        }
        text
    }
}

/// A value as a person may look at it: its text, or its bytes in base64; the beginning, if it is long.
fn shown(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if text.len() > SHOWN => format!("{}…", &text[..text.floor_char_boundary(SHOWN)]),
        Ok(text) => text.to_owned(),
        Err(_) => {
            let kept = &value[..value.len().min(SHOWN)];
            format!("base64 {}", BASE64_STANDARD.encode(kept))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("request timed out: {0}")]
    struct TimedOut(#[source] std::io::Error);

    #[test]
    fn no_cause_is_said_twice() {
        let source = Box::new(TimedOut(std::io::Error::other("deadline has elapsed")));
        let error = Error::Publish { subject: "a.b".to_owned(), source };
        assert_eq!(error.with_causes(), "cannot publish to a.b: request timed out: deadline has elapsed");
        let error = Error::Publish { subject: "a.b".to_owned(), source: "no".into() };
        assert_eq!(error.with_causes(), "cannot publish to a.b: no");
    }

    #[test]
    fn a_value_is_shown_as_text_if_it_is_text() {
        assert_eq!(shown(br#"{"seq":7}"#), r#"{"seq":7}"#);
        assert_eq!(shown(b"\xff\x00"), "base64 /wA=");
        assert!(shown("ä".repeat(SHOWN).as_bytes()).len() <= SHOWN + "…".len());
    }
}
