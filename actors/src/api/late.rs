//! Attempts that end later than their handlers reply.
//!
//! A handler that replies with `Longshore-Detach` is done; its job waits among the schedules until the attempt's time
//! is over. A call with the attempt's token ends it: the end is noted in the record, and the job falls due. A node
//! that gets it settles the attempt as if its handler had just replied, by the way of any job.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_backbone::wire::api::{
    ApiError, Code, CompleteRequest, Encoded, FailRequest, Goes, ProgressRequest, Record, RunRequest,
};
use longshore_backbone::wire::record::RESULT_MAX;
use longshore_backbone::wire::{event, json, record};
use longshore_domain::events::{Event, EventKind};
use longshore_domain::run::{LateEnd, OnLate, whole_millis};
use longshore_domain::{ErrorKind, Failure, Run, RunId, RunState, Tenant, Timestamp};

use crate::api::fields::{positive, wrong};
use crate::api::{Api, filter, reschedule};
use crate::attempt::progress::MAX_BYTES;
use crate::commit::pipeline::Input;
use crate::shared::now;

/// The end of an attempt may come before its handler's reply is stored.
const STORED_WITHIN: Duration = Duration::from_secs(5);
/// How long a node waits before it looks again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The attempt that is meant.
struct Meant {
    tenant: Tenant,
    run_id: RunId,
    token: String,
}

impl Meant {
    fn of(asker: &str, tenant: Option<Tenant>, run_id: RunId, token: String) -> Result<Self, ApiError> {
        let (tenant, run_id) = filter::one(asker, RunRequest { run_id, tenant })?;
        Ok(Self { tenant, run_id, token })
    }
}

/// `runs.complete`
pub(crate) async fn complete(api: &Api, asker: &str, asked: CompleteRequest) -> Result<Encoded<Record>, ApiError> {
    let CompleteRequest { run_id, tenant, token, result } = asked;
    let result = result.map(|result| json::compact(result.get().as_bytes()).unwrap_or(result));
    if let Some(bytes) = result.as_ref().map(|result| result.get().len()).filter(|bytes| *bytes > RESULT_MAX) {
        return Err(ApiError::new(Code::TooLarge, format!("result: has {bytes} bytes, {RESULT_MAX} are allowed")));
    }
    end(api, &Meant::of(asker, tenant, run_id, token)?, &LateEnd::Completed(result)).await
}

/// `runs.fail`
pub(crate) async fn fail(api: &Api, asker: &str, asked: FailRequest) -> Result<Encoded<Record>, ApiError> {
    let FailRequest { run_id, tenant, token, error, retryable, retry_after_ms } = asked;
    let kind = if retryable.unwrap_or(true) { ErrorKind::Retryable } else { ErrorKind::Permanent };
    if retry_after_ms.is_some() && kind == ErrorKind::Permanent {
        return Err(wrong("retry_after_ms", "stands beside retryable: false"));
    }
    let retry_after_ms = retry_after_ms.map(|ms| positive("retry_after_ms", ms)).transpose()?.map(whole_millis);
    let failure = Some(Failure::new(kind, error));
    end(api, &Meant::of(asker, tenant, run_id, token)?, &LateEnd::Failed { failure, retry_after_ms }).await
}

/// Notes the end of an attempt, and has its job fall due.
async fn end(api: &Api, meant: &Meant, end: &LateEnd) -> Result<Encoded<Record>, ApiError> {
    let run = once_it_stands(api, meant, |run, standing| {
        match run.on_late(&meant.token, Some(end)) {
            OnLate::Awaited if standing => run.note_late_end(end.clone(), now()),
            // The node that noted it may have died before it wrote the schedule.
            OnLate::Repeated if run.is_detached() => {}
            OnLate::Repeated => return Ok(None),
            other => return Err(other.into()),
        }
        Ok(Some(now()))
    });
    Ok(record::show(&run.await?))
}

