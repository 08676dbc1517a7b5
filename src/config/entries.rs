//! Every setting, once.
//!
//! The commented file, `config check`, `config show`, the names in the environment and the errors come from here. To
//! add a setting: its row in a list below, and, unless the list makes a struct that has it, the line in `check` that
//! reads it. Defaults are taken from the crates that use them, so that a node embedded in another program has the same.

use std::time::Duration;

use longshore_backbone::Storage;
use longshore_domain::JobType;
use longshore_domain::concurrency::{Hold, OnBusy};
use longshore_domain::fairness::FairBy;
use longshore_domain::policy::{History, QueuePolicy, TenantPolicy, TypePolicy};

use super::kind::{JitterForm, Size, Spread, Text, Token, check_token};
use super::own_kinds::OrOff;
use super::schedules::SCHEDULES;
use super::schema::Field::{self, Named as Names, Setting as One};
use super::schema::{Entry, Named, Table, settings};
use super::schemas::Files;
use super::{command, email, http_call};

pub(crate) mod audit;
pub(crate) mod breaker;
pub(crate) mod faults;
pub(crate) mod http;
pub(crate) mod intake;
pub(crate) mod limits;
pub(crate) mod pressure;
pub(crate) mod search;
pub(crate) mod telemetry;
pub(crate) mod webhooks;

