//! Runs: shown, waited for, cancelled, erased.

use longshore_domain::run::{Detached, LogLine, PutBack, Step};
use longshore_domain::{BatchId, ErrorKind, JobType, Priority, Queue, RunId, RunState, Tenant, Timestamp, TraceId};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;

use super::encoded::by_field;
use super::fields::{Fields, takes};
use super::{Encoded, Failed, Word, request};

/// One run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct RunRequest {
    /// Its id.
    pub run_id: RunId,
    /// Its tenant: required under `_all`, and only there may it be another tenant's.
    pub tenant: Option<Tenant>,
}

/// A run that is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct WaitRequest {
    /// Its id.
    pub run_id: RunId,
    /// As in [`RunRequest`].
    pub tenant: Option<Tenant>,
    /// How long to wait, in milliseconds: 30,000 by default, at most 600,000.
    pub timeout_ms: Option<u64>,
}

impl WaitRequest {
    /// The run that is waited for.
    pub fn run(self) -> RunRequest {
        RunRequest { run_id: self.run_id, tenant: self.tenant }
    }
}

takes! {
    RunRequest: &["run_id", "tenant"], needs "run_id";
    fields => Ok(Self { run_id: fields.run()?, tenant: fields.tenant()? });
    RunRequest { run_id, tenant } => Self::of_run(&run_id, tenant.as_ref())
}

takes! {
    WaitRequest: &["run_id", "tenant", "timeout_ms"], needs "run_id";
    fields => Ok(Self { run_id: fields.run()?, tenant: fields.tenant()?, timeout_ms: fields.timeout_ms });
    WaitRequest { run_id, tenant, timeout_ms } => Self { timeout_ms, ..Self::of_run(&run_id, tenant.as_ref()) }
}

/// A run's record, as answers show it.
// Nodes write it by `record::show`, which writes the same text in a fraction of the time.
#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The run.
    pub run_id: RunId,
    /// Its tenant; `_` if that could not be read.
    pub tenant: Tenant,
    /// Its queue.
    pub queue: Queue,
    /// Its priority.
    pub priority: Priority,
    /// Its type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Its state.
    pub state: Word<RunState>,
    /// 1, and one more with each replay.
    pub round: u32,
    /// Number of the latest start in this round; absent before the first.
    pub attempt: Option<u32>,
    /// Attempts it gets in a round.
    pub max_attempts: u32,
    /// When it was first submitted or published: before `enqueued_at` if it was delayed, rescheduled or replayed.
    /// Absent if that is not known.
    pub submitted_at: Option<Timestamp>,
    /// When it was enqueued in this round; absent if that is not known.
    pub enqueued_at: Option<Timestamp>,
    /// When its latest attempt started.
    pub started_at: Option<Timestamp>,
    /// When it finished.
    pub ended_at: Option<Timestamp>,
    /// Until when it waits.
    pub run_at: Option<Timestamp>,
    /// The node of its latest attempt.
    pub node: Option<String>,
    /// The progress that its handler last reported, byte for byte.
    #[serde(default, deserialize_with = "request::any_json")]
    pub progress: Option<Box<RawValue>>,
    /// The last lines that its handlers wrote into its log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
    /// The steps that its handlers have finished, the first 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Its result if that is JSON, byte for byte.
    #[serde(default, deserialize_with = "request::any_json")]
    pub result: Option<Box<RawValue>>,
    /// Any other result, in base64.
    pub result_base64: Option<String>,
    /// The content type of `result_base64`, if its handler named it.
    pub result_content_type: Option<String>,
    /// Size of the result in bytes, if it was too large to be kept.
    pub result_bytes: Option<u64>,
    /// Its last error.
    pub error: Option<RunError>,
    /// Its attempts, the oldest first.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Its tags; absent if it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The values of its payload by which it is found, if its type declares some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// The run that has its idempotency key.
    pub duplicate_of: Option<RunId>,
    /// The run that it follows in a chain.
    pub parent_run_id: Option<RunId>,
    /// The type of the job that follows once it has completed.
    pub then: Option<JobType>,
    /// The batch that it belongs to.
    pub batch_id: Option<BatchId>,
    /// The runs that follow it in a chain, once it has completed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<RunId>,
    /// How long the job or its type asked to keep its record, in milliseconds.
    pub keep_ms: Option<u64>,
    /// Since when payload, result, progress, log, tags, search values and error texts are gone.
    pub erased_at: Option<Timestamp>,
    /// The trace that it belongs to: 32 hexadecimal digits.
    pub trace_id: Option<TraceId>,
    /// How many attempts were left out, because the answer would have been too large.
    pub attempts_left_out: Option<u64>,
    /// What it waits for, while it waits.
    pub waiting_for: Option<WaitingFor>,
}

