//! Errors between a node and NATS. Each says what was being done, to what, and the cause.

use std::error::Error as StdError;

use bytes::Bytes;

use crate::messages::refusal::STREAM_FULL;
use crate::unreadable;

/// A boxed cause.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// An error of the backbone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection.
    #[error("cannot connect to NATS at {url}")]
    Connect {
        /// The server's URL.
        url: String,
        /// The cause.
        source: Cause,
    },
    /// The server cannot do what is needed.
    #[error("nats-server {found} is too old, {needed} or newer is needed")]
    ServerTooOld {
        /// Its version.
        found: String,
        /// The oldest version that is accepted.
        needed: &'static str,
    },
    /// A newer version has stored what this one cannot read.
    #[error(
        "what is stored here needs Longshore {version} or newer (format {needed}; this version knows up to {known}): \
         install that on this node"
    )]
    TooNew {
        /// The format that a reader must know.
        needed: u32,
        /// The first version that knows it.
        version: String,
        /// The newest format that this version knows.
        known: u32,
    },
    /// The server has no JetStream.
    #[error(
        "JetStream is not available at {url}: start nats-server with JetStream (-js), and see that the account may use it"
    )]
    NoJetStream {
        /// The server's URL.
        url: String,
        /// The cause.
        source: Cause,
    },
    /// A stream has a setting that cannot be changed to the wanted one.
    #[error(
        "stream {stream} has {setting} {found}, wanted {wanted}; it cannot be changed in place: choose another namespace, or move its messages away and delete it"
    )]
    Shape {
        /// The stream.
        stream: String,
        /// The setting.
        setting: &'static str,
        /// Its value.
        found: String,
        /// The wanted value.
        wanted: String,
    },
    /// The server has not enough storage left to reserve a stream's bytes.
    #[error(
        "the server has no room for stream {stream}: {wanted} MiB are to be reserved for it; raise the server's \
         jetstream max_file_store, or lower storage.jobs_max_bytes (ten lanes per queue), events_max_bytes or dlq_max_bytes"
    )]
    NoRoom {
        /// The stream.
        stream: String,
        /// Its size limit, in MiB: the server reserves that much.
        wanted: i64,
    },
    /// The account may have no more streams.
    #[error(
        "stream {stream} cannot be made: the account may have no more streams; {needed} are needed in all: {} \
         and ten per queue; raise max_streams", needed % 10
    )]
    NoStreamLeft {
        /// The stream.
        stream: String,
        /// How many are needed, for this node's queues.
        needed: usize,
    },
    /// A stream or consumer could not be created or read.
    #[error("cannot {doing} {name}")]
    Provision {
        /// What was being done.
        doing: &'static str,
        /// The stream or consumer.
        name: String,
        /// The cause.
        source: Cause,
    },
    /// A publish was not confirmed.
    #[error("cannot publish to {subject}")]
    Publish {
        /// The subject.
        subject: String,
        /// The cause.
        source: Cause,
    },
    /// A publish was refused by the stream.
    #[error("the publish to {subject} was refused: {description} (code {code})")]
    Refused {
        /// The subject.
        subject: String,
        /// JetStream's error code.
        code: u64,
        /// JetStream's description.
        description: String,
    },
    /// Something stored could not be read.
    #[error("cannot read {subject}")]
    Read {
        /// What was read.
        subject: String,
        /// The cause.
        source: Cause,
    },
    /// What is stored under a key is not what nodes of this version write there. Asking again does not help.
    #[error("what is stored under {subject} is not what nodes write")]
    Unreadable {
        /// The key's subject.
        subject: String,
        /// Its revision: a compare-and-set that is to replace it must name it.
        revision: u64,
        /// What is stored.
        value: Bytes,
        /// Why it cannot be read.
        source: Cause,
    },
    /// A subscription failed.
    #[error("cannot subscribe to {subject}")]
    Subscribe {
        /// The subject.
        subject: String,
        /// The cause.
        source: Cause,
    },
    /// A file of credentials or certificates cannot be used.
    #[error("cannot use {path}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        source: Cause,
    },
}

impl Error {
    /// Whether a stream takes no more, because it is full.
    #[must_use]
    pub fn is_stream_full(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if STREAM_FULL.contains(code))
    }

    /// The revision of a value that nodes did not write, if the error is that one.
    #[must_use]
    pub fn unreadable_at(&self) -> Option<u64> {
        if let Self::Unreadable { revision, .. } = self { Some(*revision) } else { None }
    }

    /// What is stored instead of what nodes write, as a person may look at it.
    #[must_use]
    pub fn stored_instead(&self) -> Option<String> {
        if let Self::Unreadable { value, .. } = self { Some(unreadable::shown(value)) } else { None }
    }

    /// The error with its causes, on one line. Some errors of the client library have their cause's text as their own.
    #[must_use]
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
}
