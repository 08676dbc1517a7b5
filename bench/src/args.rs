//! The options of the command line, and their defaults.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Measures Longshore beside bare JetStream.
#[derive(Debug, Parser)]
#[command(name = "longshore-bench")]
pub(crate) struct Bench {
    /// The product's binary; target/release/longshore by default.
    #[arg(long, env = "LONGSHORE_BIN", global = true)]
    pub longshore: Option<PathBuf>,
    #[command(subcommand)]
    pub what: What,
}

/// The measurement to run.
#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// How fast, and at what cost, waiting no-ops are worked off.
    Drain(Drain),
    /// How fast jobs are accepted: bare, by submit, by submit.batch.
    Enqueue(Enqueue),
    /// How long a job takes from its publish to its handler's start, at a steady rate.
    Latency(Latency),
    /// How many jobs a second a remote handler does, beside a bare loop of requests.
    Remote(Remote),
    /// What an idle node costs.
    Idle(Idle),
    /// Whether memory and rate stay flat over a long backlog.
    Backlog(Backlog),
    /// How long a job waits that can start, behind jobs that cannot.
    Blocked(Blocked),
    /// How late jobs start that fall due together, and what they cost while they wait.
    Delayed(Delayed),
    /// How long work stands still when servers and nodes are killed or frozen, and whether anything is lost.
    Faults(Faults),
    /// How long jobs wait before, during and after a disturbance: the published chaos scenes of other queues.
    Scenes(Scenes),
    /// What many streams of events over HTTP cost their node, and how late events are in them.
    Follow(Follow),
    /// Scene after scene, beside bare JetStream and beside other queues: a table, figures as JSON, and plots.
    Suite(Suite),
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Drain {
    /// Jobs per leg.
    #[arg(long, default_value_t = 100_000)]
    pub jobs: u64,
    /// Number of pairs of bare loop and product.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Spread the product's jobs over all nine priorities.
    #[arg(long)]
    pub spread: bool,
    /// Workers of the node.
    #[arg(long, default_value_t = 64)]
    pub concurrency: usize,
    /// Leave the bare loop out; for profiling.
    #[arg(long)]
    pub product_only: bool,
    /// Pairs of the product alone and the product whose metrics are scraped every second.
    #[arg(long, conflicts_with = "product_only")]
    pub scrape: bool,
    /// Pairs of the product with nothing watching it, and the product with everything on: metrics scraped every second,
    /// traces exported to a collector, actions and events in the audit's files, a log of JSON lines.
    #[arg(long, conflicts_with_all = ["product_only", "scrape"])]
    pub observed: bool,
    /// Pairs of the product with the jobs of one tenant, and with those of so many in turn, whose shares fairness sees
    /// to.
    #[arg(long, conflicts_with_all = ["product_only", "scrape", "observed"])]
    pub tenants: Option<u64>,
    /// Which part of the traces is exported then; as `telemetry` has it by default if absent.
    #[arg(long, requires = "observed")]
    pub sample_ratio: Option<f64>,
    /// The product's jobs have so many concurrency keys in turn, of which each has one slot.
    #[arg(long)]
    pub keys: Option<u64>,
    /// Every job of the product fails once, and is tried again after a second.
    #[arg(long)]
    pub fail_once: bool,
    /// The product keeps no record of a success.
    #[arg(long, conflicts_with_all = ["fail_once", "keys"])]
    pub failures_only: bool,
}