/// The reason of a run that waits, or is called running, and that nothing can bring on.
pub const STRANDED: &str = "stranded";

/// What happened to a run, in words.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Why<R = Record> {
    /// What happened, the oldest first, at most 1,000; then how it stands.
    pub lines: Vec<WhyLine>,
    /// Its record.
    pub run: R,
}

impl From<Why<Encoded<Record>>> for Encoded<Why> {
    fn from(why: Why<Encoded<Record>>) -> Self {
        Encoded::of(&why).cast()
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WhyLine {
    /// When it happened; absent from those that say how the run stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// What is said.
    pub text: String,
}

/// A job's payload, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Payload {
    /// The job's type.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// The job's header `Content-Type`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Its bytes in base64.
    pub payload_base64: String,
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitingFor {
    /// The reason of a deferral, or `schedule`, `retry`, `worker`, `queue_unserved`, or `stranded`.
    pub reason: String,
    /// In words: begins with "waits for".
    pub message: String,
}

/// Why an attempt or a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunError {
    /// Its kind.
    pub kind: Word<ErrorKind>,
    /// A description, at most 4,096 bytes.
    pub message: String,
}

/// One attempt.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// Its round.
    pub round: u32,
    /// Its number within the round, from 1.
    pub attempt: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended; absent while it runs.
    pub ended_at: Option<Timestamp>,
    /// The node that ran it.
    pub node: String,
    /// Why it failed.
    pub error: Option<RunError>,
    /// When the next attempt was due.
    pub retry_at: Option<Timestamp>,
    /// Why it was released without being used up.
    pub put_back: Option<Word<PutBack>>,
    /// Which start of this attempt it was; absent for the first.
    pub start: Option<u32>,
    /// Since when it goes on elsewhere, and until when it was to end.
    pub detached: Option<Detached>,
}

/// The answer to a cancel.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Cancelled {
    /// For one run by its id: its record.
    Run(Box<Record>),
    /// For the runs that match a filter.
    Runs(CancelledRuns),
}

/// The outcome of a cancel of many runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CancelledRuns {
    /// How many this call cancelled, or would have cancelled.
    pub cancelled: u64,
    /// The failures: at most 100.
    pub failed: Vec<Failed>,
    /// How many failed, if more did than are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_in_all: Option<u64>,
    /// Whether the call ended before it had checked everything: then repeat it.
    pub more: bool,
}

/// The answer to an erasure.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Erased {
    /// The record that stays.
    Run(Box<Record>),
    /// There was no record, or none that could be read; what was there was erased.
    DeadLetter(ErasedDeadLetter),
}

/// A run for which only a dead letter was there to be erased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErasedDeadLetter {
    /// The run.
    pub run_id: RunId,
}

impl<'de> Deserialize<'de> for Cancelled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_field(deserializer, "cancelled", Self::Runs, Self::Run)
    }
}

impl<'de> Deserialize<'de> for Erased {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_field(deserializer, "state", Self::Run, Self::DeadLetter)
    }
}

impl From<Encoded<Record>> for Encoded<Erased> {
    fn from(record: Encoded<Record>) -> Self {
        record.cast()
    }
}
