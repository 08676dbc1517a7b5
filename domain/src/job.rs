//! A job: the work that a client asks for. Its payload is the user's own bytes, which the rules do not read.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{BatchId, JobType, Lane, Priority, Queue, RunId, Tenant, Timestamp};

/// The work to do, its owner and its urgency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The tenant that owns it.
    pub tenant: Tenant,
    /// The queue it waits in.
    pub queue: Queue,
    /// How urgent it is.
    pub priority: Priority,
    /// The type of work.
    pub job_type: JobType,
    /// The id of its run.
    pub run_id: RunId,
    /// The options that its headers ask for; `None` if there are none, which is the common case and costs nothing.
    pub options: Option<Box<JobOptions>>,
}

impl Job {
    /// The lane it waits in.
    pub fn lane(&self) -> Lane {
        Lane::new(&self.queue, self.priority)
    }

    /// Whose job it is, where and of which type: a copy without the options takes no memory of its own.
    #[must_use]
    pub fn without_options(&self) -> Self {
        let Self { tenant, queue, priority, job_type, run_id, .. } = self;
        let (tenant, queue, job_type, run_id) = (tenant.clone(), queue.clone(), job_type.clone(), run_id.clone());
        Self { tenant, queue, priority: *priority, job_type, run_id, options: None }
    }
}

/// What a client may ask for beyond the job itself. Every option may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobOptions {
    /// The client chose the run's id itself.
    pub own_run_id: bool,
    /// One run per key within [`Self::idempotency_window`].
    pub idempotency_key: Option<String>,
    /// How long the key holds; if absent, for the configured window.
    pub idempotency_window: Option<Duration>,
    /// When the key is free again.
    pub unique: Unique,
    /// The maximum number of attempts in a round, 1 to 1,000.
    pub max_attempts: Option<u32>,
    /// The name of a back-off preset.
    pub retry: Option<String>,
    /// The job does not start before this moment.
    pub run_at: Option<When>,
    /// Time limit of one attempt.
    pub timeout: Option<Duration>,
    /// Time limit of the whole run.
    pub deadline: Option<When>,
    /// The run expires if it has not started by this moment.
    pub expires: Option<When>,
    /// Only a limited number of jobs with the same key run at once.
    pub concurrency_key: Option<String>,
    /// The bucket of the type's rate limit that it uses.
    pub limit_key: Option<String>,
    /// How many tokens of the rate limit it takes.
    pub cost: Option<u32>,
    /// The version of the type's schema.
    pub schema_version: Option<String>,
    /// How long the record is kept once the run has ended.
    pub keep: Option<Duration>,
    /// For people and filters; at most 8, at most 64 bytes each.
    pub tags: Vec<String>,
    /// The job that follows once its run has completed.
    pub then: Option<Then>,
    /// The batch that it belongs to.
    pub batch: Option<BatchId>,
}

/// The job that follows a run once that has completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Then {
    /// Its type.
    pub job_type: JobType,
    /// The whole of it, as JSON that a header can carry.
    pub job: String,
}

/// A moment, or a span counted from when the job was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this moment.
    At(Timestamp),
    /// This long after the job was enqueued.
    After(Duration),
}

impl When {
    /// The moment for a job enqueued at `enqueued_at`.
    #[must_use]
    pub fn from(self, enqueued_at: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::After(span) => enqueued_at.plus(span),
        }
    }
}

#[cfg(test)]
impl Job {
    /// A job without options, for tests.
    pub(crate) fn example() -> Self {
        Self {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("t").unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: None,
        }
    }
}

crate::named! {
    /// When an idempotency key is free again.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Unique {
        /// After its window.
        #[default]
        Window = "window",
        /// Once the job starts.
        Queued = "queued",
        /// Once the run has ended.
        Active = "active",
    }
}
