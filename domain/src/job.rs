//! A job: what was asked for. Its payload is the user's own bytes and of no concern to the rules.

use std::time::Duration;

use crate::{JobType, Priority, Queue, RunId, Tenant, Timestamp};

/// What is to be done, for whom, and how urgently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Whose job it is.
    pub tenant: Tenant,
    /// Where it waits.
    pub queue: Queue,
    /// How urgent it is.
    pub priority: Priority,
    /// What is to be done.
    pub job_type: JobType,
    /// Its run.
    pub run_id: RunId,
    /// What its headers ask for; `None` where there were none, which is the common case and costs nothing.
    pub options: Option<Box<JobOptions>>,
}

/// What a client may ask for beyond the job itself. All optional.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobOptions {
    /// The client chose the run's id itself.
    pub own_run_id: bool,
    /// One key, one run, within [`Self::idempotency_window`].
    pub idempotency_key: Option<String>,
    /// How long the key holds; the configured window where absent.
    pub idempotency_window: Option<Duration>,
    /// When the key is free again.
    pub unique: Unique,
    /// Attempts in a round, 1 to 1,000.
    pub max_attempts: Option<u32>,
    /// Name of a back-off preset.
    pub retry: Option<String>,
    /// Not before then.
    pub run_at: Option<When>,
    /// Time limit of one attempt.
    pub timeout: Option<Duration>,
    /// Time limit of the whole run.
    pub deadline: Option<When>,
    /// Not started by then: expired.
    pub expires: Option<When>,
    /// At most so many of one key at once.
    pub concurrency_key: Option<String>,
    /// Which bucket of the type's rate limit.
    pub limit_key: Option<String>,
    /// Tokens it takes.
    pub cost: Option<u32>,
    /// Which of the type's schemas.
    pub schema_version: Option<String>,
    /// How long the record is kept once the run has ended.
    pub keep: Option<Duration>,
    /// For people and filters; at most 8, 64 bytes each.
    pub tags: Vec<String>,
}

/// A moment, or a span counted from when the job was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this moment.
    At(Timestamp),
    /// So long after the job was enqueued.
    After(Duration),
}

impl When {
    /// The moment that is meant, for a job enqueued at `enqueued_at`.
    #[must_use]
    pub fn from(self, enqueued_at: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::After(span) => enqueued_at.plus(span),
        }
    }
}

/// When an idempotency key is free again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unique {
    /// After its window.
    #[default]
    Window,
    /// Once the job starts.
    Queued,
    /// Once the run has ended.
    Active,
}
