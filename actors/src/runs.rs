//! What is known of a run: its record, or, while it waits, the job in its lane.

use std::time::Duration;

use longshore_backbone::wire::api::ApiError;
use longshore_backbone::wire::json::Object;
use longshore_backbone::wire::record;
use longshore_domain::{Run, RunId, Tenant};

use crate::assignment::Assignment;
use crate::carry_out::chain;
use crate::shared::Shared;

/// Longest wait for a run's end.
pub(crate) const WAIT_MOST: Duration = Duration::from_secs(600);
/// An end could go by unheard, as live events may; so the record is looked at now and then as well.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The run, from its record or its lane.
pub(crate) async fn get(shared: &Shared, tenant: &Tenant, run_id: &RunId) -> Result<Run, ApiError> {
    let found = shared.backbone.read_record(tenant, run_id).await;
    if let Some(found) = found.map_err(|error| ApiError::unavailable(chain(&error)))? {
        return Ok(found.run);
    }
    let unknown = || ApiError::not_found(format!("run_id: no run {run_id} of tenant {tenant} is known"));
    waiting(shared, tenant, run_id).await?.ok_or_else(unknown)
}

/// The run of a job that waits in its lane under a minted id, as if it were on record.
pub(crate) async fn waiting(shared: &Shared, tenant: &Tenant, run_id: &RunId) -> Result<Option<Run>, ApiError> {
    let Some((queue, priority, sequence)) = run_id.as_minted() else { return Ok(None) };
    let found = shared.backbone.job_in_lane(&queue, priority, sequence).await;
    let Some(delivery) = found.map_err(|error| ApiError::unavailable(chain(&error)))? else { return Ok(None) };
    let assignment = Assignment::read(delivery, shared.backbone.names(), 0, shared.backbone.most_on_arrival());
    let job = &assignment.job;
    let is_meant = job.tenant == *tenant && job.run_id == *run_id;
    Ok(is_meant.then(|| Run::new(job, shared.max_attempts(job), assignment.since)))
}

/// The run, once it has ended, or as it stands when `timeout` is over.
pub(crate) async fn wait(
    shared: &Shared,
    tenant: &Tenant,
    run_id: &RunId,
    timeout: Duration,
) -> Result<Object, ApiError> {
    let until = tokio::time::Instant::now() + timeout.min(WAIT_MOST);
    let subject = shared.backbone.names().events_of_run(tenant, run_id);
    let mut events = shared.backbone.listen(subject).await.map_err(|error| ApiError::unavailable(chain(&error)))?;
    loop {
        let run = get(shared, tenant, run_id).await?;
        if run.state.is_ended() || tokio::time::Instant::now() >= until {
            return Ok(record::show(&run));
        }
        let look_at = (tokio::time::Instant::now() + LOOK_EVERY).min(until);
        // Any event of the run, or time to look by itself.
        let _ = tokio::time::timeout_at(look_at, events.next()).await;
    }
}
