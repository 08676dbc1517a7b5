//! How a node learns which runs are cancelled, and stops those that run here.

use std::sync::Arc;
use std::time::Duration;

use crate::attempt::holders;
use crate::shared::Shared;
use crate::supervision::LoopEnd;

/// How long nodes have to confirm a cancellation. A node that takes longer is frozen or cut off: it may no longer start
/// the jobs that it has buffered by then.
pub(crate) const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);
/// Receives cancellations until the process ends, and stops those runs if they run here; answers nodes that ask whether
/// this node holds a job.
pub(crate) async fn watch(shared: Arc<Shared>) -> LoopEnd {
    let cancels = shared.backbone.cancels().await;
    let mut cancels = cancels.map_err(|error| error.with_causes())?;
    let questions = shared.backbone.holder_questions(&shared.node).await;
    let mut questions = questions.map_err(|error| error.with_causes())?;
    shared.backbone.is_listening().await;
    shared.knows_cancels.cancel();
    if let Err(error) = learn(&shared).await {
        // The high-water marks of each lane wait for this list in any case.
        tracing::debug!("cannot read which runs are cancelled: {}", error.with_causes());
    }
    loop {
        tokio::select! {
            cancel = cancels.next() => {
                let Some(cancel) = cancel else { return Ok(()) };
                shared.recently_cancelled.add(&cancel.tenant, &cancel.run_id);
                let runs_here = match cancel.only_if_waiting {
                    true => shared.book.works_on(&cancel.tenant, &cancel.run_id),
                    false => shared.book.stop(&cancel.tenant, &cancel.run_id),
                };
                shared.backbone.confirm_cancel(&cancel, &shared.node, runs_here).await;
            }
            question = questions.next() => match question {
                Some(question) => holders::answer(&shared, question).await,
                None => return Ok(()),
            },
        }
    }
}

/// Reads the durable list of runs that are being cancelled: before that, no job may begin without reading its record.
pub(crate) async fn learn(shared: &Shared) -> Result<(), longshore_backbone::Error> {
    // From now on this node receives every new cancellation.
    shared.knows_cancels.cancelled().await;
    for (tenant, run_id) in shared.backbone.noted_cancels().await? {
        shared.recently_cancelled.add(&tenant, &run_id);
    }
    Ok(())
}
