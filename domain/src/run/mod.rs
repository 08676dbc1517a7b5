//! The run record: the stored facts about a run, and the fence that decides which node may continue it.
//!
//! The contract defines its JSON (section 3). The protocol needs some more fields: `held_by` names the message that
//! carries the run and its claimed delivery, `origin` says when the run was first published, `token` identifies the
//! writer of this version, so that a read can settle an unclear answer to a write, `seal` proves that a node wrote a
//! message of the run, `published` and `key_claimed_ms` say which steps `submit` has completed.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use smol_str::SmolStr;

pub use attempt::{Attempt, PutBack};
pub use failure::{ErrorKind, Failure, MESSAGE_MAX};
pub use holding::{Holding, MessageId};
pub use wait::{DeferReason, Deferral};

use crate::settlement::Settlement;
use crate::{Job, JobType, Priority, Queue, RunId, Tenant, Timestamp};

mod attempt;
mod failure;
mod holding;
mod shorten;
mod wait;

/// A record keeps this many of a run's last error messages whole, and the first 200 bytes of earlier ones.
const WHOLE_MESSAGES: usize = 32;
const SHORT_MESSAGE: usize = 200;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Waits for its time.
    Scheduled,
    /// Waits for a worker.
    Enqueued,
    /// An attempt runs.
    Running,
    /// Waits for its next attempt.
    Retrying,
    /// Ended successfully.
    Completed,
    /// Ended with a failure; a dead letter is kept.
    Dead,
    /// Ended by a person or program.
    Cancelled,
    /// Was not started in time.
    Expired,
    /// Another run has its idempotency key.
    Duplicate,
    /// Its dead letter was discarded.
    Discarded,
}

impl RunState {
    /// Whether the run has ended (a replay may open another round).
    #[must_use]
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Scheduled | Self::Enqueued | Self::Running | Self::Retrying)
    }

    /// The name of the state in records and filters.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Enqueued => "enqueued",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Completed => "completed",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Duplicate => "duplicate",
            Self::Discarded => "discarded",
        }
    }
}

/// A run's result, as the record keeps it.
#[derive(Debug, Clone, Default)]
pub enum RunResult {
    /// There is none.
    #[default]
    None,
    /// JSON, kept as it is.
    Json(Box<RawValue>),
    /// Anything else.
    Other {
        /// The bytes, in base64.
        base64: String,
        /// Their content type.
        content_type: Option<String>,
    },
    /// Too large to keep; its size in bytes.
    TooLarge(u64),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_none_yet(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The run record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Its id, unique within the tenant.
    pub run_id: RunId,
    /// The tenant that owns it.
    pub tenant: Tenant,
    /// The queue in which its job waits or waited.
    pub queue: Queue,
    /// How urgent it is.
    pub priority: Priority,
    /// The type of work.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Its state.
    pub state: RunState,
    /// 1, and one more with each replay.
    pub round: u32,
    /// The attempt that was last started in this round; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// The maximum number of attempts in a round.
    pub max_attempts: u32,
    /// When it began to wait for a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<Timestamp>,
    /// When its first attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Its next attempt does not start before this moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The node that works or last worked on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<SmolStr>,
    /// The progress that its handler last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Box<RawValue>>,
    /// Its result, if it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// Its result, if it is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<String>,
    /// The content type of a result that is not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_content_type: Option<String>,
    /// The size of a result that was too large to keep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
    /// Why it last failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// Every attempt of every round.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// For people and filters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The run that has its idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<RunId>,
    /// Its last deferral.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferral: Option<Deferral>,
    /// How often it was deferred in this round; distinguishes the waits of one attempt.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub deferrals: u32,
    /// Its job is parked, not in a lane or among the schedules; its rank counts from `run_at`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub parked: bool,
    /// How long the record is kept once the run has ended, in milliseconds, if the job or its type sets a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// When its personal data was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased_at: Option<Timestamp>,
    /// The run owns its idempotency key, claimed for this many milliseconds; absent until that is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_claimed_ms: Option<u64>,
    /// `submit` made this record, and the message or schedule that it then wrote is durable.
    #[serde(default, skip_serializing_if = "is_false")]
    pub published: bool,
    /// Proves that a node wrote a message of this run; empty as long as there was no such message.
    #[serde(default, skip_serializing_if = "SmolStr::is_empty")]
    pub seal: SmolStr,
    /// The message that carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Holding>,
    /// When it was first published.
    #[serde(default)]
    pub origin: Timestamp,
    /// Identifies the writer of this version of the record.
    #[serde(default)]
    pub token: SmolStr,
}

/// A time span as the record stores it, in whole milliseconds.
#[must_use]
pub fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Run {
    /// A run that has no record yet, waiting since `enqueued_at`.
    #[must_use]
    pub fn new(job: &Job, max_attempts: u32, enqueued_at: Timestamp) -> Self {
        Self {
            run_id: job.run_id.clone(),
            tenant: job.tenant.clone(),
            queue: job.queue.clone(),
            priority: job.priority,
            job_type: job.job_type.clone(),
            state: RunState::Enqueued,
            round: 1,
            attempt: 0,
            max_attempts,
            enqueued_at: Some(enqueued_at),
            started_at: None,
            ended_at: None,
            run_at: None,
            node: None,
            progress: None,
            result: None,
            result_base64: None,
            result_content_type: None,
            result_bytes: None,
            error: None,
            attempts: Vec::new(),
            tags: job.options.as_ref().map(|options| options.tags.clone()).unwrap_or_default(),
            duplicate_of: None,
            deferral: None,
            deferrals: 0,
            parked: false,
            keep_ms: job.options.as_ref().and_then(|options| options.keep).map(whole_millis),
            erased_at: None,
            key_claimed_ms: None,
            published: false,
            seal: SmolStr::default(),
            held_by: None,
            origin: enqueued_at,
            token: SmolStr::default(),
        }
    }

    /// The number of the attempt that starts next: a requeued one starts again under its own number.
    #[must_use]
    pub fn next_attempt(&self) -> u32 {
        match self.state {
            RunState::Scheduled | RunState::Enqueued => self.attempt.max(1),
            _ => self.attempt + 1,
        }
    }

    /// Whether an attempt of this round was started.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.attempt > 0
    }