use limits::{LIMITS, RATE_LIMIT_TABLE, TENANT_RATE_LIMIT_TABLE};
use search::Places;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) static ROOT: Table = Table::of(
    "",
    &[
        One(&NAMESPACE),
        Field::Table { name: "node", table: &NODE_TABLE, or: None },
        Field::Table { name: "http", table: &http::HTTP_TABLE, or: None },
        Field::Table { name: "audit", table: &audit::AUDIT_TABLE, or: None },
        Field::Table { name: "webhooks", table: &webhooks::WEBHOOKS_TABLE, or: None },
        Field::Table { name: "faults", table: &faults::FAULTS_TABLE, or: None },
        Field::Table { name: "pressure", table: &pressure::PRESSURE_TABLE, or: None },
        Field::Table { name: "telemetry", table: &telemetry::TELEMETRY_TABLE, or: None },
        Field::Table { name: "storage", table: &STORAGE_TABLE, or: None },
        Field::Table { name: "idempotency", table: &intake::IDEMPOTENCY_TABLE, or: None },
        Field::Table { name: "admission", table: &intake::ADMISSION_TABLE, or: None },
        Field::Table { name: "email", table: &email::EMAIL_TABLE, or: None },
        Names(&QUEUES),
        Names(&RETRIES),
        Field::Table { name: "defaults", table: &TYPE_TABLE, or: None },
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

settings! {
    /// This node.
    NODE: NodeEntries, NODE_TABLE;

    /// The node's name in events, records and logs. Unique in the cluster. If it is not set, the node makes one of the
    /// machine's name and some random letters.
    name: Option<Token>, example("\"node-1\"");
    /// A gateway answers the API and does what nodes do for all, but serves no queue: it declares those that it names,
    /// and their max_waiting holds for what is submitted to it. Nodes that do the work may then come and go, down to
    /// none.
    gateway: bool = false;
    /// How long a node may be silent before its jobs go to another node. The node renews leases at a third of this
    /// time. An election among NATS servers takes 4 to 8 s: with a shorter lease, running jobs lose theirs then. The
    /// same on all nodes.
    lease: Duration = Storage::default().lease, at_least(|| secs(1));
    // Kubernetes kills after 30 s by default, too.
    /// How long running jobs may take to end after SIGTERM. Jobs that still run then are returned; their attempt starts
    /// again on another node.
    shutdown_grace: Duration = secs(30);
    /// A node answers only to reply subjects that begin with this, so that no client can use the node's permissions to
    /// write elsewhere.
    reply_prefix: Text = Text(Storage::default().reply_prefix);
}

/// How long the server remembers message ids; it refuses a stream that keeps its messages for less.
const DUPLICATE_WINDOW: Duration = secs(120);

settings! {
    /// What is stored in JetStream, and for how long. The same on all nodes of a cluster.
    STORAGE: StorageEntries of Storage, STORAGE_TABLE;

    /// On how many NATS servers everything is stored. 3 survives the loss of any one server.
    replicas: usize, at_least(|| 1), at_most(|| 5);
    /// Whether a node may take replicas, bytes, messages or age away from a stream that has more than is set here. If
    /// false, such a stream stays as it is, and the node logs a warning.
    allow_shrink: bool;
    /// At most so many jobs in one lane. Every queue has nine lanes, one per priority, and one for parked jobs. A full
    /// lane refuses further jobs.
    jobs_max_messages: u64, at_least(|| 1);
    /// At most so many bytes in one lane.
    jobs_max_bytes: Size, at_least(|| Size(1 << 20));
    /// How long the event log is kept.
    events_max_age: Duration, at_least(|| DUPLICATE_WINDOW);
    /// At most so many bytes in the event log; the oldest events are dropped first.
    events_max_bytes: Size, at_least(|| Size(1 << 20));
    /// How long the record of a run that completed is kept. If this is shorter than two leases, a job may run again
    /// after a crash.
    completed_max_age: Duration, at_least(|| secs(1));
    /// How long the record of any other ended run is kept.
    failed_max_age: Duration, at_least(|| secs(1));
    /// About how many run records are kept (0.9 KiB of the server's memory each). Near this number, records of
    /// completed runs are kept for a shorter time.
    runs_max_records: u64, at_least(|| 1_000);
    /// How long dead letters are kept, unless they are discarded or replayed before. They may outlive the record of
    /// their run (keep, failed_max_age).
    dlq_max_age: Duration, at_least(|| DUPLICATE_WINDOW);
    /// At most so many bytes of dead letters; the oldest are dropped first.
    dlq_max_bytes: Size, at_least(|| Size(1 << 20));
    /// At most so many bytes of what is stored of concurrency limits; beyond four fifths, jobs of further keys wait.
    concurrency_max_bytes: Size, at_least(|| Size(1 << 20));
    /// At most so many bytes of what nodes share; beyond four fifths, jobs of further limit keys wait.
    control_max_bytes: Size, at_least(|| Size(1 << 20));
}

// [queues.<name>]

pub(crate) static QUEUES: Named = Named {
    name: "queues",
    doc: "The queues that this node declares and serves. Without any, \"main\" alone; with some, exactly those.",
    example: ("main", &["concurrency", "aging", "max_waiting", "fair_by"]),
    check: check_token,
    table: &QUEUE_TABLE,
    fallback: None,
};

settings! {
    QUEUE: QueueEntries of QueuePolicy, QUEUE_TABLE;

    /// How many jobs of this queue run at once on this node.
    concurrency: usize, at_least(|| 1), at_most(|| 10_000);
    /// How much later a job of the next more urgent priority may come and still overtake. "0s": strict priorities; then
    /// the least urgent jobs may wait for ever.
    aging: Duration;
    /// With so many jobs that are enqueued and have not started, submit answers 503. Jobs that wait for a time do not
    /// count, and bare publishes are not refused (storage.jobs_max_messages bounds those). The same on all nodes.
    max_waiting: Option<u64>, example("100000"), at_least(|| Some(1));
    /// Between whom the starts are shared out while jobs of several wait: tenants, or types of jobs, by their weight.
    /// The same on all nodes.
    fair_by: FairBy;
}

// [retries.<name>], and every `backoff`

pub(crate) static RETRIES: Named = Named {
    name: "retries",
    doc: "Back-off presets. A type's backoff, or a job's header Longshore-Retry, names one.",
    example: ("fast", &["base", "factor", "max", "jitter", "spread"]),
    check: check_token,
    table: &BACKOFF_TABLE,
    fallback: None,
};

// 1 s × 3ⁿ up to 10 min, ± 25 %: the domain's default back-off, in parts. A test compares the two.
settings! {
    /// The delays between attempts: base × factorⁿ, at most max.
    BACKOFF: BackoffEntries, BACKOFF_TABLE;

    /// Delay after the first failure.
    base: Duration = secs(1), at_least(|| millis(1));
    /// Growth with every further failure.
    factor: f64 = 3.0, at_least(|| 1.0), at_most(|| 1_000.0);
    /// The longest delay, before jitter.
    max: Duration = secs(600), at_least(|| millis(1));
    /// How delays are spread, so that jobs that failed together do not come back together. "proportional": ± spread, a
    /// share of the delay; "additive": up to spread more, a duration; "full": anything from nothing to the delay.
    jitter: JitterForm = JitterForm::Proportional;
    /// How far: 0.25 if jitter is proportional and nothing is set.
    spread: Option<Spread>, example("0.25");
    /// The delays one by one; the last serves for all that follow.
    delays: Vec<Duration>, example("[\"1s\", \"5s\", \"25s\", \"125s\"]"), alone();
}

pub(crate) static BACKOFF_PRESET: Entry<Text> =
    Entry::new("backoff", || Text(String::new()), "The name of a preset under [retries].").example("\"fast\"");

// [defaults] and [types.<name>]

settings! {
    /// How jobs are treated, if [types] does not say otherwise.
    TYPE: TypeEntries of TypePolicy, TYPE_TABLE;

    /// Which handler runs the jobs: "remote" (programs that subscribe to longshore.work.…), or one inside the node:
    /// "http.call", "command.run", "email.send", or for trials "noop", "echo", "sleep", "fail". If it is not set, a
    /// handler inside the node runs the type that has its name, and remote handlers run every other type.
    handler: Option<Text> = None, example("\"remote\"");
    [http: &http_call::CALL_TABLE]
    [command: &command::COMMAND_TABLE]
    /// Attempts before a job goes to the dead letters. A job may say otherwise (Longshore-Max-Attempts).
    max_attempts: u32, at_least(|| 1), at_most(|| 1_000);
    /// Time limit of one attempt. A job may say otherwise (Longshore-Timeout).
    timeout: Duration, at_least(|| millis(1));
    [backoff: &BACKOFF_TABLE, or &BACKOFF_PRESET]
    /// A remote handler that is silent for longer than this loses its attempt. If it is not set, only the time limit
    /// ends an attempt.
    heartbeat: Option<Duration>, example("\"15s\""), at_least(|| Some(millis(100)));
    /// How many jobs of a type a node gives remote handlers at once, if these announce no number themselves.
    slots: u32, at_least(|| 1), at_most(|| 10_000);
    /// Whether it counts what remote handlers announce of themselves (longshore.slots, longshore.heartbeat). Clients
    /// that may answer $SRV.INFO can announce it for the handlers of all tenants.
    announcements: bool;
    /// How long a job waits for a remote handler to come online before that counts as a failed attempt.
    no_handler_grace: Duration;
    /// How long a job is tried whose type no handler was ever online for, so that it is most likely misspelt; then its
    /// run is dead. At least no_handler_grace, and never less than that where it is not set. "off": as long as any
    /// other job.
    never_served_grace: OrOff = OrOff(TypePolicy::default().never_served_grace);
    /// Which runs leave a history. "failures": runs that complete at the first attempt have neither record nor event
    /// log; this is faster, but such a job may run again after a crash of the server.
    history: History;
    /// The longest time limit of an attempt that a job may ask for (Longshore-Timeout); a longer one is cut to this.
    timeout_max: Option<Duration>, example("\"10m\""), at_least(|| Some(millis(1)));
    /// How often in a row a handler may snooze a job before that counts as a failed attempt.
    max_snoozes: u32, at_most(|| 1_000_000);
    /// How long the record of an ended run is kept, however it ended; at least two leases. A job may say otherwise
    /// (Longshore-Keep). If neither says it, [storage] applies.
    keep: Option<Duration>, example("\"1h\""), at_least(|| Some(secs(1)));
    /// The largest payload of a job; if it is not set, what the server's max_payload allows.
    payload_max: Option<Size> = TypePolicy::default().payload_max.map(Size),
        example("\"64KiB\""),
        at_least(|| Some(Size(1)));
    /// A file with a JSON Schema that payloads must match, relative to this file. submit answers 400 with the path of
    /// the wrong field; a bare publish becomes a dead letter.
    schema: Option<Text> = None, example("\"email.json\"");
    /// Files by version, in place of schema. A job chooses one by Longshore-Schema-Version.
    schemas: Option<Files> = None, example("{ \"1\" = \"email-1.json\", \"2\" = \"email-2.json\" }");
    /// The version of jobs that name none. If it is not set, the greatest number (1.10 is greater than 1.9).
    schema_version: Option<Text> = None, example("\"2\"");
    /// Places in JSON payloads, as JSON pointers, whose texts and numbers are copied into the run's record, so that the
    /// run is found by them (GET /v1/runs?search=…); at most 8. All who may list runs see them. The same on all nodes.
    search: Places = Places(Vec::new()), example("[\"/order/id\"]");
    /// Whether payloads and results are left out of answers over HTTP, and hidden on the page, until somebody with the
    /// scope reveal asks for them (?reveal=true). Over NATS permissions decide. The same on all nodes.
    redact: bool;
    /// Error codes of remote handlers that are worth another attempt, beside 408, 425, 429 and all codes outside 4xx.
    retryable_codes: Vec<u16>, example("[404, 409]");
    /// Error codes of remote handlers that fail a job for good, beside the other 4xx.
    permanent_codes: Vec<u16>, example("[501]");
    [rate_limit: &RATE_LIMIT_TABLE]
    /// The name of a limit under [limits] that the type shares with others, beside its own. If the type has none of its
    /// own, each Longshore-Limit-Key has one of these.
    limit: Option<Token> = None, example("\"crm\"");
    /// How many jobs of a type run at once in the whole cluster; if it is not set, any number.
    concurrency: Option<u32>, example("10"), at_least(|| Some(1)), at_most(|| Some(10_000));
    /// How many jobs of a type, tenant and Longshore-Concurrency-Key run at once in the whole cluster.
    key_concurrency: u32, at_least(|| 1), at_most(|| 10_000);
    /// For how long the slots of attempts at remote handlers are kept if their node dies. "lease": for its lease, like
    /// the runs themselves, which start again then, beside handlers that still work. "timeout": for their time limit as
    /// well, at most 12 hours, in which nothing else starts in their place.
    concurrency_hold: Hold;
    /// What becomes of a job whose concurrency key is busy. "wait": it waits for a free slot. "drop_new": it ends as
    /// cancelled. "keep_newest": it waits, and the one that waited before ends as cancelled. "cancel_running": the
    /// oldest run of its key is cancelled, and it starts in its place.
    on_busy: OnBusy;
    /// Whether jobs of one Longshore-Concurrency-Key run in the order in which they were enqueued in their lane, each
    /// only once the one before it has ended, through all its retries. One at a time: key_concurrency is 1, and on_busy
    /// "wait".
    ordered: bool;
    /// Its share of what a queue that is fair by type starts while jobs of several types wait there: its weight divided
    /// by the weights of all of them. The same on all nodes.
    weight: u32, at_least(|| 1), at_most(|| 1_000);
    [breaker: &breaker::BREAKER_TABLE, or &breaker::OFF]
}

pub(crate) static TYPES: Named = Named {
    name: "types",
    doc: "Types with settings of their own: everything that [defaults] has. A name with dots stands in quotes.",
    example: ("email.send", &["handler", "max_attempts", "timeout", "backoff"]),
    check: |name| JobType::parse(name).map(|_| ()).map_err(|error| error.reason),
    table: &TYPE_TABLE,
    fallback: Some("defaults"),
};

// [tenants.<name>]

static TENANTS: Named = Named {
    name: "tenants",
    doc: "Tenants with settings of their own.",
    example: ("acme", &["rate_limit", "weight", "max_waiting"]),
    check: check_token,
    table: &TENANT_TABLE,
    fallback: None,
};

settings! {
    TENANT: TenantEntries of TenantPolicy, TENANT_TABLE.optional();

    [rate_limit: &TENANT_RATE_LIMIT_TABLE]
    /// Its share of what a queue that is fair by tenant starts while jobs of several tenants wait there: its weight
    /// divided by the weights of all of them. A tenant with weight 3 has three of its jobs started for each one of a
    /// tenant with weight 1. The same on all nodes.
    weight: u32, at_least(|| 1), at_most(|| 1_000);
    /// With so many jobs of the tenant that are enqueued and have not started, in all queues together, submit answers
    /// 503. As for a queue, jobs that wait for a time do not count, and bare publishes are not refused. The same on all
    /// nodes.
    max_waiting: Option<u64>, example("100000"), at_least(|| Some(1));
}
