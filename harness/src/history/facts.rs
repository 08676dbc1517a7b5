//! What the checker is given: what clients were answered, what was stored, what handlers and the driver of the test
//! know.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use crate::stored::Logged;
use crate::wire::Record;

/// All inputs of the checker. An empty input proves nothing against a run, except for events and records.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The jobs whose acceptance was confirmed to a client.
    pub accepted: Vec<Accepted>,
    /// The event log of all tenants, in its order, repeats included.
    pub events: Vec<Logged>,
    /// All run records.
    pub records: Vec<Record>,
    /// All dead letters.
    pub dead_letters: Vec<DeadLetter>,
    /// The calls of handlers, as the handlers wrote them down.
    pub calls: Vec<Call>,
    /// The concurrency limits, with the runs that each is for.
    pub limits: Vec<Limit>,
    /// The runs that are to go one after the other.
    pub orders: Vec<Ordered>,
    /// The pauses of queues and types.
    pub pauses: Vec<Pause>,
    /// The recurring schedules.
    pub recurring: Vec<Recurring>,
    /// Facts that only the driver of the test knows.
    pub rules: Rules,
}

/// A concurrency limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// What it is of, for people: a type, or a key.
    pub name: String,
    /// How many calls may be at work at once.
    pub at_most: usize,
    /// Whether it counts a call also once its node has died or lost its lease.
    pub outlasts_nodes: bool,
    /// Its runs, as (tenant, run id).
    pub runs: BTreeSet<(String, String)>,
}

/// Runs that are to go one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordered {
    /// What they have in common, for people: a key.
    pub name: String,
    /// The runs in their order, as (tenant, run id). There may be others between them.
    pub runs: Vec<(String, String)>,
}

/// A pause of a queue, of a type, or of a type in one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    /// The queue; `None`: every queue.
    pub queue: Option<String>,
    /// The type; `None`: every type.
    pub job_type: Option<String>,
    /// When the pause was answered.
    pub from: Timestamp,
    /// When its end was first asked for.
    pub until: Timestamp,
}

/// A recurring schedule that was neither changed nor paused between these two of its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recurring {
    /// The tenant of its runs.
    pub tenant: String,
    /// Its id, with which its runs' ids begin.
    pub id: String,
    /// The time between two of its times.
    pub every: Duration,
    /// Its first time.
    pub first: Timestamp,
    /// The last of its times that has come.
    pub last: Timestamp,
    /// Whether it may leave times out, because the run before had not ended.
    pub leaves_out: bool,
}

/// A job whose acceptance was confirmed: by JetStream's acknowledgement or an answer of `submit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The tenant it belongs to.
    pub tenant: String,
    /// The run it became.
    pub run_id: String,
    /// When the confirmation came; for people only.
    pub at: Timestamp,
    /// Which parts of its history are kept.
    pub kept: Kept,
}

impl Accepted {
    /// A job that was accepted just now and whose whole history is kept.
    pub fn of(tenant: &str, run_id: &str) -> Accepted {
        Accepted { tenant: tenant.to_owned(), run_id: run_id.to_owned(), at: Timestamp::now(), kept: Kept::All }
    }
}

/// The setting `history` of a job's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kept {
    /// Record and log of every run.
    #[default]
    All,
    /// Neither record nor log of runs that complete at the first attempt.
    Failures,
}

/// The parts of a dead letter that the checker needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The tenant of its run.
    pub tenant: String,
    /// The id of its run; empty if the dead letter does not name it.
    pub run_id: String,
    /// The round of its run, if the dead letter names it.
    pub round: Option<u32>,
}

impl From<&crate::stored::DeadLetter> for DeadLetter {
    fn from(dead_letter: &crate::stored::DeadLetter) -> DeadLetter {
        DeadLetter {
            tenant: dead_letter.tenant().to_owned(),
            run_id: dead_letter.run_id().unwrap_or_default(),
            round: dead_letter.round(),
        }
    }
}

/// One call of a handler, as the handler wrote it down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The tenant of its run.
    pub tenant: String,
    /// The id of its run.
    pub run_id: String,
    /// The round of the run.
    pub round: u32,
    /// The attempt of that round.
    pub attempt: u32,
    /// When it began.
    pub start: Timestamp,
    /// When it ended; `None` if it never did because its process died.
    pub end: Option<Timestamp>,
    /// The node that asked for it, if the handler knows.
    pub node: Option<String>,
}

/// Facts that cannot be read from the wire.
#[derive(Debug, Clone)]
pub struct Rules {
    /// By how much clocks of different machines may differ; zero by default.
    pub clock_skew: Duration,
    /// Runs, as (tenant, run id), that a client moved with `run_now` or `reschedule`: they may start early.
    pub hurried: BTreeSet<(String, String)>,
    /// When nodes or servers were killed: another node may take a dead node's jobs at once.
    pub interruptions: Vec<Interruption>,
    /// When nodes lived but could not renew. Their jobs stay theirs until the lease is over.
    pub silences: Vec<Silence>,
    /// How long a lease lasts. `None` if unknown; judgements that depend only on the lease are then skipped.
    pub lease: Option<Duration>,
    /// The maximum delay between a call's start and the handler's note of it. 250 ms by default.
    pub call_delay: Duration,
    /// How many requests to handlers a node may have on their way, after the last check of their leases, when it is
    /// frozen: no more than it has workers. It sends them when it thaws. Zero by default.
    pub on_their_way: usize,
    /// Whether every handler wrote down every call; if so, a run without a call has not run.
    pub calls_complete: bool,
    /// Whether records are kept for longer than the test runs; if so, a finished run without a record has lost it. True
    /// by default.
    pub records_kept: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            clock_skew: Duration::ZERO,
            hurried: BTreeSet::new(),
            interruptions: Vec::new(),
            silences: Vec::new(),
            lease: None,
            call_delay: Duration::from_millis(250),
            on_their_way: 0,
            calls_complete: false,
            records_kept: true,
        }
    }
}

/// The kill of a node or of the server. (Or a freeze, where no lease is given to judge by.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interruption {
    /// The node; `None` for the server, which concerns every lease.
    pub node: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// A period in which a node could not renew: it was frozen, cut off from the servers, or these were frozen or down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// The node; `None` for all nodes, because the servers were silent.
    pub node: Option<String>,
    /// When it began.
    pub from: Timestamp,
    /// When it was over.
    pub until: Timestamp,
}