impl Drain {
    /// So many jobs for 64 workers, and nothing else said.
    pub(crate) fn of(jobs: u64) -> Drain {
        Drain { jobs, concurrency: 64, ..Drain::default() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Enqueue {
    /// Jobs per leg that is sent in bulk.
    #[arg(long, default_value_t = 50_000)]
    pub jobs: u64,
    /// Jobs per leg that is sent one by one.
    #[arg(long, default_value_t = 5_000)]
    pub singles: u64,
    /// Number of pairs of bare and product.
    #[arg(long, default_value_t = 3)]
    pub pairs: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Latency {
    /// Jobs per second.
    #[arg(long, default_value_t = 200)]
    pub rate: u32,
    /// How many seconds, after two seconds of warming up.
    #[arg(long, default_value_t = 20)]
    pub seconds: u32,
    /// Number of pairs of bare and product.
    #[arg(long, default_value_t = 3)]
    pub pairs: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Remote {
    /// Jobs, and requests, per leg.
    #[arg(long, default_value_t = 50_000)]
    pub jobs: u64,
    /// Number of pairs of bare loop and product.
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Requests at once, and workers of the node.
    #[arg(long, default_value_t = 64)]
    pub concurrency: usize,
    /// A command that starts another handler than the one in Rust, such as `bench/remote.py`.
    #[arg(last = true)]
    pub handler: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Idle {
    /// How many seconds the node is measured, after five seconds of settling.
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Backlog {
    /// Jobs that wait.
    #[arg(long, default_value_t = 1_000_000)]
    pub jobs: u64,
    /// How many seconds a node with one worker has the waiting jobs.
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// Workers of the node that works them off.
    #[arg(long, default_value_t = 64)]
    pub concurrency: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Blocked {
    /// Jobs of each blocked type; may be given several times.
    #[arg(long, default_values_t = [200, 100_000])]
    pub jobs: Vec<u64>,
    /// Slots of the full type.
    #[arg(long, default_value_t = 8)]
    pub slots: u64,
    /// Milliseconds for which a job of the full type takes its slot.
    #[arg(long, default_value_t = 1_000)]
    pub millis: u64,
    /// Probes once the backlog is at rest.
    #[arg(long, default_value_t = 10)]
    pub probes: usize,
    /// Seconds over which it is measured how many slots are busy.
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Only this blockage.
    #[arg(long, value_enum)]
    pub only: Option<Blockage>,
}

/// Why the jobs of the backlog cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Blockage {
    /// All slots of their handlers are taken.
    Full,
    /// Nobody serves them.
    Unserved,
    /// As many of each.
    Both,
}

#[derive(Debug, Args)]
pub(crate) struct Delayed {
    /// Jobs per leg.
    #[arg(long, default_value_t = 10_000)]
    pub jobs: u64,
    /// They are due within so many seconds.
    #[arg(long, default_value_t = 1)]
    pub over: u64,
    /// Another leg with so many kills of the server from the first due time on; 0: none.
    #[arg(long, default_value_t = 1)]
    pub kills: u32,
    /// At least so many jobs are published and scheduled per second: their time is set by it.
    #[arg(long, default_value_t = 1_000.0)]
    pub rate: f64,
}

#[derive(Debug, Args)]
pub(crate) struct Faults {
    /// Kills of each kind.
    #[arg(long, default_value_t = 10)]
    pub kills: usize,
    /// Freezes of each kind.
    #[arg(long, default_value_t = 5)]
    pub freezes: usize,
    /// Jobs per second, each of 50 ms.
    #[arg(long, default_value_t = 200)]
    pub rate: u32,
    /// The nodes' lease, in seconds.
    #[arg(long, default_value_t = 5)]
    pub lease: u64,
    /// Only these kinds.
    #[arg(long, value_enum)]
    pub only: Vec<Kind>,
}

#[derive(Debug, Args)]
pub(crate) struct Scenes {
    /// How long each of the three times of a scene lasts, in seconds.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Jobs per second, each of 1 ms.
    #[arg(long, default_value_t = 800)]
    pub rate: u32,
    /// The nodes' lease, in seconds.
    #[arg(long, default_value_t = 5)]
    pub lease: u64,
    /// Only these scenes.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Scene>,
}

/// A disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scene {
    /// None: what the others are compared with. With many seconds: a soak.
    Clean,
    /// kill -9 of one of two nodes, restarted afterwards.
    WorkerKill,
    /// kill -9 of one of two nodes, restarted at once, six times.
    RepeatedKills,
    /// kill -9 of the server, restarted after half of the time.
    ServerRestart,
    /// The server closes a connection of a node every half a second.
    ConnectionKills,
    /// 300 clients that do nothing.
    IdleConnections,
    /// A client that reads nothing of what it subscribed to, and a consumer that acknowledges nothing.
    StalledReaders,
    /// Four readers of all records and the whole event log, again and again.
    ActiveReaders,
    /// Half as many jobs again.
    HighLoad,
}

#[derive(Debug, Args)]
pub(crate) struct Follow {
    /// Streams that are open at once.
    #[arg(long, default_value_t = 1_000)]
    pub streams: u64,
    /// Tenants whose events they have, in turn.
    #[arg(long, default_value_t = 100)]
    pub tenants: u64,
    /// Events per second, of all tenants together.
    #[arg(long, default_value_t = 500)]
    pub rate: u64,
    /// For how many seconds.
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Suite {
    /// How many jobs and repetitions.
    #[arg(long, value_enum, default_value = "small")]
    pub scale: Scale,
    /// The folder that gets `results.json`, `table.md` and the plots.
    #[arg(long, default_value = "target/suite")]
    pub out: PathBuf,
    /// The other queues, by the names of `bench/peers`; none: an empty text.
    #[arg(long, value_delimiter = ',', default_value = "bullmq,graphile,apalis,celery,taskiq")]
    pub peers: Vec<String>,
    /// The folder that `bench/peers/setup.sh` installs them into; the suite runs it if there is no such folder.
    #[arg(long, default_value = "target/peers")]
    pub peers_dir: PathBuf,
    /// Only these scenes.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
}

/// How long the suite takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scale {
    /// A quarter of an hour: to see that it works, and where a change has gone wrong.
    Small,
    /// Up to a million jobs: for figures that are quoted.
    Full,
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// kill -9 of nats-server.
    Server,
    /// kill -9 of the only node.
    Alone,
    /// kill -9 of one of two nodes.
    Pair,
    /// SIGSTOP of the only node, past its lease.
    FrozenAlone,
    /// SIGSTOP of one of two nodes, past its lease.
    FrozenPair,
    /// Both nodes are asked to end and are started again, one after the other.
    Rolling,
}
