//! What can go wrong between a node and NATS: what was being done, to what, and the cause.

use std::error::Error as StdError;

/// A boxed cause.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// An error of the backbone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection.
    #[error("cannot connect to NATS at {url}")]
    Connect {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// The server cannot do what is needed.
    #[error("nats-server {found} is too old, {needed} or newer is needed")]
    ServerTooOld {
        /// Its version.
        found: String,
        /// The oldest that will do.
        needed: &'static str,
    },
    /// The server has no JetStream.
    #[error(
        "JetStream is not available at {url}: start nats-server with JetStream (-js), and see that the account may use it"
    )]
    NoJetStream {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// A stream cannot be brought into shape.
    #[error(
        "stream {stream} has {setting} {found}, wanted {wanted}; it cannot be changed in place: choose another namespace, or move its messages away and delete it"
    )]
    Shape {
        /// Which.
        stream: String,
        /// What of it.
        setting: &'static str,
        /// As it is.
        found: String,
        /// As it should be.
        wanted: String,
    },
    /// The server has not enough storage left to promise a stream its bytes.
    #[error(
        "the server has no room for stream {stream}: {wanted} MiB are to be reserved for it; raise the server's \
         jetstream max_file_store, or lower storage.jobs_max_bytes (ten lanes a queue), events_max_bytes or dlq_max_bytes"
    )]
    NoRoom {
        /// Which.
        stream: String,
        /// Its bound, in MiB: the server sets that much aside.
        wanted: i64,
    },
    /// A stream or consumer could not be made or read.
    #[error("cannot {doing} {name}")]
    Provision {
        /// What was being done.
        doing: &'static str,
        /// To what.
        name: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// A publish was not confirmed.
    #[error("cannot publish to {subject}")]
    Publish {
        /// Where.
        subject: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// A publish was refused by the stream.
    #[error("the publish to {subject} was refused: {description} (code {code})")]
    Refused {
        /// Where.
        subject: String,
        /// JetStream's error code.
        code: u64,
        /// In its words.
        description: String,
    },
    /// Something stored could not be read.
    #[error("cannot read {subject}")]
    Read {
        /// What.
        subject: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// A subscription failed.
    #[error("cannot subscribe to {subject}")]
    Subscribe {
        /// To what.
        subject: String,
        /// Why.
        #[source]
        source: Cause,
    },
    /// A file of credentials or certificates cannot be used.
    #[error("cannot use {path}")]
    File {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: Cause,
    },
}

impl Error {
    /// The error with its causes, on one line.
    #[must_use]
    pub fn with_causes(&self) -> String {
        use std::error::Error as _;
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(source) = cause {
            text.push_str(": ");
            text.push_str(&source.to_string());
            cause = source.source();
        }
        text
    }
}
