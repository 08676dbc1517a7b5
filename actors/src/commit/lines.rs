//! What happens to a job as lines of the node's own log: one per event, with run, attempt, tenant and trace, and never
//! a payload, a result or a handler's words.
//!
//! A job that failed for good is logged at level `info`; everything else only at `debug`, as it comes with every job.
//! If these lines are not wanted, they cost a job two comparisons. Target `longshore::jobs`, so that they can be
//! switched on alone.

use longshore_domain::{Run, RunState};
use serde::Deserialize;
use tracing::Level;

use crate::commit::PublishedJob;
use crate::ports::encode::EncodedEvents;

const JOBS: &str = "longshore::jobs";

/// What of an event goes into the log.
#[derive(Deserialize)]
struct LoggedEvent {
    event: String,
    attempt: Option<u32>,
    reason: Option<String>,
    error: Option<Failure>,
    duration_ms: Option<u64>,
    retry_at: Option<String>,
}

#[derive(Deserialize)]
struct Failure {
    kind: String,
}

/// Logs what was published live of a run.
pub(crate) fn write(run: &Run, payload: &PublishedJob, events: &EncodedEvents) {
    let writes_all = tracing::enabled!(target: JOBS, Level::DEBUG);
    if writes_all || (run.state.name() == RunState::Dead && tracing::enabled!(target: JOBS, Level::INFO)) {
        for (_, event) in events.live() {
            write_one(run, payload, &event);
        }
    }
}

fn write_one(run: &Run, payload: &PublishedJob, event: &[u8]) {
    let Ok(LoggedEvent { event, attempt, reason, error, duration_ms, retry_at }) = serde_json::from_slice(event) else {
        return;
    };
    let (run_id, tenant, attempt) = (&run.run_id, &run.tenant, attempt.unwrap_or(run.attempt));
    let trace_id = payload.trace_id().or(run.trace_id);
    let kind = error.map(|error| error.kind);
    macro_rules! line {
        ($level:ident, $said:expr) => {
            tracing::$level!(target: JOBS, %run_id, %tenant, attempt, trace_id = trace_id.map(tracing::field::display),
                job_type = %run.job_type, queue = %run.queue, round = run.round, reason, kind, duration_ms, retry_at, "{}", $said)
        };
    }
    match event.as_str() {
        "dlq" => line!(info, "dead letter: failed for good"),
        "failed" if retry_at.is_some() => line!(debug, "failed, to be retried"),
        event => line!(debug, event),
    }
}
