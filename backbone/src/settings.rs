//! What the backbone is set to: how NATS is reached, and what is stored for how long.

use std::path::PathBuf;
use std::time::Duration;

/// How NATS is reached. Everything here follows the habits of NATS tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Server addresses, separated by commas: `NATS_URL`.
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
}

impl Connection {
    /// A server without credentials.
    #[must_use]
    pub fn to(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            creds: None,
            nkey: None,
            user: None,
            password: None,
            token: None,
            ca: None,
            cert: None,
            key: None,
            jetstream_domain: None,
        }
    }
}

/// What is stored, where and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// First token of every subject and, in upper case, prefix of every stream.
    pub namespace: String,
    /// Replicas of every stream, 1 to 5.
    pub replicas: usize,
    /// What is found with more replicas, or holding more or longer, may be made smaller.
    pub allow_shrink: bool,
    /// Most jobs in a lane (a queue has ten); a full lane refuses the publish.
    pub jobs_max_messages: u64,
    /// Most bytes in a lane.
    pub jobs_max_bytes: u64,
    /// How long the event log is kept.
    pub events_max_age: Duration,
    /// Most bytes in the event log; the oldest events go first.
    pub events_max_bytes: u64,
    /// How long the record of a run that completed is kept.
    pub completed_max_age: Duration,
    /// How long the record of any other ended run is kept.
    pub failed_max_age: Duration,
    /// About how many run records are kept; near it completed ones are kept for shorter.
    pub runs_max_records: u64,
    /// How long dead letters are kept.
    pub dlq_max_age: Duration,
    /// Most bytes of dead letters; the oldest go first.
    pub dlq_max_bytes: u64,
    /// How long an idempotency key holds where the client does not say.
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
            idempotency_window: DAY,
            lease: Duration::from_secs(30),
            reply_prefix: "_INBOX".to_owned(),
        }
    }
}
