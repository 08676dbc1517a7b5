//! Every setting, once.
//!
//! The commented file, `config check`, `config show`, the names in the environment and the errors come from here. To
//! add a setting: an entry, its line in a table below, and the line in `check` that reads it. Defaults are taken from
//! the crates that use them, so that a node embedded in another program has the same.

use std::time::Duration;

use longshore_backbone::Storage;
use longshore_domain::JobType;
use longshore_domain::policy::{History, QueuePolicy, TenantPolicy, TypePolicy};

use super::concurrency_entries::{
    ANNOUNCEMENTS, CONCURRENCY_HOLD, KEY_CONCURRENCY, ON_BUSY, ORDERED, SLOTS, TYPE_CONCURRENCY,
};
use super::kind::{JitterForm, Size, Spread, Text, Token, check_token};
use super::limit_entries::{LIMIT, LIMITS, RATE_LIMIT, TENANT_RATE_LIMIT};
use super::schedules::SCHEDULES;
use super::schema::Field::{self, Named as Names, Setting as One};
use super::schema::{Entry, Named, Table};
use super::schemas::{SCHEMA, SCHEMA_VERSION, SCHEMAS};
use super::{command, email, http_call};

pub(crate) mod audit;
pub(crate) mod breaker;
pub(crate) mod fairness;
pub(crate) mod faults;
pub(crate) mod http;
mod intake;
mod never_served;
pub(crate) mod pressure;
pub(crate) mod search;
pub(crate) mod telemetry;
pub(crate) mod webhooks;

use fairness::{QUEUE_FAIR_BY, TENANT_WEIGHT, TYPE_WEIGHT};
use intake::{ADMISSION, IDEMPOTENCY};
pub(crate) use intake::{
    ADMISSION_TENANTS, ADMISSION_TYPES, IDEMPOTENCY_ON_MISMATCH, IDEMPOTENCY_RELEASE_ON, IDEMPOTENCY_WINDOW,
    PAYLOAD_MAX,
};
pub(crate) use never_served::NEVER_SERVED_GRACE;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// How long running jobs may take after a drain began, if nothing is set. Kubernetes kills after 30 s by default, too.
pub(crate) const SHUTDOWN_GRACE: Duration = secs(30);

pub(crate) static ROOT: Table = Table::of(
    "",
    &[
        One(&NAMESPACE),
        Field::Table { name: "node", table: &NODE, or: None },
        Field::Table { name: "http", table: &http::HTTP, or: None },
        Field::Table { name: "audit", table: &audit::AUDIT, or: None },
        Field::Table { name: "webhooks", table: &webhooks::WEBHOOKS, or: None },
        Field::Table { name: "faults", table: &faults::FAULTS, or: None },
        Field::Table { name: "pressure", table: &pressure::PRESSURE, or: None },
        Field::Table { name: "telemetry", table: &telemetry::TELEMETRY, or: None },
        Field::Table { name: "storage", table: &STORAGE, or: None },
        Field::Table { name: "idempotency", table: &IDEMPOTENCY, or: None },
        Field::Table { name: "admission", table: &ADMISSION, or: None },
        Field::Table { name: "email", table: &email::EMAIL, or: None },
        Names(&QUEUES),
        Names(&RETRIES),
        Field::Table { name: "defaults", table: &TYPE, or: None },
        Names(&TYPES),
        Names(&LIMITS),
        Names(&TENANTS),
        Names(&SCHEDULES),
    ],
);

pub(crate) static NAMESPACE: Entry<Token> = Entry::new(
    "namespace",
    || Token(Storage::default().namespace),
    "First token of every subject and, in upper case, prefix of every stream: a-z, 0-9 and -. Several clusters can share \
     one server.",
);

// [node]

static NODE: Table = Table::of(
    "This node.",
    &[One(&NODE_NAME), One(&GATEWAY), One(&LEASE), One(&SHUTDOWN_GRACE_ENTRY), One(&REPLY_PREFIX)],
);

pub(crate) static NODE_NAME: Entry<Option<Token>> = Entry::new(
    "name",
    || None,
    "The node's name in events, records and logs. Unique in the cluster. If it is not set, the node makes one of the \
     machine's name and some random letters.",
)
.example("\"node-1\"");