/// `runs.progress`
pub(crate) async fn progress(api: &Api, asker: &str, asked: ProgressRequest) -> Result<Encoded<Goes>, ApiError> {
    let ProgressRequest { run_id, tenant, token, progress } = asked;
    let progress = progress.map(|progress| json::compact(progress.get().as_bytes()).unwrap_or(progress));
    if let Some(bytes) = progress.as_ref().map(|progress| progress.get().len()).filter(|bytes| *bytes > MAX_BYTES) {
        return Err(ApiError::new(Code::TooLarge, format!("progress: has {bytes} bytes, {MAX_BYTES} are allowed")));
    }
    let meant = Meant::of(asker, tenant, run_id, token)?;
    let run = once_it_stands(api, &meant, |run, standing| {
        if run.state == RunState::Cancelled && run.late.as_ref().is_some_and(|late| late.token == meant.token) {
            return Ok(None);
        }
        match run.on_late(&meant.token, None) {
            OnLate::Awaited if standing => Ok(Some(run.note_late_progress(progress.clone(), now()))),
            other => Err(other.into()),
        }
    });
    let run = run.await?;
    if progress.is_some() && !run.state.is_terminal() {
        publish(api, &run).await;
    }
    let cancelled = run.state == RunState::Cancelled;
    Ok(Encoded::of(&Goes { cancelled, deadline: run.state.run_at().filter(|_| !cancelled) }))
}

/// Publishes the progress that the record has.
async fn publish(api: &Api, run: &Run) {
    let at = now();
    // Times differ where processes do not: the id is another one for each report.
    let nth = u32::try_from(at.millis() % i64::from(u32::MAX)).unwrap_or(1).max(1);
    let kind = EventKind::Progress;
    let event = Event { run, kind, attempt: run.attempt, nth, at, of: run.attempts.last(), reason: None };
    let mut line = Vec::with_capacity(384);
    event::write(&event, &api.identity.node, &mut line);
    let line = Bytes::from(line);
    api.backbone.publish_live(api.backbone.names().event(run, kind), line.clone()).await;
    api.committer.send(Input::Line(run.tenant.clone(), line)).await;
}

/// Alters the run once its attempt is stored as detached and its schedule stands: that may be a moment after its
/// handler's reply.
async fn once_it_stands(
    api: &Api,
    meant: &Meant,
    mut change: impl FnMut(&mut Run, bool) -> Result<Option<Timestamp>, Refusal>,
) -> Result<Run, ApiError> {
    let until = Instant::now() + STORED_WITHIN;
    loop {
        let mut is_final = None;
        let altered = reschedule::alter(api, &meant.tenant, &meant.run_id, |run, standing| {
            change(run, standing).map_err(|refusal| {
                is_final = Some(!matches!(refusal, Refusal::NotYet));
                refusal.into_error(run)
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

/// Why an attempt is not ended.
enum Refusal {
    /// None of the run is detached, or its schedule is still to be written.
    NotYet,
    /// The token is another attempt's.
    Foreign,
    /// The attempt, or the run, is over.
    Over,
}

impl From<OnLate> for Refusal {
    fn from(judged: OnLate) -> Self {
        match judged {
            OnLate::Foreign => Self::Foreign,
            OnLate::Over | OnLate::Repeated => Self::Over,
            OnLate::NotYet | OnLate::Awaited => Self::NotYet,
        }
    }
}

impl Refusal {
    fn into_error(self, run: &Run) -> ApiError {
        let (run_id, state) = (&run.run_id, run.state.as_str());
        match self {
            Self::Foreign => ApiError::new(Code::Forbidden, format!("token: is not that of run {run_id}'s attempt")),
            Self::Over => {
                ApiError::new(Code::WrongState, format!("run_id: that attempt of {run_id} is over; the run is {state}"))
            }
            Self::NotYet => {
                ApiError::unavailable(format!("run_id: no attempt of {run_id} is detached yet; it is {state}"))
            }
        }
    }
}
