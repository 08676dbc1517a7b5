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

mod endpoints;
pub use endpoints::*;

mod error;
pub use error::{ApiError, Code};

mod encoded;
pub use encoded::Encoded;
mod word;
pub use word::Word;
mod redact;
pub use redact::{redact, redact_event};
mod request;
pub use request::{Nothing, about_tenant, read};

mod submit;
pub use submit::{BatchAnswer, BatchItem, BatchRequest, Debounce, SubmitRequest, Submitted};

mod fields;
mod target;
pub use target::{Failed, Filter, Outcome, Selection, Target};

mod runs;
pub use runs::{
    Attempt, Cancelled, CancelledRuns, Erased, ErasedDeadLetter, Payload, Record, RunError, RunRequest, STRANDED,
    WaitRequest, WaitingFor, Why, WhyLine,
};
mod reschedule;
pub use reschedule::{NewStart, RescheduleRequest, Rescheduled, RescheduledRuns};

mod dlq;
pub use dlq::{
    Change, DeadJob, DeadLetter, DiscardRequest, Discarded, Example, Group, Groups, GroupsRequest, ListRequest, Page,
    ReplayRequest, Replayed,
};

mod lists;
pub use lists::{Count, CountRequest, Counts, Runs, RunsRequest};

mod schedules;
pub use schedules::{
    BackfillRequest, Backfilled, PutRequest, ScheduleRequest, ScheduleSettings, ScheduleState, ScheduleStatus,
    Schedules, SchedulesRequest,
};

mod queues;
pub use queues::{
    NoHandler, PauseRequest, PauseStatus, PausedType, PurgeRequest, PutQueueRequest, QueuePut, QueueShare, QueueShares,
    QueueStatus, Queues, QueuesRequest, ResumeRequest, SharesRequest,
};

mod late;
pub use late::{CompleteRequest, FailRequest, Goes, ProgressRequest};

mod work;
pub use work::{Next, NextRequest, PulledJob};

mod limits;
pub use limits::{
    LimitChanged, LimitStatus, LimitValues, Limits, LimitsRequest, ResetLimitRequest, SetBy, SetLimitRequest,
};
mod breakers;
pub use breakers::{BreakerState, BreakerStatus, Breakers, BreakersRequest, ResetRequest, TripRequest};
mod concurrency;
pub use concurrency::{
    ConcurrencyLimits, ConcurrencyRequest, ConcurrencyStatus, FreeRequest, Freed, SlotHolder, SlotRun,
};
mod faults;
pub use faults::{ClearFaultsRequest, FaultSet, FaultStatus, Faults, FaultsCleared, SetFaultRequest};
mod keys;
pub use keys::{CreateKeyRequest, KeyCreated, KeyStatus, Keys, RevokeKeyRequest, id_of_key, is_key_id, key_text};
mod batches;
pub use batches::{
    BatchCounts, BatchPayload, BatchState, BatchStatus, Batches, BatchesRequest, CreateBatchRequest, FailedMember,
    OnFailure, OneBatchRequest,
};
mod webhooks;
pub use webhooks::{
    PutWebhookRequest, WEBHOOK_TYPE, WebhookFormat, WebhookRequest, WebhookSecret, WebhookStatus, WebhookTest,
    Webhooks, WebhooksRequest,
};
mod nodes;
pub use nodes::{
    InForce, LogLevel, LogLevelRequest, NodeQueue, NodeSettings, NodeStatus, Nodes, Quantiles, SettingsRequest, Stats,
    StatsPoint,
};
mod audit;
pub use audit::{AuditEntry, AuditPage, AuditRequest};
mod health;
pub use health::{Counters, HandlerStatus, HealthRequest, HealthStatus, PartStatus};

#[cfg(test)]
mod tests;

/// The operator's tenant, which stands for all tenants together; NATS permissions decide which clients may ask under
/// it.
pub const OPERATOR: &str = "_all";
