//! The settings of the backbone: how NATS is reached, and what is stored for how long.

use std::path::PathBuf;
use std::time::Duration;

use crate::connection::address;

/// How NATS is reached. Everything here follows the habits of NATS tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Connection {
    /// Server addresses, separated by commas: `NATS_URL`. A user and password, or a token, may stand before an `@`;
    /// they count if no credentials are set below.
    pub url: String,
    /// A credentials file: `NATS_CREDS`.
    pub creds: Option<PathBuf>,
    /// A file that holds an nkey seed: `NATS_NKEY`.
    pub nkey: Option<PathBuf>,
    /// User name: `NATS_USER`.
    pub user: Option<String>,
    /// Password: `NATS_PASSWORD`.
    pub password: Option<String>,
    /// Token: `NATS_TOKEN`.
    pub token: Option<String>,
    /// A file of root certificates: `NATS_CA`.
    pub ca: Option<PathBuf>,
    /// Client certificate: `NATS_CERT`.
    pub cert: Option<PathBuf>,
    /// Key of the client certificate: `NATS_KEY`.
    pub key: Option<PathBuf>,
    /// JetStream domain, for leaf nodes: `NATS_JS_DOMAIN`.
    pub jetstream_domain: Option<String>,
    /// The first part of the subjects of answers, `_INBOX` by default: `NATS_INBOX_PREFIX`. Nodes answer only below
    /// subjects that begin with `_INBOX`.
    pub inbox_prefix: Option<String>,
}

impl Connection {
    /// The server addresses without users, passwords and tokens: fit to be shown.
    pub fn shown_url(&self) -> String {
        address::read(&self.url).0.join(",")
    }

    /// Whether the addresses contain a user or a token.
    pub fn has_login_in_url(&self) -> bool {
        !matches!(address::read(&self.url).1, Ok(None))
    }

    /// A server without credentials.
    pub fn to(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }
}

/// What is stored, where and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// First token of every subject and, in upper case, prefix of every stream.
    pub namespace: String,
    /// Replicas of every stream, 1 to 5.
    pub replicas: usize,
    /// Whether a stream that has more replicas than set, or holds more or for longer, may be reduced.
    pub allow_shrink: bool,
    /// Maximum number of jobs in a lane (a queue has ten lanes); a full lane refuses the publish.
    pub jobs_max_messages: u64,
    /// Maximum bytes in a lane.
    pub jobs_max_bytes: u64,
    /// How long the event log is kept.
    pub events_max_age: Duration,
    /// Maximum bytes in the event log; the oldest events are dropped first.
    pub events_max_bytes: u64,
    /// How long the record of a run that completed is kept.
    pub completed_max_age: Duration,
    /// How long the record of any other finished run is kept.
    pub failed_max_age: Duration,
    /// About how many run records are kept; near this number, completed ones are kept for a shorter time.
    pub runs_max_records: u64,
    /// How long dead letters are kept.
    pub dlq_max_age: Duration,
    /// Maximum bytes of dead letters; the oldest are dropped first.
    pub dlq_max_bytes: u64,
    /// Maximum bytes of what is stored of concurrency limits and keys; a full bucket refuses new keys.
    pub concurrency_max_bytes: u64,
    /// Maximum bytes of what nodes share, with what was taken of rate limits; the same.
    pub control_max_bytes: u64,
    /// How long the audit's entries are kept.
    pub audit_max_age: Duration,
    /// Maximum bytes of the audit; the oldest entries are dropped first.
    pub audit_max_bytes: u64,
    /// How long an idempotency key holds if the client does not say.
    pub idempotency_window: Duration,
    /// How long a node may be silent before its jobs go to another.
    pub lease: Duration,
    /// Nodes answer only to reply subjects that begin with this.
    pub reply_prefix: String,
}

const DAY: Duration = Duration::from_secs(86_400);

impl Default for Storage {
    fn default() -> Self {
        Self {
            namespace: "longshore".to_owned(),
            replicas: 1,
            allow_shrink: false,
            jobs_max_messages: 10_000_000,
            jobs_max_bytes: 512 << 20,
            events_max_age: 7 * DAY,
            events_max_bytes: 2 << 30,
            completed_max_age: DAY,
            failed_max_age: 7 * DAY,
            runs_max_records: 1_000_000,
            dlq_max_age: 90 * DAY,
            dlq_max_bytes: 1 << 30,
            concurrency_max_bytes: 64 << 20,
            control_max_bytes: 64 << 20,
            audit_max_age: 365 * DAY,
            audit_max_bytes: 64 << 20,
            idempotency_window: DAY,
            lease: Duration::from_secs(30),
            reply_prefix: "_INBOX".to_owned(),
        }
    }
}