pub(crate) static GATEWAY: Entry<bool> = Entry::new(
    "gateway",
    || false,
    "A gateway answers the API and does what nodes do for all, but serves no queue: it declares those that it names, and their \
     max_waiting holds for what is submitted to it. Nodes that do the work may then come and go, down to none.",
);

pub(crate) static LEASE: Entry<Duration> = Entry::new(
    "lease",
    || Storage::default().lease,
    "How long a node may be silent before its jobs go to another node. The node renews leases at a third of this time. \
     An election among NATS servers takes 4 to 8 s: with a shorter lease, running jobs lose theirs then. The same on all \
     nodes.",
)
.at_least(|| secs(1));

pub(crate) static SHUTDOWN_GRACE_ENTRY: Entry<Duration> = Entry::new(
    "shutdown_grace",
    || SHUTDOWN_GRACE,
    "How long running jobs may take to end after SIGTERM. Jobs that still run then are returned; their attempt starts \
     again on another node.",
);

pub(crate) static REPLY_PREFIX: Entry<Text> = Entry::new(
    "reply_prefix",
    || Text(Storage::default().reply_prefix),
    "A node answers only to reply subjects that begin with this, so that no client can use the node's permissions to \
     write elsewhere.",
);

// [storage]

/// How long the server remembers message ids; it refuses a stream that keeps its messages for less.
const DUPLICATE_WINDOW: Duration = secs(120);

static STORAGE: Table = Table::of(
    "What is stored in JetStream, and for how long. The same on all nodes of a cluster.",
    &[
        One(&REPLICAS),
        One(&ALLOW_SHRINK),
        One(&JOBS_MAX_MESSAGES),
        One(&JOBS_MAX_BYTES),
        One(&EVENTS_MAX_AGE),
        One(&EVENTS_MAX_BYTES),
        One(&COMPLETED_MAX_AGE),
        One(&FAILED_MAX_AGE),
        One(&RUNS_MAX_RECORDS),
        One(&DLQ_MAX_AGE),
        One(&DLQ_MAX_BYTES),
        One(&CONCURRENCY_MAX_BYTES),
        One(&CONTROL_MAX_BYTES),
    ],
);

pub(crate) static REPLICAS: Entry<usize> = Entry::new(
    "replicas",
    || Storage::default().replicas,
    "On how many NATS servers everything is stored. 3 survives the loss of any one server.",
)
.at_least(|| 1)
.at_most(|| 5);

pub(crate) static ALLOW_SHRINK: Entry<bool> = Entry::new(
    "allow_shrink",
    || Storage::default().allow_shrink,
    "Whether a node may take replicas, bytes, messages or age away from a stream that has more than is set here. If \
     false, such a stream stays as it is, and the node logs a warning.",
);

pub(crate) static JOBS_MAX_MESSAGES: Entry<u64> = Entry::new(
    "jobs_max_messages",
    || Storage::default().jobs_max_messages,
    "At most so many jobs in one lane. Every queue has nine lanes, one per priority, and one for parked jobs. A full lane \
     refuses further jobs.",
)
.at_least(|| 1);

pub(crate) static JOBS_MAX_BYTES: Entry<Size> =
    Entry::new("jobs_max_bytes", || Size(Storage::default().jobs_max_bytes), "At most so many bytes in one lane.")
        .at_least(|| Size(1 << 20));

pub(crate) static EVENTS_MAX_AGE: Entry<Duration> =
    Entry::new("events_max_age", || Storage::default().events_max_age, "How long the event log is kept.")
        .at_least(|| DUPLICATE_WINDOW);

pub(crate) static EVENTS_MAX_BYTES: Entry<Size> = Entry::new(
    "events_max_bytes",
    || Size(Storage::default().events_max_bytes),
    "At most so many bytes in the event log; the oldest events are dropped first.",
)
.at_least(|| Size(1 << 20));

pub(crate) static COMPLETED_MAX_AGE: Entry<Duration> = Entry::new(
    "completed_max_age",
    || Storage::default().completed_max_age,
    "How long the record of a run that completed is kept. If this is shorter than two leases, a job may run again after \
     a crash.",
)
.at_least(|| secs(1));

