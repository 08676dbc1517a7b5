//! The endpoints of batches: created, shown, sealed and cancelled.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::batches::{LASTS, StoredBatch};
use longshore_backbone::wire::api::{
    ApiError, BatchState, BatchStatus, Batches, BatchesRequest, Code, CreateBatchRequest, Encoded, OneBatchRequest,
    RunRequest,
};
use longshore_domain::{BatchId, DurationText, RunId, Tenant};

use super::keeper::{NAMED, Standing};
use crate::api::{Answered, Api, cancellation, filter, intake};
use crate::commit::chain;
use crate::ports::batch::state;
use crate::request;
use crate::runtime::now;

/// Batches of one tenant that have not ended.
const OF_TENANT: usize = 1_000;
/// Members that are cancelled at once.
const AT_ONCE: usize = 32;

pub(crate) async fn create(api: &Api, asker: &str, asked: CreateBatchRequest) -> Answered<BatchStatus> {
    let tenant = filter::whose_one(asker, asked.tenant.as_ref(), "an id", "batch")?;
    let on_complete = asked.on_complete.ok_or_else(|| ApiError::malformed("on_complete: is missing"))?;
    check(api, &tenant, &on_complete).await?;
    if asked.deadline.is_some_and(|deadline| deadline <= now()) {
        return Err(ApiError::malformed("deadline: is over"));
    }
    let batch = BatchStatus {
        awaits: Vec::new(),
        because: None,
        created_at: now(),
        deadline: asked.deadline,
        ended_at: None,
        failed: Vec::new(),
        id: asked.id,
        members: None,
        on_failure: asked.on_failure.unwrap_or_default().into(),
        run_id: None,
        sealed_at: None,
        state: BatchState::Open.into(),
        tenant,
    };
    let stored = StoredBatch { batch, on_complete, payload: None, reopened: false };
    let (found, revision) = api.backbone.batch(&stored.batch.tenant, &stored.batch.id).await?;
    if let Some(found) = found {
        return same(found, &stored);
    }
    // Its members are not stored for as long as it would wait for them. A client's clock may be a little ahead.
    let latest = now().plus(LASTS).plus(Duration::from_secs(60));
    if stored.batch.deadline.is_some_and(|deadline| deadline > latest) {
        return Err(ApiError::malformed(format!("deadline: is more than {} ahead", DurationText(LASTS))));
    }
    if api.backbone.unfinished_batches(&stored.batch.tenant, OF_TENANT).await? >= OF_TENANT {
        return Err(ApiError::unavailable(format!("the tenant has {OF_TENANT} batches that have not ended")));
    }
    if api.backbone.write_batch(&stored, revision).await?.is_some() {
        return Ok(Encoded::of(&stored.batch));
    }
    let (found, _) = api.backbone.batch(&stored.batch.tenant, &stored.batch.id).await?;
    same(found.ok_or_else(|| ApiError::unavailable("the batch changes; try again"))?, &stored)
}

/// The job that completes the batch, and those that follow it, are such as may be submitted now.
async fn check(api: &Api, tenant: &Tenant, job: &longshore_backbone::wire::api::SubmitRequest) -> Result<(), ApiError> {
    if job.payload.is_some() || job.payload_base64.is_some() {
        return Err(ApiError::malformed("on_complete.payload: is the batch's own"));
    }
    let within = |error: ApiError| error.within("on_complete");
    chain::check_following(&api.policies, tenant, job).map_err(within)?;
    if let Some(then) = &job.then {
        chain::check(&api.policies, tenant, then).map_err(within)?;
    }
    let (queue, ..) = request::names(job)?;
    intake::must_be_declared(api, &queue).await.map_err(within)?;
    intake::links_must_be_declared(api, job).await.map_err(within)
}

/// The batch of that id, if it was created by the same request.
fn same(found: StoredBatch, asked: &StoredBatch) -> Answered<BatchStatus> {
    let of = |stored: &StoredBatch| {
        let job = serde_json::to_value(&stored.on_complete).ok();
        (job, stored.batch.on_failure.to_string(), stored.batch.deadline)
    };
    if of(&found) == of(asked) {
        return Ok(Encoded::of(&found.batch));
    }
    let message = format!("id: tenant {} has another batch {}", found.batch.tenant, found.batch.id);
    Err(ApiError::new(Code::WrongState, message))
}

async fn found(api: &Api, asker: &str, asked: &OneBatchRequest) -> Result<(StoredBatch, u64), ApiError> {
    let tenant = filter::whose_one(asker, asked.tenant.as_ref(), "an id", "batch")?;
    match api.backbone.batch(&tenant, &asked.id).await? {
        (Some(stored), revision) => Ok((stored, revision)),
        (None, _) => Err(ApiError::not_found(format!("id: tenant {tenant} has no batch {}", asked.id))),
    }
}

pub(crate) async fn get(api: &Api, asker: &str, asked: OneBatchRequest) -> Answered<BatchStatus> {
    with_members(api, found(api, asker, &asked).await?.0).await
}

