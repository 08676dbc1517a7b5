//! Batches: jobs that belong together, and a job that runs once when all of them have ended.
//!
//! A member joins before its job is published, or as a node meets a job that was published; its end is noted before its
//! delivery is acknowledged ([`batch`](crate::ports::batch)). `keeper` looks whether all members have ended, and
//! submits the job that completes the batch; `endpoints` creates batches, seals, shows and cancels them. Nothing is
//! counted, so nothing can be counted twice: who has ended is read each time.

pub(crate) mod endpoints;
pub(crate) mod keeper;

use longshore_backbone::batches::StoredBatch;
use longshore_backbone::wire::api::{ApiError, OnFailure, SubmitRequest};

fn on_failure(stored: &StoredBatch) -> OnFailure {
    stored.batch.on_failure.known().copied().unwrap_or_default()
}

/// The job that completes a batch, as it is submitted.
fn completion(stored: &StoredBatch) -> Result<SubmitRequest, ApiError> {
    let payload = serde_json::value::to_raw_value(&stored.payload);
    Ok(SubmitRequest {
        payload: Some(payload.map_err(|error| ApiError::malformed(error.to_string()))?),
        run_id: Some(format!("{}-done", stored.batch.id)),
        ..(*stored.on_complete).clone()
    })
}