pub(crate) static FAILED_MAX_AGE: Entry<Duration> = Entry::new(
    "failed_max_age",
    || Storage::default().failed_max_age,
    "How long the record of any other ended run is kept.",
)
.at_least(|| secs(1));

pub(crate) static RUNS_MAX_RECORDS: Entry<u64> = Entry::new(
    "runs_max_records",
    || Storage::default().runs_max_records,
    "About how many run records are kept (0.9 KiB of the server's memory each). Near this number, records of completed \
     runs are kept for a shorter time.",
)
.at_least(|| 1_000);

pub(crate) static DLQ_MAX_AGE: Entry<Duration> = Entry::new(
    "dlq_max_age",
    || Storage::default().dlq_max_age,
    "How long dead letters are kept, unless they are discarded or replayed before. They may outlive the record of their \
     run (keep, failed_max_age).",
)
.at_least(|| DUPLICATE_WINDOW);

pub(crate) static DLQ_MAX_BYTES: Entry<Size> = Entry::new(
    "dlq_max_bytes",
    || Size(Storage::default().dlq_max_bytes),
    "At most so many bytes of dead letters; the oldest are dropped first.",
)
.at_least(|| Size(1 << 20));

pub(crate) static CONCURRENCY_MAX_BYTES: Entry<Size> = Entry::new(
    "concurrency_max_bytes",
    || Size(Storage::default().concurrency_max_bytes),
    "At most so many bytes of what is stored of concurrency limits; beyond four fifths, jobs of further keys wait.",
)
.at_least(|| Size(1 << 20));

pub(crate) static CONTROL_MAX_BYTES: Entry<Size> = Entry::new(
    "control_max_bytes",
    || Size(Storage::default().control_max_bytes),
    "At most so many bytes of what nodes share; beyond four fifths, jobs of further limit keys wait.",
)
.at_least(|| Size(1 << 20));

// [queues.<name>]

pub(crate) static QUEUES: Named = Named {
    name: "queues",
    doc: "The queues that this node declares and serves. Without any, \"main\" alone; with some, exactly those.",
    example: ("main", &["concurrency", "aging", "max_waiting", "fair_by"]),
    check: check_token,
    table: &QUEUE,
    fallback: None,
};

static QUEUE: Table =
    Table::of("", &[One(&QUEUE_CONCURRENCY), One(&QUEUE_AGING), One(&QUEUE_MAX_WAITING), One(&QUEUE_FAIR_BY)]);

pub(crate) static QUEUE_CONCURRENCY: Entry<usize> = Entry::new(
    "concurrency",
    || QueuePolicy::default().concurrency,
    "How many jobs of this queue run at once on this node.",
)
.at_least(|| 1)
.at_most(|| 10_000);

pub(crate) static QUEUE_AGING: Entry<Duration> = Entry::new(
    "aging",
    || QueuePolicy::default().aging,
    "How much later a job of the next more urgent priority may come and still overtake. \"0s\": strict priorities; then \
     the least urgent jobs may wait for ever.",
);

pub(crate) static QUEUE_MAX_WAITING: Entry<Option<u64>> = Entry::new(
    "max_waiting",
    || QueuePolicy::default().max_waiting,
    "With so many jobs that are enqueued and have not started, submit answers 503. Jobs that wait for a time do not count, \
     and bare publishes are not refused (storage.jobs_max_messages bounds those). The same on all nodes.",
)
.example("100000")
.at_least(|| Some(1));

// [retries.<name>], and every `backoff`

pub(crate) static RETRIES: Named = Named {
    name: "retries",
    doc: "Back-off presets. A type's backoff, or a job's header Longshore-Retry, names one.",
    example: ("fast", &["base", "factor", "max", "jitter", "spread"]),
    check: check_token,
    table: &BACKOFF,
    fallback: None,
};

static BACKOFF: Table = Table::of(
    "The delays between attempts: base × factorⁿ, at most max.",
    &[
        One(&BACKOFF_BASE),
        One(&BACKOFF_FACTOR),
        One(&BACKOFF_MAX),
        One(&BACKOFF_JITTER),
        One(&BACKOFF_SPREAD),
        One(&BACKOFF_DELAYS),
    ],
);