    /// The attempts of this round.
    pub fn attempts_of_round(&self) -> impl Iterator<Item = &Attempt> {
        let round = self.round;
        self.attempts.iter().filter(move |attempt| attempt.round == round)
    }

    /// A scheduled run's time has come: it waits for a worker since `at`, when its message reached the lane.
    pub fn fall_due(&mut self, at: Timestamp) {
        if self.state == RunState::Scheduled {
            self.state = RunState::Enqueued;
            self.enqueued_at = Some(at);
            self.run_at = None;
        }
    }

    /// Begins attempt `attempt` on `node`.
    pub fn begin(&mut self, attempt: u32, node: &SmolStr, now: Timestamp) {
        let start = match self.attempts.last() {
            // The events of a requeued entry are published by now (see `Verdict::BeginAgain`): one entry is enough to
            // keep.
            Some(last) if last.round == self.round && last.attempt == attempt && last.put_back.is_some() => {
                let start = last.start + 1;
                self.attempts.pop();
                start
            }
            _ => 1,
        };
        self.state = RunState::Running;
        self.attempt = attempt;
        self.run_at = None;
        self.parked = false;
        self.started_at = self.started_at.or(Some(now));
        self.node = Some(node.clone());
        if self.attempts.is_empty() {
            // Most runs have one.
            self.attempts.reserve_exact(1);
        }
        self.attempts.push(Attempt {
            round: self.round,
            attempt,
            started_at: now,
            ended_at: None,
            node: node.clone(),
            error: None,
            retry_at: None,
            put_back: None,
            start,
        });
    }

    /// Begins an attempt that was claimed but never started, on `node` instead.
    pub fn begin_instead(&mut self, node: &SmolStr, now: Timestamp) {
        self.node = Some(node.clone());
        let Some(attempt) = self.attempts.last_mut() else { return };
        if self.started_at == Some(attempt.started_at) {
            self.started_at = Some(now);
        }
        attempt.node = node.clone();
        attempt.started_at = now;
    }

