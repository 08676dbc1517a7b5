//! Runs: looked at, waited for, cancelled, erased.

use longshore_domain::run::PutBack;
use longshore_domain::{ErrorKind, JobType, Priority, Queue, RunId, RunState, Tenant, Timestamp};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::fields::Fields;
use super::{Encoded, Endpoint, Failed, Outcome, Selection, Word};

/// `runs.get`: a run as it stands; 404 where it is not known.
#[derive(Debug)]
pub struct RunsGet;

impl Endpoint for RunsGet {
    const NAME: &'static str = "runs.get";
    type Request = RunRequest;
    type Answer = Record;

    fn name_tenant(request: &mut RunRequest, tenant: Tenant) {
        request.tenant = Some(tenant);
    }
}

/// `runs.wait`: a run once it has finished, or as it stands when the time is over.
#[derive(Debug)]
pub struct RunsWait;

impl Endpoint for RunsWait {
    const NAME: &'static str = "runs.wait";
    type Request = WaitRequest;
    type Answer = Record;

    fn name_tenant(request: &mut WaitRequest, tenant: Tenant) {
        request.tenant = Some(tenant);
    }
}

/// `runs.cancel`: cancels one run, or those that fit.
#[derive(Debug)]
pub struct RunsCancel;

impl Endpoint for RunsCancel {
    const NAME: &'static str = "runs.cancel";
    type Request = Selection;
    type Answer = Cancelled;

    fn name_tenant(request: &mut Selection, tenant: Tenant) {
        request.tenant = Some(tenant);
    }
}

/// `runs.erase`: takes what a finished run holds of people out of its record, and its dead letter away.
#[derive(Debug)]
pub struct RunsErase;

impl Endpoint for RunsErase {
    const NAME: &'static str = "runs.erase";
    type Request = RunRequest;
    type Answer = Erased;

    fn name_tenant(request: &mut RunRequest, tenant: Tenant) {
        request.tenant = Some(tenant);
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct RunRequest {
    /// Its id.
    pub run_id: RunId,
    /// Whose it is: must be said under [`OPERATOR`](super::OPERATOR), and there alone may it be another's.
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
    /// For how long, in milliseconds: 30,000 if not said, 600,000 at most.
    pub timeout_ms: Option<u64>,
}

impl WaitRequest {
    /// The run that is waited for.
    #[must_use]
    pub fn run(self) -> RunRequest {
        RunRequest { run_id: self.run_id, tenant: self.tenant }
    }
}

impl TryFrom<Fields> for RunRequest {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let fields = fields.only(&["run_id", "tenant"])?;
        Ok(Self { run_id: fields.run()?, tenant: fields.tenant()? })
    }
}

impl From<RunRequest> for Fields {
    fn from(RunRequest { run_id, tenant }: RunRequest) -> Self {
        Self::of_run(&run_id, tenant.as_ref())
    }
}

impl TryFrom<Fields> for WaitRequest {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let fields = fields.only(&["run_id", "tenant", "timeout_ms"])?;
        Ok(Self { run_id: fields.run()?, tenant: fields.tenant()?, timeout_ms: fields.timeout_ms })
    }
}

impl From<WaitRequest> for Fields {
    fn from(WaitRequest { run_id, tenant, timeout_ms }: WaitRequest) -> Self {
        Self { timeout_ms, ..Self::of_run(&run_id, tenant.as_ref()) }
    }
}

