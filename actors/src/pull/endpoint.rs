//! The endpoint `work.next`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longshore_backbone::offers::{IncomingCall, OwnReply};
use longshore_backbone::pulls::WorkWanted;
use longshore_backbone::wire::api::{ApiError, Encoded, Next, NextRequest, PulledJob};
use longshore_backbone::wire::json;
use tokio::sync::oneshot;

use crate::api::wait_permits::WaitPermits;
use crate::api::{Answered, Api, filter};
use crate::pull::Pullers;
use crate::request::wrong;
use crate::runtime::now;

/// Maximum number of types that a puller may name.
const TYPES_MAX: usize = 16;
/// How long it waits, and the longest that it may.
const WAIT_MS: u64 = 30_000;
const WAIT_MS_MAX: u64 = 600_000;
/// The lease, and its bounds.
const LEASE_MS: u64 = 60_000;
const LEASE_MS_BOUNDS: std::ops::RangeInclusive<u64> = 1_000..=86_400_000;

/// `work.next`: waits for a job, and hands it out.
pub(crate) async fn next(
    api: &Api,
    pullers: &Arc<Pullers>,
    waits: &Arc<WaitPermits>,
    asker: &str,
    asked: NextRequest,
) -> Answered<Next> {
    let (wanted, lease) = read(api, asker, asked)?;
    let _waits = waits.enter(asker)?;
    if !pullers.has_room(&wanted) {
        return Err(ApiError::unavailable("pullers of this node ask for 1,024 types already"));
    }
    let until = Instant::now() + Duration::from_millis(wanted.wait_ms);
    while let Some(call) = pullers.next(&wanted, until).await {
        let (sender, job) = oneshot::channel();
        let max = api.backbone.max_in_answer();
        // A job that was taken is answered, even if its puller is gone.
        tokio::spawn(hand_out(Arc::clone(pullers), call, lease, max, sender));
        if let Ok(job) = job.await {
            return Ok(job);
        }
    }
    Ok(Encoded::of(&Next { job: None }))
}

fn read(api: &Api, asker: &str, asked: NextRequest) -> Result<(WorkWanted, Duration), ApiError> {
    let NextRequest { types, tenant, wait_ms, lease_ms } = asked;
    let tenant = filter::whose_one(asker, tenant.as_ref(), "work", "job")?;
    if types.is_empty() || types.len() > TYPES_MAX {
        return Err(wrong("types", format!("has {} types; 1 to {TYPES_MAX} are allowed", types.len())));
    }
    if let Some(own) = api.routing.types_here().find(|own| types.contains(own)) {
        return Err(wrong("types", format!("{own} is done by nodes themselves")));
    }
    let wait_ms = wait_ms.unwrap_or(WAIT_MS);
    if wait_ms > WAIT_MS_MAX {
        return Err(wrong("wait_ms", format!("is not one of 0 to {WAIT_MS_MAX}")));
    }
    let lease_ms = lease_ms.unwrap_or(LEASE_MS);
    if !LEASE_MS_BOUNDS.contains(&lease_ms) {
        let (least, most) = LEASE_MS_BOUNDS.into_inner();
        return Err(wrong("lease_ms", format!("is not one of {least} to {most}")));
    }
    Ok((WorkWanted { node: api.identity.node.to_string(), tenant, types, wait_ms }, Duration::from_millis(lease_ms)))
}

/// Hands a job to its puller: the attempt is detached, and goes on there.
async fn hand_out(
    pullers: Arc<Pullers>,
    call: Box<IncomingCall>,
    lease: Duration,
    max: usize,
    to: oneshot::Sender<Encoded<Next>>,
) {
    let answer = Encoded::of(&Next { job: Some(Box::new(shown(&call, lease))) });
    if answer.as_bytes().len() > max {
        let message = format!(
            "the job has {} bytes as an answer to work.next, {max} fit into a message by this NATS server's max_payload",
            answer.as_bytes().len()
        );
        return call.reply_to.send(OwnReply::Failed { permanent: true, message, retry_after: None }).await;
    }
    // The node that holds it may be dead by now, or its run cancelled.
    let goes_on = call.reply_to.beat().await == Some(false);
    if !goes_on || to.is_closed() {
        return call.reply_to.send(OwnReply::Busy("no puller takes it")).await;
    }
    pullers.works(&call.job.tenant, &call.job.job_type, lease);
    call.reply_to.send(OwnReply::Detached(lease)).await;
    let _ = to.send(answer);
}

fn shown(call: &IncomingCall, lease: Duration) -> PulledJob {
    let IncomingCall { job, round, attempt, max_attempts, headers, payload, token, .. } = call;
    let json = json::compact(payload);
    let base64 = (json.is_none() && !payload.is_empty()).then(|| STANDARD.encode(payload));
    PulledJob {
        run_id: job.run_id.clone(),
        token: token.clone(),
        tenant: job.tenant.clone(),
        job_type: job.job_type.clone(),
        queue: job.queue.clone(),
        priority: job.priority,
        round: *round,
        attempt: *attempt,
        max_attempts: *max_attempts,
        deadline: now().plus(lease),
        headers: headers.iter().cloned().collect(),
        payload: json,
        payload_base64: base64,
    }
}
