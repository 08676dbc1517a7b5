//! Names of the headers that nodes write themselves.

/// The run's id.
pub const RUN_ID: &str = "Longshore-Run-Id";
/// The round that a moved job or a handler's request is about.
pub const ROUND: &str = "Longshore-Round";
/// The attempt that a moved job or a handler's request is about.
pub const ATTEMPT: &str = "Longshore-Attempt";
/// Proves that a node wrote the message: the random number that the run's record has as well.
pub const SEAL: &str = "Longshore-Seal";
/// How often the run of a moved job had been deferred in its round.
pub const DEFERRALS: &str = "Longshore-Deferrals";
/// Why a job had to wait, written by nodes.
pub const DEFERRED_FOR: &str = "Longshore-Deferred-For";
/// When a moved job fell due, in Unix milliseconds.
pub const DUE_AT: &str = "Longshore-Due-At";
/// The place of a job in the order of its concurrency key.
pub const PLACE: &str = "Longshore-Place";
/// How many bytes the payload had that was left out, as the server takes no message of that size any more.
pub const LEFT_OUT: &str = "Longshore-Payload-Left-Out";
/// The job's tenant.
pub const TENANT: &str = "Longshore-Tenant";
/// Its queue.
pub const QUEUE: &str = "Longshore-Queue";
/// Its priority.
pub const PRIORITY: &str = "Longshore-Priority";
/// Its type.
pub const TYPE: &str = "Longshore-Type";
/// Attempts in a round.
pub const MAX_ATTEMPTS: &str = "Longshore-Max-Attempts";
/// When the attempt's time is over.
pub const ATTEMPT_DEADLINE: &str = "Longshore-Attempt-Deadline";
/// The kind of a signal, which is sent before the reply: `started`, `heartbeat`, `progress`, `log`.
pub const SIGNAL: &str = "Longshore-Signal";
/// Whether a failure is worth another attempt.
pub const RETRYABLE: &str = "Longshore-Retryable";
/// How long to wait at least before the next attempt.
pub const RETRY_AFTER: &str = "Longshore-Retry-After";
/// How long the job is snoozed.
pub const SNOOZE: &str = "Longshore-Snooze";
/// How long the attempt goes on after the reply, and from each report of its progress.
pub const DETACH: &str = "Longshore-Detach";
/// Proves that a caller of `runs.complete`, `runs.fail` or `runs.progress` knows the attempt.
pub const ATTEMPT_TOKEN: &str = "Longshore-Attempt-Token";
/// How long the job's limit key or type is held, for all jobs.
pub const HOLD: &str = "Longshore-Hold";
/// In the answer to a signal: the run is cancelled.
pub const CANCEL: &str = "Longshore-Cancel";
/// Who asks the API, as the caller says itself.
pub const BY: &str = "Longshore-By";
/// Why the API is asked for a change, as the caller says: for the audit.
pub const REASON: &str = "Longshore-Reason";
/// Why the other headers of a message could not be read, in place of those. Set by this node as it receives one.
pub const UNREADABLE: &str = "Longshore-Unreadable";
/// Error code of a NATS service.
pub const ERROR_CODE: &str = "Nats-Service-Error-Code";
/// Error text of a NATS service.
pub const ERROR: &str = "Nats-Service-Error";
/// The subject of a request without responders; set by the server, in its answer.
pub const SUBJECT: &str = "Nats-Subject";
/// JetStream's own protection against a publish sent twice.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// The compare-and-set.
pub const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// How long the message lives.
pub const TTL: &str = "Nats-TTL";
/// When the server fires a schedule.
pub const SCHEDULE: &str = "Nats-Schedule";
/// The subject a schedule fires to.
pub const SCHEDULE_TARGET: &str = "Nats-Schedule-Target";
/// The content type of the payload.
pub const CONTENT_TYPE: &str = "Content-Type";
