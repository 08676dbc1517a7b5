//! The API: request and answer of every endpoint as types, one file for each group, read and written by nodes and
//! clients alike.
//!
//! Requests are strict: a field that an endpoint does not know is refused by name, because it would otherwise be
//! ignored silently. Answers are lenient: unknown fields are skipped and unknown words kept ([`Word`]), because a newer
//! node may say more. Fields are in the order in which nodes have always written them, which is alphabetical for most
//! answers.
//!
//! JSON of clients and handlers (payload, result, progress) is carried as [`RawValue`](serde_json::value::RawValue),
//! byte for byte. So no type that holds any is read by way of serde's own buffer (`flatten`, `untagged`), which would
//! round numbers and refuse deep nesting.

use serde::Serialize;
use serde::de::DeserializeOwned;

use longshore_domain::Tenant;

mod error;
pub use error::{ApiError, Code};

mod encoded;
pub use encoded::Encoded;
mod word;
pub use word::Word;
mod request;
pub use request::Nothing;

mod submit;
pub use submit::{BatchAnswer, BatchItem, BatchRequest, Debounce, Submit, SubmitBatch, SubmitRequest, Submitted};

mod fields;
mod target;
pub use target::{Failed, Filter, Outcome, Selection, Target};

mod runs;
pub use runs::{
    Attempt, Cancelled, CancelledRuns, Erased, ErasedDeadLetter, Record, RunError, RunRequest, RunsCancel, RunsErase,
    RunsGet, RunsWait, STRANDED, WaitRequest, WaitingFor,
};
mod reschedule;
pub use reschedule::{NewStart, RescheduleRequest, Rescheduled, RescheduledRuns, RunsReschedule, RunsRunNow};

mod dlq;
pub use dlq::{
    Change, DeadJob, DeadLetter, DiscardRequest, Discarded, DlqDiscard, DlqGet, DlqGroups, DlqList, DlqReplay, Example,
    Group, Groups, GroupsRequest, ListRequest, Page, ReplayRequest, Replayed,
};

mod lists;
pub use lists::{Count, CountRequest, Counts, Runs, RunsCount, RunsList};

mod schedules;
pub use schedules::{
    BackfillRequest, Backfilled, PutRequest, ScheduleRequest, ScheduleSettings, ScheduleState, ScheduleStatus,
    Schedules, SchedulesBackfill, SchedulesDelete, SchedulesGet, SchedulesList, SchedulesPause, SchedulesPut,
    SchedulesRequest, SchedulesResume, SchedulesRunNow,
};

mod queues;
pub use queues::{
    NoHandler, PauseRequest, PauseStatus, PausedType, PurgeRequest, PutQueueRequest, QueuePut, QueueStatus, Queues,
    QueuesList, QueuesPause, QueuesPurge, QueuesPut, QueuesRequest, QueuesResume, ResumeRequest,
};
mod limits;
pub use limits::{
    LimitChanged, LimitStatus, LimitValues, Limits, LimitsList, LimitsRequest, LimitsReset, LimitsSet,
    ResetLimitRequest, SetBy, SetLimitRequest,
};
mod breakers;
pub use breakers::{
    BreakerState, BreakerStatus, Breakers, BreakersList, BreakersRequest, BreakersReset, BreakersTrip, ResetRequest,
    TripRequest,
};
mod concurrency;
pub use concurrency::{
    ConcurrencyFree, ConcurrencyLimits, ConcurrencyList, ConcurrencyRequest, ConcurrencyStatus, FreeRequest, Freed,
    SlotHolder, SlotRun,
};
mod nodes;
pub use nodes::{LogLevel, LogLevelRequest, NodeQueue, NodeStatus, Nodes, NodesList, NodesLogLevel};
mod audit;
pub use audit::{AuditEntry, AuditList, AuditPage, AuditRequest};
mod health;
pub use health::{Counters, Health, HealthRequest, HealthStatus};

#[cfg(test)]
mod tests;

/// The operator's tenant, which stands for all tenants together; NATS permissions decide which clients may ask under
/// it.
pub const OPERATOR: &str = "_all";

/// One endpoint of the API: its request and its answer.
pub trait Endpoint: Send + Sync + 'static {
    /// Its name: the part of its subject after `<namespace>.api.<tenant>.`.
    const NAME: &'static str;
    /// Whether it is answered under [`OPERATOR`] alone.
    const FOR_OPERATORS: bool = false;
    /// The request.
    type Request: Serialize + DeserializeOwned + Send + Sync;
    /// The answer if it succeeds.
    type Answer: Serialize + DeserializeOwned + Send + Sync;

    /// Reads a request.
    ///
    /// # Errors
    /// 400, and the message names the field.
    fn read(body: &[u8]) -> Result<Self::Request, ApiError> {
        request::read(body)
    }

    /// Sets the tenant in a request that is sent under [`OPERATOR`]. Does nothing if the endpoint takes no tenant.
    fn name_tenant(_request: &mut Self::Request, _tenant: Tenant) {}
}

/// Every endpoint's name.
pub const ENDPOINTS: [&str; 40] = [
    Submit::NAME,
    SubmitBatch::NAME,
    RunsGet::NAME,
    RunsWait::NAME,
    RunsCancel::NAME,
    RunsErase::NAME,
    RunsRunNow::NAME,
    RunsReschedule::NAME,
    RunsList::NAME,
    RunsCount::NAME,
    DlqList::NAME,
    DlqGet::NAME,
    DlqGroups::NAME,
    DlqReplay::NAME,
    DlqDiscard::NAME,
    SchedulesPut::NAME,
    SchedulesGet::NAME,
    SchedulesList::NAME,
    SchedulesDelete::NAME,
    SchedulesPause::NAME,
    SchedulesResume::NAME,
    SchedulesRunNow::NAME,
    SchedulesBackfill::NAME,
    QueuesList::NAME,
    QueuesPut::NAME,
    QueuesPause::NAME,
    QueuesResume::NAME,
    QueuesPurge::NAME,
    LimitsList::NAME,
    LimitsSet::NAME,
    LimitsReset::NAME,
    BreakersList::NAME,
    BreakersReset::NAME,
    BreakersTrip::NAME,
    ConcurrencyList::NAME,
    ConcurrencyFree::NAME,
    AuditList::NAME,
    NodesList::NAME,
    NodesLogLevel::NAME,
    Health::NAME,
];