    /// Writes down what follows from the running attempt or, if none was started, from the waiting job.
    pub fn settle(&mut self, settlement: Settlement, now: Timestamp) {
        self.parked = match settlement {
            Settlement::Park { .. } => true,
            // Its message stays parked until it is removed or returns.
            Settlement::Cancel => self.parked,
            _ => false,
        };
        match settlement {
            Settlement::Complete(result) => {
                self.end_attempt(now, None);
                self.keep(result);
                self.error = None;
                self.end(RunState::Completed, now);
            }
            Settlement::Retry { at, failure } => {
                self.end_attempt(now, Some(failure.clone()));
                if let Some(attempt) = self.attempts.last_mut() {
                    attempt.retry_at = Some(at);
                }
                self.error = Some(failure);
                self.run_at = Some(at);
                self.deferral = None;
                self.state = RunState::Retrying;
            }
            Settlement::Dead { failure } => {
                self.end_attempt(now, Some(failure.clone()));
                self.error = Some(failure);
                self.end(RunState::Dead, now);
            }
            Settlement::Defer { at, reason, put_back } => self.defer(at, reason, put_back, now),
            Settlement::Release => {
                self.put_back(PutBack::Released, now);
                self.deferral = None;
                self.state = RunState::Enqueued;
            }
            Settlement::Park { since } => self.park(since),
            Settlement::Schedule { at } => {
                self.state = RunState::Scheduled;
                self.run_at = Some(at);
                self.enqueued_at = None;
            }
            Settlement::Expire => self.end(RunState::Expired, now),
            Settlement::Cancel => {
                let failure = Failure::new(ErrorKind::Cancelled, "the run was cancelled");
                self.end_attempt(now, Some(failure));
                self.end(RunState::Cancelled, now);
            }
            Settlement::Duplicate { of } => {
                self.duplicate_of = Some(of);
                self.end(RunState::Duplicate, now);
            }
        }
    }

    /// A dead run begins another round; its attempts are kept, and no message carries it yet.
    pub fn replay(&mut self, now: Timestamp) {
        self.state = RunState::Enqueued;
        self.round += 1;
        self.attempt = 0;
        self.enqueued_at = Some(now);
        self.started_at = None;
        self.ended_at = None;
        self.node = None;
        self.progress = None;
        self.error = None;
        self.deferral = None;
        self.deferrals = 0;
        self.published = false;
        self.held_by = None;
    }

    /// Its dead letter is discarded.
    pub fn discard(&mut self, now: Timestamp) {
        self.state = RunState::Discarded;
        self.ended_at = Some(now);
    }

    /// Removes the personal data that the run holds; when and how it went stays. A second call changes nothing more.
    pub fn erase(&mut self, now: Timestamp) {
        (self.progress, self.result, self.result_base64, self.result_content_type) = (None, None, None, None);
        self.tags.clear();
        for error in self.attempts.iter_mut().filter_map(|attempt| attempt.error.as_mut()).chain(&mut self.error) {
            error.message.clear();
        }
        self.erased_at = self.erased_at.or(Some(now));
    }

    fn keep(&mut self, result: RunResult) {
        match result {
            RunResult::None => {}
            RunResult::Json(json) => self.result = Some(json),
            RunResult::Other { base64, content_type } => {
                self.result_base64 = Some(base64);
                self.result_content_type = content_type;
            }
            RunResult::TooLarge(bytes) => self.result_bytes = Some(bytes),
        }
    }

    fn end(&mut self, state: RunState, now: Timestamp) {
        if self.state == RunState::Running {
            self.deferral = None;
        }
        self.state = state;
        self.ended_at = Some(now);
        // A cancelled run's job may still wait for its time: the record must outlast it.
        if state != RunState::Cancelled {
            self.run_at = None;
        }
    }

    fn end_attempt(&mut self, now: Timestamp, error: Option<Failure>) {
        self.shorten_history();
        if let Some(attempt) = self.attempts.last_mut().filter(|attempt| attempt.ended_at.is_none()) {
            attempt.ended_at = Some(now);
            attempt.error = error;
        }
    }

    /// Keeps a record of a thousand long failures well below the size limit of a message: only the last few error
    /// messages stay whole.
    fn shorten_history(&mut self) {
        let old = self.attempts.len().saturating_sub(WHOLE_MESSAGES);
        for error in self.attempts[..old].iter_mut().filter_map(|attempt| attempt.error.as_mut()) {
            error.message.truncate(error.message.floor_char_boundary(SHORT_MESSAGE));
        }
    }

    /// How long the last attempt took; `None` while it runs.
    #[must_use]
    pub fn last_attempt_took(&self) -> Option<Duration> {
        let attempt = self.attempts.last()?;
        Some(attempt.ended_at?.since(attempt.started_at))
    }
}