/// 1 s × 3ⁿ up to 10 min, ± 25 %: the domain's default back-off, in parts. A test compares the two.
pub(crate) static BACKOFF_BASE: Entry<Duration> =
    Entry::new("base", || secs(1), "Delay after the first failure.").at_least(|| millis(1));

pub(crate) static BACKOFF_FACTOR: Entry<f64> =
    Entry::new("factor", || 3.0, "Growth with every further failure.").at_least(|| 1.0).at_most(|| 1_000.0);

pub(crate) static BACKOFF_MAX: Entry<Duration> =
    Entry::new("max", || secs(600), "The longest delay, before jitter.").at_least(|| millis(1));

pub(crate) static BACKOFF_JITTER: Entry<JitterForm> = Entry::new(
    "jitter",
    || JitterForm::Proportional,
    "How delays are spread, so that jobs that failed together do not come back together. \"proportional\": ± spread, a \
     share of the delay; \"additive\": up to spread more, a duration; \"full\": anything from nothing to the delay.",
);

pub(crate) static BACKOFF_SPREAD: Entry<Option<Spread>> =
    Entry::new("spread", || None, "How far: 0.25 if jitter is proportional and nothing is set.").example("0.25");

pub(crate) static BACKOFF_DELAYS: Entry<Vec<Duration>> =
    Entry::new("delays", Vec::new, "The delays one by one; the last serves for all that follow.")
        .example("[\"1s\", \"5s\", \"25s\", \"125s\"]")
        .alone();

pub(crate) static BACKOFF_PRESET: Entry<Text> =
    Entry::new("backoff", || Text(String::new()), "The name of a preset under [retries].").example("\"fast\"");

// [defaults] and [types.<name>]

static TYPE: Table = Table::of(
    "How jobs are treated, if [types] does not say otherwise.",
    &[
        One(&HANDLER),
        Field::Table { name: http_call::TABLE, table: &http_call::HTTP_CALL, or: None },
        Field::Table { name: command::TABLE, table: &command::COMMAND, or: None },
        One(&MAX_ATTEMPTS),
        One(&TIMEOUT),
        Field::Table { name: "backoff", table: &BACKOFF, or: Some(&BACKOFF_PRESET) },
        One(&HEARTBEAT),
        One(&SLOTS),
        One(&ANNOUNCEMENTS),
        One(&NO_HANDLER_GRACE),
        One(&NEVER_SERVED_GRACE),
        One(&HISTORY),
        One(&TIMEOUT_MAX),
        One(&MAX_SNOOZES),
        One(&KEEP),
        One(&PAYLOAD_MAX),
        One(&SCHEMA),
        One(&SCHEMAS),
        One(&SCHEMA_VERSION),
        One(&search::SEARCH),
        One(&search::REDACT),
        One(&RETRYABLE_CODES),
        One(&PERMANENT_CODES),
        Field::Table { name: "rate_limit", table: &RATE_LIMIT, or: None },
        One(&LIMIT),
        One(&TYPE_CONCURRENCY),
        One(&KEY_CONCURRENCY),
        One(&CONCURRENCY_HOLD),
        One(&ON_BUSY),
        One(&ORDERED),
        One(&TYPE_WEIGHT),
        Field::Table { name: breaker::BREAKER_NAME, table: &breaker::BREAKER, or: Some(&breaker::OFF) },
    ],
);

pub(crate) static TYPES: Named = Named {
    name: "types",
    doc: "Types with settings of their own: everything that [defaults] has. A name with dots stands in quotes.",
    example: ("email.send", &["handler", "max_attempts", "timeout", "backoff"]),
    check: |name| JobType::parse(name).map(|_| ()).map_err(|error| error.reason),
    table: &TYPE,
    fallback: Some("defaults"),
};

pub(crate) static HANDLER: Entry<Option<Text>> = Entry::new(
    "handler",
    || None,
    "Which handler runs the jobs: \"remote\" (programs that subscribe to longshore.work.…), or one inside the node: \
     \"http.call\", \"command.run\", \"email.send\", or for trials \"noop\", \"echo\", \"sleep\", \"fail\". If it is not set, a handler inside the node runs the type that has its name, \
     and remote handlers run every other type.",
)
.example("\"remote\"");

