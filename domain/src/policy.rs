//! Checked settings, as the rules see them. The edges read and check what a person wrote; from here on a policy cannot
//! be wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::{JobType, Queue};

/// How jobs of one type are treated.
#[derive(Debug, Clone, PartialEq)]
pub struct TypePolicy {
    /// Who runs them: `remote`, or the name of a handler inside the node. `None`: the handler registered under the
    /// type's own name, else remote.
    pub handler: Option<String>,
    /// Attempts in a round, 1 to 1,000.
    pub max_attempts: u32,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// A remote handler silent for longer than this loses its attempt; `None`: only the time limit ends it.
    pub heartbeat: Option<Duration>,
    /// How many jobs a node gives remote handlers at once where they announce no number themselves.
    pub slots: u32,
    /// How long a job waits for a remote handler before that counts as a failed attempt.
    pub no_handler_grace: Duration,
    /// The delays between attempts.
    pub backoff: Backoff,
    /// What is kept of runs that complete at the first attempt.
    pub history: History,
    /// Longest time limit of an attempt that a job may ask for; `None`: any.
    pub timeout_max: Option<Duration>,
    /// How often in a row a handler may put a job back before that counts as a failed attempt.
    pub max_snoozes: u32,
    /// How long the record of an ended run is kept, however it ended; `None`: as storage has it.
    pub keep: Option<Duration>,
    /// A remote handler's error codes that are worth another attempt, beside the usual ones.
    pub retryable_codes: Vec<u16>,
    /// A remote handler's error codes that no attempt mends, beside the usual ones.
    pub permanent_codes: Vec<u16>,
}

impl Default for TypePolicy {
    fn default() -> Self {
        Self {
            handler: None,
            max_attempts: 12,
            timeout: Duration::from_secs(60),
            heartbeat: None,
            slots: 8,
            no_handler_grace: Duration::from_secs(60),
            backoff: Backoff::default(),
            history: History::All,
            timeout_max: None,
            max_snoozes: 1_000,
            keep: None,
            retryable_codes: Vec::new(),
            permanent_codes: Vec::new(),
        }
    }
}

/// What is kept of runs that complete at the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum History {
    /// Record and events of every run.
    #[default]
    All,
    /// Neither record nor event log for runs that complete at the first attempt; live events as always.
    Failures,
}

/// How a queue is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePolicy {
    /// Jobs that run at once on a node, 1 to 10,000.
    pub concurrency: usize,
    /// How much later a job of the next more urgent priority may come and still overtake; 0: strict priorities.
    pub aging: Duration,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self { concurrency: 64, aging: Duration::from_secs(30) }
    }
}

/// All policies of a node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policies {
    /// The queues this node declares and serves.
    pub queues: BTreeMap<Queue, QueuePolicy>,
    /// Types with settings of their own.
    pub types: BTreeMap<JobType, TypePolicy>,
    /// All other types.
    pub default_type: TypePolicy,
    /// Named back-off presets, for the header `Longshore-Retry`.
    pub retries: BTreeMap<String, Backoff>,
}

impl Policies {
    /// The policy of `job_type`.
    #[must_use]
    pub fn of(&self, job_type: &JobType) -> &TypePolicy {
        self.types.get(job_type).unwrap_or(&self.default_type)
    }
}
