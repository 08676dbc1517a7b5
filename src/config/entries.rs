//! Every setting, once.
//!
//! The commented file, `config check`, `config show`, the names in the environment and the errors come from here. To
//! add a setting: its row in a list below, and, unless the list makes a struct that has it, the line in `check` that
//! reads it. Defaults are taken from the crates that use them, so that a node embedded in another program has the same.

use std::time::Duration;

use longshore_backbone::Storage;
use longshore_domain::breaker::BreakerPolicy;
use longshore_domain::concurrency::{Hold, OnBusy};
use longshore_domain::fairness::FairBy;
use longshore_domain::policy::{History, OnMismatch, QueuePolicy, TenantPolicy, TypePolicy};
use longshore_domain::pressure::PressureLimits;
use longshore_domain::{JobType, Queue};

use super::kind::{JitterForm, Protocol, ReleasingEnd, Size, Spread, Text, Token, check_token};
use super::own_kinds::{Collector, Files, Namespace, Off, OrOff, Places};
use super::schedules::SCHEDULES;
use super::schema::Field::{self, Named as Names, Setting as One};
use super::schema::{Entry, Named, Table};
use super::section::settings;
use super::{command, email, http_call};

pub(crate) mod http;
pub(crate) mod limits;

use limits::{LIMITS, RATE_LIMIT_TABLE, TENANT_RATE_LIMIT_TABLE};

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
        Field::Table { name: "audit", table: &AUDIT_TABLE, or: None },
        Field::Table { name: "webhooks", table: &WEBHOOKS_TABLE, or: None },
        Field::Table { name: "faults", table: &FAULTS_TABLE, or: None },
        Field::Table { name: "pressure", table: &PRESSURE_TABLE, or: None },
        Field::Table { name: "telemetry", table: &TELEMETRY_TABLE, or: None },
        Field::Table { name: "storage", table: &STORAGE_TABLE, or: None },
        Field::Table { name: "idempotency", table: &IDEMPOTENCY_TABLE, or: None },
        Field::Table { name: "admission", table: &ADMISSION_TABLE, or: None },
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

