//! How a run joins its batch, and notes there that it has ended. Each step can be repeated without harm.

use std::time::Duration;

use longshore_backbone::batches::{Ended, LASTS, Member, StoredBatch};
use longshore_backbone::wire::api::BatchState;
use longshore_backbone::{Backbone, Error};
use longshore_domain::run::State;
use longshore_domain::{BatchId, Run, RunId, Tenant, Timestamp};

use crate::runtime::{fail_point, now};

/// How long a client waits for the removal of a record: what is written over it, the server removes by itself.
const REMOVED_WITHIN: Duration = Duration::from_millis(200);

/// Joins a batch, before anything of the job's run is stored. Repeating it is harmless.
///
/// The batch is read again once the member stands: the node that completes the batch says so first, and looks for
/// members then. So either the member is found, or it is refused here, with the reason.
pub(crate) async fn join(
    backbone: &Backbone,
    tenant: &Tenant,
    batch: &BatchId,
    run_id: &RunId,
) -> Result<Result<(), String>, Error> {
    let takes = async || {
        let (found, _) = backbone.batch(tenant, batch).await?;
        Ok::<_, Error>(match found {
            None => Err(format!("tenant {tenant} has no batch {batch}")),
            Some(stored) if !may_change(&stored) || state(&stored) == BatchState::Completing => {
                Err(format!("batch {batch} has ended"))
            }
            Some(_) => Ok(()),
        })
    };
    if let Err(refused) = takes().await? {
        return Ok(Err(refused));
    }
    write(backbone, tenant, batch, run_id, None).await?;
    let taken = takes().await?;
    if taken.is_err() {
        write(backbone, tenant, batch, run_id, Some(Ended::Left)).await?;
    }
    Ok(taken)
}

/// Notes how a member has ended, if the run is one and has. Repeating it is harmless.
pub(crate) async fn note_end(backbone: &Backbone, run: &Run) -> Result<(), Error> {
    match &run.batch {
        Some(batch) if run.state.is_terminal() => {
            fail_point::pass("before-batch-end");
            let written = write(backbone, &run.tenant, batch, &run.run_id, Some(ended(run))).await;
            fail_point::pass("after-batch-end");
            written
        }
        _ => Ok(()),
    }
}

/// How a run that has ended counts. What was erased does not come back.
pub(crate) fn ended(run: &Run) -> Ended {
    match run.state {
        State::Dead { .. } if run.erased_at.is_some() => Ended::Gone,
        _ => Ended::As(run.state.name()),
    }
}

pub(crate) async fn write(
    backbone: &Backbone,
    tenant: &Tenant,
    batch: &BatchId,
    run_id: &RunId,
    ended: Option<Ended>,
) -> Result<(), Error> {
    backbone.write_member(tenant, batch, &Member { run_id: run_id.clone(), at: now(), ended }).await
}

/// The job that was to be submitted was refused, or another run stands for it: it is no member.
pub(crate) async fn leave(backbone: &Backbone, tenant: &Tenant, batch: &BatchId, run_id: &RunId) {
    if let Err(error) = write(backbone, tenant, batch, run_id, Some(Ended::Left)).await {
        tracing::debug!(%tenant, %batch, "it waits for {run_id}, which there is not: {}", error.with_causes());
    }
}

/// The job of a run that nobody knows was surely not published: its record goes as well.
pub(crate) async fn forget_record(backbone: &Backbone, tenant: &Tenant, run_id: &RunId) {
    let Ok(Some(found)) = backbone.read_record(tenant, run_id).await else { return };
    if found.run.is_unseen() {
        // Else the record goes with the window.
        let removed = backbone.remove_record(tenant, run_id, found.revision);
        let _ = tokio::time::timeout(REMOVED_WITHIN, removed).await;
    }
}

/// Whether a batch has not ended for good.
pub(crate) fn may_change(stored: &StoredBatch) -> bool {
    match state(stored) {
        BatchState::Open | BatchState::Sealed | BatchState::Completing => true,
        // What it failed for may be replayed.
        BatchState::Failed => !stored.reopened && !is_over(stored, now()),
        BatchState::Completed | BatchState::Cancelled => false,
    }
}

/// Whether the batch should have completed by now.
pub(crate) fn is_over(stored: &StoredBatch, now: Timestamp) -> bool {
    now >= stored.batch.deadline.unwrap_or_else(|| stored.batch.created_at.plus(LASTS))
}

pub(crate) fn state(stored: &StoredBatch) -> BatchState {
    stored.batch.state.known().copied().unwrap_or(BatchState::Completed)
}