/// A run's record, as answers show it. Nodes write it by [`record::show`](crate::wire::record::show), which says the
/// same in a fraction of the time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The run.
    pub run_id: RunId,
    /// Whose it is; `_` where that could not be read.
    pub tenant: Tenant,
    /// Its queue.
    pub queue: Queue,
    /// Its priority.
    pub priority: Priority,
    /// What is done.
    #[serde(rename = "type")]
    pub job_type: JobType,
    /// Where it stands.
    pub state: Word<RunState>,
    /// 1, and one more with each replay.
    pub round: u32,
    /// Number of the latest start in this round; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Attempts it gets in a round.
    pub max_attempts: u32,
    /// When it was enqueued in this round; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<Timestamp>,
    /// When its latest attempt started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Until when it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The node of its latest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What its handler last said, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Box<RawValue>>,
    /// Its result where that is JSON, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// Any other result, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<String>,
    /// What `result_base64` is, where its handler said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_content_type: Option<String>,
    /// Size of a result in bytes, where it was too large to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_bytes: Option<u64>,
    /// Its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// Its attempts, the oldest first.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Its tags; absent where it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The run that has its idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<RunId>,
    /// For how long the job or its type asked its record to be kept, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// Since when payload, result, progress, tags and error texts are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased_at: Option<Timestamp>,
    /// Attempts that were left out of an answer that would have been too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_left_out: Option<u64>,
}

/// Why an attempt or a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunError {
    /// Its kind.
    pub kind: Word<ErrorKind>,
    /// In words, 4,096 bytes at most.
    pub message: String,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its round.
    pub round: u32,
    /// Its number within the round, from 1.
    pub attempt: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// The node that ran it.
    pub node: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// When the next attempt was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Why it was released without being used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_back: Option<Word<PutBack>>,
    /// Which start of this attempt it was; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
}

/// The answer to a cancel.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Cancelled {
    /// Of one run by its id: its record.
    Run(Box<Record>),
    /// Of those that fit.
    Runs(CancelledRuns),
}

/// What became of those that were to be cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelledRuns {
    /// How many this call cancelled, or would have.
    pub cancelled: u64,
    /// What failed: 100 at most.
    pub failed: Vec<Failed>,
    /// How many failed, where more did than are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_in_all: Option<u64>,
    /// The call ended before everything was looked at: make it again.
    pub more: bool,
}

/// The answer to an erasure.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Erased {
    /// The record that stays.
    Run(Box<Record>),
    /// The record had gone by its age before; only the dead letter was there to be erased.
    DeadLetter(ErasedDeadLetter),
}

/// A run of which nothing but a dead letter was there to be erased.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasedDeadLetter {
    /// The run.
    pub run_id: RunId,
}

/// What tells the one shape of an answer from the other.
#[derive(Deserialize)]
struct Shape {
    #[serde(default)]
    cancelled: Option<IgnoredAny>,
    #[serde(default)]
    state: Option<IgnoredAny>,
}

// Read as text first: serde's buffer for untagged enums does not carry what handlers said byte for byte.
impl<'de> Deserialize<'de> for Cancelled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let read = |text| match serde_json::from_str::<Shape>(text)?.cancelled {
            Some(_) => serde_json::from_str(text).map(Self::Runs),
            None => serde_json::from_str(text).map(Self::Run),
        };
        read(text.get()).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Erased {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let read = |text| match serde_json::from_str::<Shape>(text)?.state {
            Some(_) => serde_json::from_str(text).map(Self::Run),
            None => serde_json::from_str(text).map(Self::DeadLetter),
        };
        read(text.get()).map_err(serde::de::Error::custom)
    }
}

impl From<Outcome> for CancelledRuns {
    fn from(Outcome { done, failed, failed_in_all, more }: Outcome) -> Self {
        Self { cancelled: done, failed, failed_in_all, more }
    }
}

impl From<CancelledRuns> for Outcome {
    fn from(CancelledRuns { cancelled, failed, failed_in_all, more }: CancelledRuns) -> Self {
        Self { done: cancelled, failed, failed_in_all, more }
    }
}

impl From<Cancelled> for Outcome {
    fn from(answer: Cancelled) -> Self {
        match answer {
            Cancelled::Run(_) => Self { done: 1, ..Self::default() },
            Cancelled::Runs(runs) => runs.into(),
        }
    }
}

impl From<Encoded<Record>> for Encoded<Cancelled> {
    fn from(record: Encoded<Record>) -> Self {
        record.cast()
    }
}

impl From<Encoded<Record>> for Encoded<Erased> {
    fn from(record: Encoded<Record>) -> Self {
        record.cast()
    }
}
