//! Rescheduling a run that waits for its time or for its next attempt.
//!
//! The record decides, as everywhere: its new time is written by compare-and-set, then the schedule is written again, in
//! place of the old one. A firing of the old one that comes all the same finds the record: it was too early, and the node
//! that got it writes the schedule again; or it is late enough, and the run begins.

use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::api::{ApiError, Code, Encoded, Record, RescheduleRequest, RunRequest};
use longshore_backbone::wire::record;
use longshore_domain::{Priority, Queue, Run, RunId, RunState, Tenant, Timestamp};

use crate::api::filter::{self, unavailable};
use crate::api::{Api, intake, runs};
use crate::fail_point;
use crate::shared::now;

/// What is to change.
#[derive(Debug, Default)]
struct Change {
    run_at: Option<Timestamp>,
    priority: Option<Priority>,
    queue: Option<Queue>,
}

/// `runs.run_now`
pub(crate) async fn run_now(api: &Api, asker: &str, asked: RunRequest) -> Result<Encoded<Record>, ApiError> {
    let (tenant, run_id) = filter::one(asker, asked)?;
    if let Some(found) = runs::is_stored(api, &tenant, &run_id).await?
        && found.run.state == RunState::Enqueued
        && found.run.state.wait().is_none()
    {
        return Ok(record::show(&found.run));
    }
    let change = Change { run_at: Some(now()), ..Change::default() };
    reschedule(api, &tenant, &run_id, &change).await.map(|run| record::show(&run))
}

/// `runs.reschedule`
pub(crate) async fn serve(api: &Api, asker: &str, asked: RescheduleRequest) -> Result<Encoded<Record>, ApiError> {
    let RescheduleRequest { run_id, tenant, run_at, priority, queue } = asked;
    let (tenant, run_id) = filter::one(asker, RunRequest { run_id, tenant })?;
    let priority = priority.map(Priority::new).transpose().map_err(|error| ApiError::malformed(error.to_string()))?;
    if run_at.is_none() && priority.is_none() && queue.is_none() {
        return Err(ApiError::malformed("run_at: is missing; or give priority or queue"));
    }
    if run_at.is_some_and(|at| at > Timestamp::LAST_SCHEDULE) {
        return Err(ApiError::malformed(format!("run_at: is after {}", Timestamp::LAST_SCHEDULE)));
    }
    if let Some(queue) = &queue {
        intake::must_be_declared(api, queue).await?;
    }
    reschedule(api, &tenant, &run_id, &Change { run_at, priority, queue }).await.map(|run| record::show(&run))
}

async fn reschedule(api: &Api, tenant: &Tenant, run_id: &RunId, change: &Change) -> Result<Run, ApiError> {
    loop {
        let found = runs::is_stored(api, tenant, run_id).await?;
        let Some(Found { mut run, revision }) = found else {
            return match runs::waiting(api, tenant, run_id).await? {
                Some((waiting, _)) => Err(wrong_state(&waiting)),
                None => Err(ApiError::not_found(format!("run_id: no run {run_id} of tenant {tenant} is known"))),
            };
        };
        // The schedule is looked for by the run as it waits now; a change of queue or priority does not move it.
        let standing = api.backbone.standing_schedule(&run).await.map_err(|error| unavailable(&error))?;
        let at = change.run_at.or_else(|| run.state.run_at()).unwrap_or_default().max(now());
        if !run.reschedule(at) {
            return Err(wrong_state(&run));
        }
        if standing.is_none() && run.is_only_noted() {
            return Err(ApiError::unavailable("the run is just being submitted; try again"));
        }
        // `submit` cannot mark the record any more once it is written here.
        run.published |= standing.is_some();
        run.priority = change.priority.unwrap_or(run.priority);
        run.queue = change.queue.clone().unwrap_or(run.queue);
        run.token = api.identity.token();
        match api.backbone.write_record(&run, revision).await.map_err(|error| unavailable(&error))? {
            Written::Won(_) => fail_point::pass("after-rescheduling"),
            Written::Lost(_) => continue,
        }
        // Without a schedule the job is on its way into its lane, and finds the record.
        if let Some((headers, payload)) = standing {
            let written = api.backbone.schedule(&run, at, headers.as_ref(), payload).await;
            written.map_err(|error| unavailable(&error))?;
        }
        return Ok(run);
    }
}

fn wrong_state(run: &Run) -> ApiError {
    let (run_id, state) = (&run.run_id, run.state.as_str());
    let why = match run.state.wait() {
        _ if run.state.is_terminal() => "has ended",
        Some(_) => "waits for its handlers, and starts as soon as these can",
        None if run.state == RunState::Enqueued => "waits for a worker in its lane; cancel it and submit it again",
        None => "runs",
    };
    ApiError::new(Code::WrongState, format!("run_id: {run_id} {why}: it is {state}"))
}