pub(crate) static NAMESPACE: Entry<Namespace> = Entry::new(
    "namespace",
    || Namespace(Storage::default().namespace),
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

settings! {
    /// The audit: what was asked of the API beyond reading and submitting, by whom, and how it was answered.
    AUDIT: AuditEntries, AUDIT_TABLE;

    /// How long entries are kept in NATS.
    max_age: Duration = Storage::default().audit_max_age, at_least(|| secs(120));
    /// At most so many bytes of entries in NATS; the oldest are dropped first.
    max_bytes: Size = Size(Storage::default().audit_max_bytes), at_least(|| Size(1 << 20));
    /// This node also appends its entries to this file, a JSON object a line.
    file: Option<Text>, example("\"/var/log/longshore/audit.jsonl\"");
    /// This node also writes the event log, with every event of the whole cluster, into this file, a JSON object a
    /// line.
    events_file: Option<Text>, example("\"/var/log/longshore/events.jsonl\"");
    /// Beyond so many bytes such a file gets .1 behind its name, that of before .2, and so on.
    file_max_bytes: Size = Size(64 << 20), at_least(|| Size(1 << 10));
    /// So many of each are kept, the current one included.
    files: u32 = 10, at_least(|| 1), at_most(|| 1_000);
}

settings! {
    /// Webhooks: deliveries are jobs of type "longshore.webhook"; settings of that type apply to them, too.
    WEBHOOKS: WebhookEntries, WEBHOOKS_TABLE;

    /// The queue of the deliveries.
    queue: Token = Token(Queue::main().to_string());
    /// Their priority: 1, the most urgent, to 9.
    priority: u32 = 5, at_least(|| 1), at_most(|| 9);
    /// Deliveries at once in the whole cluster; if it is not set, as many as [defaults] says.
    concurrency: Option<u32>, at_least(|| Some(1)), example("20");
    /// Networks, addresses and host names that may be called beyond the globally routable ones.
    allow: Vec<Text>, example("[\"10.0.0.0/8\", \"hooks.internal\"]");
}

settings! {
    /// Faults on purpose, which operators set while the cluster runs: "longshore faults".
    FAULTS: FaultEntries, FAULTS_TABLE;

    /// Whether this node's attempts may meet any, and its API sets them.
    allowed: bool = false;
}

settings! {
    /// A node that is short of processor or memory pulls fewer jobs, so that other nodes take them. On Linux only.
    PRESSURE: PressureEntries of PressureLimits, PRESSURE_TABLE;

    /// Whether the node looks every second how short it is of them.
    watch: bool = true;
    /// It is short of processor once some of its tasks wait for one in more than this share of the time (pressure stall
    /// information); 1.0: never. It pulls fewer jobs ahead then.
    cpu: f64, at_least(|| 0.01), at_most(|| 1.0);
    /// It is short of memory once more than this share of its control group's limit, or of the machine's memory, is in
    /// use; 1.0: never. Fewer of its workers get jobs then.
    memory: f64, at_least(|| 0.01), at_most(|| 1.0);
    /// The same once some of its tasks wait for memory in more than this share of the time; 1.0: never.
    memory_stall: f64, at_least(|| 0.01), at_most(|| 1.0);
    /// The folder that has proc and sys: another one where those of the host are mounted in a container.
    root: Text = Text("/".to_owned());
}

settings! {
    /// Traces, sent by OTLP. What is not set here, OpenTelemetry's own variables say, such as
    /// OTEL_EXPORTER_OTLP_ENDPOINT. Without an endpoint there are no traces.
    TELEMETRY: TelemetryEntries, TELEMETRY_TABLE;

    /// The collector, without the path of traces: with http/protobuf usually port 4318, with grpc 4317.
    endpoint: Option<Collector>, example("\"http://localhost:4318\"");
    /// How spans are sent; http/protobuf if nothing says otherwise.
    protocol: Option<Protocol>, example("\"http/protobuf\"");
    /// service.name in traces; longshore if nothing says otherwise.
    service_name: Option<Text>, example("\"longshore\"");
    /// The share of traces that is exported; what a job's publisher has decided for its trace holds. The same on all
    /// nodes of a cluster. If nothing says otherwise all are, up to about 1,000 traces a second and node.
    sample_ratio: Option<f64>, example("0.1"), at_least(|| Some(0.0)), at_most(|| Some(1.0));
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

settings! {
    /// Idempotency keys: within the window, one key is one run. The same on all nodes of a cluster.
    IDEMPOTENCY: IdempotencyEntries, IDEMPOTENCY_TABLE;

    /// How long a key holds, if the client does not say.
    window: Duration = Storage::default().idempotency_window, at_least(|| secs(1));
    /// Ends of a run that free its key before the window is over.
    release_on: Vec<ReleasingEnd>, example("[\"dead\", \"cancelled\", \"expired\"]");
    /// If a key is submitted again with another type or payload: "reject" answers 409 idempotency_mismatch, "return"
    /// answers with the key's run, as if the jobs were the same.
    on_mismatch: OnMismatch;
}

settings! {
    /// Which jobs are taken. submit refuses the others; those that are published all the same become dead letters. The
    /// same on all nodes of a cluster.
    ADMISSION: AdmissionEntries, ADMISSION_TABLE;

    /// The only types that are taken; any, if nothing is set.
    types: Vec<JobType>, example("[\"email.send\", \"report.send\"]");
    /// The only tenants whose jobs are taken; any, if nothing is set.
    tenants: Vec<Token>, example("[\"default\", \"acme\"]");
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

// Every `breaker`

settings! {
    /// Stops starting jobs of a type whose service keeps failing; one per tenant and type, over the whole cluster.
    BREAKER: BreakerEntries of BreakerPolicy, BREAKER_TABLE.optional();

    /// Failures in a row that open it.
    failures: u32, at_least(|| 1), at_most(|| 10_000);
    /// The share of failures within the window that opens it as well. If it is not set, only failures in a row count.
    ratio: Option<f64>, example("0.5"), at_least(|| Some(0.01)), at_most(|| Some(1.0));
    /// The window of ratio.
    window: Duration, at_least(|| secs(1)), at_most(|| secs(3_600));
    /// With fewer attempts than this in the window, ratio opens nothing.
    min_calls: u32, at_least(|| 1);
    /// How long it stays open; each failed probe doubles it.
    cool_down: Duration, at_least(|| millis(1));
    /// How long it stays open at most: ten times cool_down, if nothing is set.
    max_cool_down: Option<Duration> = None, example("\"5m\""), at_least(|| Some(millis(1)));
    /// Jobs let through as a trial once it has cooled down; it closes when so many have succeeded.
    probes: u32, at_least(|| 1), at_most(|| 100);
    /// Permanent errors count as failures of the service, too.
    count_permanent: bool;
    /// Each Longshore-Limit-Key, such as a host, has a breaker of its own.
    per_key: bool;
}

/// No breaker, although `[defaults]` has one.
pub(crate) static OFF: Entry<Off> =
    Entry::new("breaker", || Off("off".to_owned()), "\"off\": a type has none, although [defaults] has one.");

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
    /// log; this is faster, but such a job may run again after the crash of a server or a node, or a lost connection.
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
    [breaker: &BREAKER_TABLE, or &OFF]
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