async fn with_members(api: &Api, stored: StoredBatch) -> Answered<BatchStatus> {
    let mut batch = stored.batch.clone();
    if state(&stored) == BatchState::Completed {
        // Its members are forgotten.
        batch.failed = stored.payload.map(|payload| payload.failed).unwrap_or_default();
        return Ok(Encoded::of(&batch));
    }
    let Standing { open, counts, failed, .. } = Standing::of(api, &stored).await?;
    batch.awaits = open.into_iter().take(NAMED).map(|member| member.run_id).collect();
    batch.failed = failed.into_iter().take(NAMED).collect();
    batch.members = Some(counts);
    Ok(Encoded::of(&batch))
}

/// What a batch waits for, if the run that there is not would be that of its job.
pub(crate) async fn awaited(api: &Api, asker: &str, asked: &RunRequest) -> Option<String> {
    let id = BatchId::parse(asked.run_id.as_str().strip_suffix("-done")?).ok()?;
    let asked = OneBatchRequest { id, tenant: asked.tenant.clone() };
    let batch = get(api, asker, asked).await.ok()?.read().ok()?;
    let all = batch.members.unwrap_or_default().all;
    let names: Vec<&str> = batch.awaits.iter().map(RunId::as_str).collect();
    let waits = if names.is_empty() { "for nobody".to_owned() } else { format!("for {}", names.join(", ")) };
    Some(format!("batch {} is {}; of {all} members it waits {waits}", batch.id, batch.state))
}

pub(crate) async fn list(api: &Api, asker: &str, asked: BatchesRequest) -> Answered<Batches> {
    let tenant = filter::whose(asker, asked.tenant.as_ref())?;
    let limit = filter::page_size(asked.limit)?;
    let from = asked.cursor.as_deref().map(position).transpose()?;
    let all = api.backbone.batches(tenant.as_ref(), 0).await?;
    let mut batches: Vec<BatchStatus> = all.into_iter().map(|(stored, _)| stored.batch).collect();
    batches.retain(|batch| from.as_ref().is_none_or(|(tenant, id)| (&batch.tenant, &batch.id) >= (tenant, id)));
    batches.sort_unstable_by(|one, other| (&one.tenant, &one.id).cmp(&(&other.tenant, &other.id)));
    let mut room = filter::PageRoom::of(limit, api.backbone.max_payload());
    let mut listed = Batches { batches: Vec::new(), cursor: None };
    for batch in batches {
        if !room.takes(&batch) {
            listed.cursor = Some(format!("{}.{}", batch.tenant, batch.id));
            break;
        }
        listed.batches.push(batch);
    }
    Ok(Encoded::of(&listed))
}

/// Where a list goes on: the tenant and id of its next batch.
fn position(cursor: &str) -> Result<(Tenant, BatchId), ApiError> {
    let read = |(tenant, id)| Some((Tenant::parse(tenant).ok()?, BatchId::parse(id).ok()?));
    let read = cursor.split_once('.').and_then(read);
    read.ok_or_else(|| ApiError::malformed("cursor: is not a cursor of this endpoint"))
}

pub(crate) async fn seal(api: &Api, asker: &str, asked: OneBatchRequest) -> Answered<BatchStatus> {
    loop {
        let (mut stored, revision) = found(api, asker, &asked).await?;
        match state(&stored) {
            BatchState::Open => stored.batch.state = BatchState::Sealed.into(),
            // It counts once a replay has opened the batch again.
            BatchState::Failed if stored.batch.sealed_at.is_none() => {}
            _ => return with_members(api, stored).await,
        }
        stored.batch.sealed_at = Some(now());
        if api.backbone.write_batch(&stored, revision).await?.is_some() {
            return with_members(api, stored).await;
        }
    }
}

pub(crate) async fn cancel(api: &Arc<Api>, asker: &str, asked: OneBatchRequest) -> Answered<BatchStatus> {
    let stored = loop {
        let (mut stored, revision) = found(api, asker, &asked).await?;
        match state(&stored) {
            BatchState::Completing | BatchState::Completed => {
                let message = format!("batch {} has ended, and its job is submitted", asked.id);
                return Err(ApiError::new(Code::WrongState, message));
            }
            // A repeat cancels what the first one had left.
            BatchState::Cancelled => break stored,
            BatchState::Open | BatchState::Sealed | BatchState::Failed => {}
        }
        stored.batch.state = BatchState::Cancelled.into();
        stored.batch.ended_at = Some(now());
        if api.backbone.write_batch(&stored, revision).await?.is_some() {
            break stored;
        }
    };
    let tenant = &stored.batch.tenant;
    for members in Standing::of(api, &stored).await?.open.chunks(AT_ONCE) {
        let mut cancels = tokio::task::JoinSet::new();
        for member in members {
            let (api, tenant, run_id) = (api.clone(), tenant.clone(), member.run_id.clone());
            cancels.spawn(async move { cancellation::one(&*api, &tenant, &run_id, None).await.map(drop) });
        }
        for cancelled in cancels.join_all().await {
            // What is a dead letter has ended, and stays.
            cancelled.or_else(|error| if error.code == 409 { Ok(()) } else { Err(error) })?;
        }
    }
    with_members(api, stored).await
}
