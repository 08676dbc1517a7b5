//! Purging a queue: every run of it whose attempt does not run is cancelled, as `runs.cancel` would cancel it.
//!
//! It decides nothing: each run's record does, one by one. So a purge that a crash cuts short has cancelled some runs
//! and left the others as they were, and is repeated without harm.

use std::time::Duration;

use longshore_backbone::wire::api::{self, ApiError, CancelledRuns, Encoded, PurgeRequest};

use crate::api::cancel;
use crate::api::filter::RunFilter;
use crate::api::{Answered, Api};
use crate::runtime::now;

/// Jobs that are stored later than so long after the request began are not meant. Else a purge of a queue into which
/// jobs are published all the time would never be over. As much as the clocks of servers and nodes may differ by.
const STORED_WITHIN: Duration = Duration::from_secs(3);

pub(crate) async fn purge(api: &Api, asked: PurgeRequest) -> Answered<CancelledRuns> {
    let PurgeRequest { queue, confirm, limit, dry_run } = asked;
    if !dry_run && confirm.as_ref() != Some(&queue) {
        let message = format!("confirm: does not say {:?}, the queue whose jobs would be cancelled", queue.as_str());
        return Err(ApiError::malformed(message));
    }
    let declared = api.backbone.declared_queues().await?;
    if !declared.contains(&queue) {
        return Err(ApiError::not_found(format!("queue: {:?} is not declared", queue.as_str())));
    }
    let limit = limit.unwrap_or(u64::MAX);
    let wanted = api::Filter { queue: Some(queue), until: Some(now().plus(STORED_WITHIN)), ..api::Filter::default() };
    let outcome = cancel::cancel_waiting(api, &RunFilter { tenant: None, wanted }, limit, dry_run).await?;
    Ok(Encoded::of(&CancelledRuns::from(outcome)))
}
