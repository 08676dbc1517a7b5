//! Attempts that end later than their handlers reply.
//!
//! A handler that replies with `Longshore-Detach` is done; its job waits among the schedules until the attempt's time
//! is over. A call with the attempt's token ends it: the end is noted in the record, and the job falls due. A node
//! that gets it settles the attempt as if its handler had just replied, by the way of any job.

use std::time::{Duration, Instant};

use longshore_backbone::wire::api::{
    ApiError, Code, CompleteRequest, Encoded, FailRequest, Goes, ProgressRequest, Record, RunRequest,
};
use longshore_backbone::wire::record::RESULT_MAX;
use longshore_backbone::wire::{json, record};
use longshore_domain::events::EventKind;
use longshore_domain::run::{LateEnd, OnLate, whole_millis};
use longshore_domain::{ErrorKind, Failure, Run, RunId, RunState, Tenant, Timestamp};
use serde_json::value::RawValue;

use crate::api::{Answered, Api, filter, reschedule};
use crate::attempt::progress::{MAX_BYTES, Said};
use crate::request::{positive, wrong};
use crate::runtime::now;

/// The end of an attempt may come before its handler's reply is stored.
const STORED_WITHIN: Duration = Duration::from_secs(5);
/// How long a node waits before it looks again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

pub(crate) async fn complete(api: &Api, asker: &str, asked: CompleteRequest) -> Answered<Record> {
    let CompleteRequest { run_id, tenant, token, result } = asked;
    let result = fitting("result", result, RESULT_MAX)?;
    end(api, asker, RunRequest { run_id, tenant }, &token, &LateEnd::Completed(result)).await
}

pub(crate) async fn fail(api: &Api, asker: &str, asked: FailRequest) -> Answered<Record> {
    let FailRequest { run_id, tenant, token, error, retryable, retry_after_ms } = asked;
    let kind = if retryable.unwrap_or(true) { ErrorKind::Retryable } else { ErrorKind::Permanent };
    if retry_after_ms.is_some() && kind == ErrorKind::Permanent {
        return Err(wrong("retry_after_ms", "stands beside retryable: false"));
    }
    let retry_after_ms = retry_after_ms.map(|ms| positive("retry_after_ms", ms)).transpose()?.map(whole_millis);
    let failure = Some(Failure::new(kind, error));
    end(api, asker, RunRequest { run_id, tenant }, &token, &LateEnd::Failed { failure, retry_after_ms }).await
}

/// Notes the end of the attempt with this token, and has its job fall due.
async fn end(api: &Api, asker: &str, of: RunRequest, token: &str, end: &LateEnd) -> Answered<Record> {
    let (tenant, run_id) = filter::one(asker, of)?;
    let run = once_it_stands(api, &tenant, &run_id, |run, standing| {
        match run.on_late(token, Some(end)) {
            OnLate::Awaited if standing => run.note_late_end(end.clone(), now()),
            // The node that noted it may have died before it wrote the schedule.
            OnLate::Repeated if run.is_detached() => {}
            OnLate::Repeated => return Ok(None),
            other => return Err(other),
        }
        Ok(Some(now()))
    });
    Ok(record::show(&run.await?))
}

pub(crate) async fn progress(api: &Api, asker: &str, asked: ProgressRequest) -> Answered<Goes> {
    let ProgressRequest { run_id, tenant, token, progress } = asked;
    let progress = fitting("progress", progress, MAX_BYTES)?;
    let (tenant, run_id) = filter::one(asker, RunRequest { run_id, tenant })?;
    let run = once_it_stands(api, &tenant, &run_id, |run, standing| {
        if run.state == RunState::Cancelled && run.late.as_ref().is_some_and(|late| late.token == token) {
            return Ok(None);
        }
        match run.on_late(&token, None) {
            OnLate::Awaited if standing => Ok(Some(run.note_late_progress(progress.clone(), now()))),
            other => Err(other),
        }
    });
    let run = run.await?;
    if progress.is_some() && !run.state.is_terminal() {
        let said = Said::about(&run, EventKind::Progress, &api.identity.node, &api.backbone);
        said.publish(&api.backbone, &api.committer).await;
    }
    let cancelled = run.state == RunState::Cancelled;
    Ok(Encoded::of(&Goes { cancelled, deadline: run.state.run_at().filter(|_| !cancelled) }))
}

/// Alters the run once its attempt is stored as detached and its schedule stands: that may be a moment after its
/// handler's reply.
async fn once_it_stands(
    api: &Api,
    tenant: &Tenant,
    run_id: &RunId,
    mut change: impl FnMut(&mut Run, bool) -> Result<Option<Timestamp>, OnLate>,
) -> Result<Run, ApiError> {
    let until = Instant::now() + STORED_WITHIN;
    loop {
        let mut is_final = None;
        let altered = reschedule::alter(api, tenant, run_id, |run, standing| {
            change(run, standing).map_err(|judged| {
                is_final = Some(!matches!(judged, OnLate::NotYet | OnLate::Awaited));
                refused(run, judged)
            })
        });
        match altered.await {
            // As long as nothing is stored of its attempt, its job is in its lane.
            Err(error) if is_final == Some(false) || error.code == Code::WrongState.number() && is_final.is_none() => {
                if Instant::now() >= until {
                    return Err(ApiError::unavailable(error.message));
                }
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            other => return other,
        }
    }
}

/// Why the attempt is not as it is meant.
fn refused(run: &Run, judged: OnLate) -> ApiError {
    let (run_id, state) = (&run.run_id, run.state.as_str());
    match judged {
        OnLate::Foreign => ApiError::new(Code::Forbidden, format!("token: is not that of run {run_id}'s attempt")),
        OnLate::Over | OnLate::Repeated => {
            ApiError::new(Code::WrongState, format!("run_id: that attempt of {run_id} is over; the run is {state}"))
        }
        OnLate::NotYet | OnLate::Awaited => {
            ApiError::unavailable(format!("run_id: no attempt of {run_id} is detached yet; it is {state}"))
        }
    }
}

/// A JSON value of a request, without blanks.
fn fitting(field: &str, json: Option<Box<RawValue>>, max: usize) -> Result<Option<Box<RawValue>>, ApiError> {
    let Some(json) = json.and_then(|json| json::compact(json.get().as_bytes())) else { return Ok(None) };
    match json.get().len() {
        bytes if bytes > max => {
            Err(ApiError::new(Code::TooLarge, format!("{field}: has {bytes} bytes, {max} are allowed")))
        }
        _ => Ok(Some(json)),
    }
}