pub(crate) static MAX_ATTEMPTS: Entry<u32> = Entry::new(
    "max_attempts",
    || TypePolicy::default().max_attempts,
    "Attempts before a job goes to the dead letters. A job may say otherwise (Longshore-Max-Attempts).",
)
.at_least(|| 1)
.at_most(|| 1_000);

pub(crate) static TIMEOUT: Entry<Duration> = Entry::new(
    "timeout",
    || TypePolicy::default().timeout,
    "Time limit of one attempt. A job may say otherwise (Longshore-Timeout).",
)
.at_least(|| millis(1));

pub(crate) static HEARTBEAT: Entry<Option<Duration>> = Entry::new(
    "heartbeat",
    || TypePolicy::default().heartbeat,
    "A remote handler that is silent for longer than this loses its attempt. If it is not set, only the time limit ends \
     an attempt.",
)
.example("\"15s\"")
.at_least(|| Some(millis(100)));

pub(crate) static NO_HANDLER_GRACE: Entry<Duration> = Entry::new(
    "no_handler_grace",
    || TypePolicy::default().no_handler_grace,
    "How long a job waits for a remote handler to come online before that counts as a failed attempt.",
);

pub(crate) static HISTORY: Entry<History> = Entry::new(
    "history",
    || TypePolicy::default().history,
    "Which runs leave a history. \"failures\": runs that complete at the first attempt have neither record nor event log; \
     this is faster, but such a job may run again after a crash of the server.",
);

pub(crate) static TIMEOUT_MAX: Entry<Option<Duration>> = Entry::new(
    "timeout_max",
    || TypePolicy::default().timeout_max,
    "The longest time limit of an attempt that a job may ask for (Longshore-Timeout); a longer one is cut to this.",
)
.example("\"10m\"")
.at_least(|| Some(millis(1)));

pub(crate) static MAX_SNOOZES: Entry<u32> = Entry::new(
    "max_snoozes",
    || TypePolicy::default().max_snoozes,
    "How often in a row a handler may snooze a job before that counts as a failed attempt.",
)
.at_most(|| 1_000_000);

pub(crate) static KEEP: Entry<Option<Duration>> = Entry::new(
    "keep",
    || TypePolicy::default().keep,
    "How long the record of an ended run is kept, however it ended; at least two leases. A job may say otherwise \
     (Longshore-Keep). If neither says it, [storage] applies.",
)
.example("\"1h\"")
.at_least(|| Some(secs(1)));

pub(crate) static RETRYABLE_CODES: Entry<Vec<u16>> = Entry::new(
    "retryable_codes",
    || TypePolicy::default().retryable_codes,
    "Error codes of remote handlers that are worth another attempt, beside 408, 425, 429 and all codes outside 4xx.",
)
.example("[404, 409]");

pub(crate) static PERMANENT_CODES: Entry<Vec<u16>> = Entry::new(
    "permanent_codes",
    || TypePolicy::default().permanent_codes,
    "Error codes of remote handlers that fail a job for good, beside the other 4xx.",
)
.example("[501]");

// [tenants.<name>]

static TENANTS: Named = Named {
    name: "tenants",
    doc: "Tenants with settings of their own.",
    example: ("acme", &["rate_limit", "weight", "max_waiting"]),
    check: check_token,
    table: &TENANT,
    fallback: None,
};

static TENANT: Table = Table::of(
    "",
    &[
        Field::Table { name: "rate_limit", table: &TENANT_RATE_LIMIT, or: None },
        One(&TENANT_WEIGHT),
        One(&TENANT_MAX_WAITING),
    ],
)
.optional();

pub(crate) static TENANT_MAX_WAITING: Entry<Option<u64>> = Entry::new(
    "max_waiting",
    || TenantPolicy::default().max_waiting,
    "With so many jobs of the tenant that are enqueued and have not started, in all queues together, submit answers 503. \
     As for a queue, jobs that wait for a time do not count, and bare publishes are not refused. The same on all nodes.",
)
.example("100000")
.at_least(|| Some(1));
