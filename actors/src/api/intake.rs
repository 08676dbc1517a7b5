//! Intake: takes jobs over request-reply. Answers once the job is durable.
//!
//! A job without an id, a key or a later time of its own is one publish, and its run's id comes from the answer. Any
//! other job goes by `submission`, once `keyed` has claimed its key.

use std::sync::OnceLock;
use std::time::Instant;

use longshore_backbone::Error;
use longshore_backbone::request::is_no_responders_error;
use longshore_backbone::wire::api::{ApiError, Code, SubmitRequest, Submitted};
use longshore_backbone::wire::header;
use longshore_domain::admission;
use longshore_domain::policy::Policies;
use longshore_domain::{BatchId, Job, JobOptions, Queue, RunId, RunState, Tenant, Timestamp};

use crate::api::Api;
use crate::api::debounce::Debounced;
use crate::api::keyed;
use crate::api::refusals::{over_limit, too_many_wait};
use crate::api::submission::{OnConflict, Submission, answer};
use crate::api::traced;
use crate::attempt::assignment::size_refused;
use crate::commit::chain;
use crate::ports::{RunPorts as _, batch};
use crate::request::{headers, key, known_preset, name, names, options, payload, refused, version, wrong};
use crate::runtime::now;
use crate::trace::Tracer;

/// Takes one job, and counts it.
pub(crate) async fn submit(api: &Api, tenant: &Tenant, submit: SubmitRequest) -> Result<Submitted, ApiError> {
    submit_over(api, tenant, submit, 0).await
}

/// The same over the record of this revision, if it is not 0: its run has ended, and makes way.
pub(crate) async fn submit_over(
    api: &Api,
    tenant: &Tenant,
    submit: SubmitRequest,
    over: u64,
) -> Result<Submitted, ApiError> {
    let checked = Submission { over, ..checked(api, tenant, submit).await? };
    admit(api, tenant, checked).await
}

/// The same for a delivery to a webhook, which a node makes of an event. A message of the log that met the end of the
/// tenant's tokens comes again from its beginning: were its repeats to take tokens, it would never get to its end.
pub(crate) async fn submit_delivery(api: &Api, tenant: &Tenant, submit: SubmitRequest) -> Result<(), ApiError> {
    let checked = checked(api, tenant, submit).await?;
    if keyed::repeated(api, &checked).await?.is_some() {
        api.metrics.deduplicated.inc();
        return Ok(());
    }
    admit(api, tenant, checked).await.map(drop)
}

async fn admit(api: &Api, tenant: &Tenant, checked: Submission) -> Result<Submitted, ApiError> {
    let due = due(&checked.job);
    let place = match due {
        Some(_) => Ok(None),
        None => api.waiting.take(&checked.job).await,
    };
    let before = match &place {
        Ok(_) => None,
        // What is there already takes no place.
        Err(full) => Some(keyed::repeated(api, &checked).await?.ok_or_else(|| too_many_wait(full))?),
    };
    let tokens = api.limits.admit(tenant).await.map_err(|until| over_limit(tenant, until))?;
    let (trace, job) = (checked.trace.clone(), checked.job.without_options());
    let submitted = match before {
        Some(before) => before,
        None => traced::written_down(api, trace, &job, take(api, checked, due)).await?,
    };
    // They go back if the job was not taken. A long wait for its answer is not a reason to refuse it.
    let _ = tokens.is_some_and(|tokens| tokens.spend(Instant::now()));
    if submitted.deduplicated {
        api.metrics.deduplicated.inc();
    } else {
        if let Ok(Some(place)) = place {
            place.stored();
        }
        api.metrics.jobs.of(job.queue.as_str(), job.job_type.as_str()).submitted.inc();
    }
    Ok(submitted)
}

/// When the job is to start, if that is later than now.
fn due(job: &Job) -> Option<Timestamp> {
    let (now, run_at) = (now(), job.options.as_ref().and_then(|options| options.run_at));
    run_at.map(|when| when.from(now)).filter(|due| *due > now)
}

async fn take(api: &Api, checked: Submission, due: Option<Timestamp>) -> Result<Submitted, ApiError> {
    let options = checked.job.options.as_ref();
    let keyed = options.is_some_and(|options| options.idempotency_key.is_some() || options.batch.is_some());
    if checked.own_id.is_none() && !keyed && due.is_none() {
        return publish_plain(api, checked).await;
    }
    must_be_declared(api, &checked.job.queue).await?;
    match checked.job.options.as_ref().and_then(|options| options.batch.clone()) {
        Some(batch) => take_member(api, checked, due, &batch).await,
        None => keyed::submit(api, checked, due).await,
    }
}

/// Takes a job of a batch: it joins before anything of its run is stored. A repeat joins nothing, so that it is
/// answered as any, also once its batch has ended.
async fn take_member(
    api: &Api,
    checked: Submission,
    due: Option<Timestamp>,
    batch: &BatchId,
) -> Result<Submitted, ApiError> {
    if let Some(before) = keyed::repeated(api, &checked).await? {
        return Ok(before);
    }
    let (tenant, run_id) = (checked.job.tenant.clone(), checked.job.run_id.clone());
    let joined = batch::join(&api.backbone, &tenant, batch, &run_id).await?;
    joined.map_err(|reason| wrong("batch_id", reason))?;
    let submitted = keyed::submit(api, checked, due).await;
    let is_it = match &submitted {
        Ok(submitted) => submitted.run_id == run_id,
        // It may have been stored all the same, or a repeat may go on with it. Else it has left.
        Err(error) => error.code >= 500,
    };
    if !is_it {
        batch::leave(&api.backbone, &tenant, batch, &run_id).await;
    }
    submitted
}

/// Checks a job as [`submit`] would, and its queue; it is not submitted.
pub(crate) async fn may_be_submitted(api: &Api, tenant: &Tenant, submit: SubmitRequest) -> Result<(), ApiError> {
    let checked = checked(api, tenant, submit).await?;
    must_be_declared(api, &checked.job.queue).await
}

async fn checked(api: &Api, tenant: &Tenant, submit: SubmitRequest) -> Result<Submission, ApiError> {
    let Api { policies, backbone, tracer, .. } = api;
    let checked = check(policies, backbone.max_in_submit(), tracer.as_deref(), tenant, &submit)?;
    links_must_be_declared(api, &submit).await?;
    Ok(checked)
}

/// The queue of each job that is to follow must be declared.
pub(crate) async fn links_must_be_declared(api: &Api, first: &SubmitRequest) -> Result<(), ApiError> {
    for (field, job) in chain::links(first.then.as_deref()) {
        let (queue, ..) = names(job)?;
        must_be_declared(api, &queue).await.map_err(|error| error.within(&field))?;
    }
    Ok(())
}

/// Judges a job before a server is asked. `room`: maximum size of payload and headers together, in bytes.
pub(crate) fn check(
    policies: &Policies,
    room: usize,
    tracer: Option<&Tracer>,
    tenant: &Tenant,
    submit: &SubmitRequest,
) -> Result<Submission, ApiError> {
    let (queue, priority, job_type) = names(submit)?;
    let own_id = submit.run_id.as_deref().map(RunId::parse_chosen).transpose().map_err(name)?;
    let debounce = Debounced::read(submit)?;
    if submit.idempotency_key.is_none() && debounce.is_none() {
        let asks_for_key =
            [("unique", submit.unique.is_some()), ("idempotency_window_ms", submit.idempotency_window_ms.is_some())];
        if let Some((field, _)) = asks_for_key.into_iter().find(|(_, is_set)| *is_set) {
            return Err(wrong(field, "needs an idempotency_key"));
        }
    }
    let on_conflict = if debounce.is_some() { OnConflict::Replace } else { on_conflict(submit)? };
    let payload = payload(submit)?;
    admission::admit(policies, tenant, &job_type, version(submit)?, &payload).map_err(|refusal| refused(&refusal))?;
    known_preset(policies, submit)?;
    if let Some(then) = &submit.then {
        chain::check(policies, tenant, then)?;
    }
    let mut options = options(submit, own_id.is_some())?;
    if let (Some(debounce), Some(asked)) = (debounce, &submit.debounce) {
        options.idempotency_key = key("debounce.key", Some(&asked.key))?;
        debounce.set(&mut options);
    }
    let mut headers = headers(submit, &options)?;
    let own = header::size_of(&headers);
    let trace = tracer.map(|tracer| traced::begun(tracer, &mut headers));
    if trace.is_none() {
        traced::passed_on(&mut headers);
    }
    let in_headers = header::size_of(&headers);
    headers_fit(in_headers)?;
    let clients: usize = submit.headers.iter().flatten().map(|(name, value)| name.len() + value.len() + 4).sum();
    let size = payload.len() + clients + in_headers.saturating_sub(own); // the last are those of its trace
    if size > room {
        return Err(ApiError::new(Code::TooLarge, size_refused(size, room)));
    }
    let made = || RunId::parse(&uuid::Uuid::now_v7().to_string());
    let run_id = own_id.clone().map_or_else(made, Ok);
    let run_id = run_id.map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    let options = (options != JobOptions::default()).then(|| Box::new(options));
    let job = Job { tenant: tenant.clone(), queue, priority, job_type, run_id, options };
    let fingerprint = OnceLock::new();
    Ok(Submission { job, own_id, on_conflict, debounce, headers, payload, trace, over: 0, fingerprint })
}

/// Whether a job may have headers of so many bytes.
pub(crate) fn headers_fit(bytes: usize) -> Result<(), ApiError> {
    if bytes <= header::HEADERS_MAX {
        return Ok(());
    }
    let message = format!("headers: have {bytes} bytes, {} are allowed", header::HEADERS_MAX);
    Err(ApiError::new(Code::TooLarge, message))
}

fn on_conflict(submit: &SubmitRequest) -> Result<OnConflict, ApiError> {
    match submit.on_conflict.as_deref() {
        None => Ok(OnConflict::Return),
        Some(_) if submit.idempotency_key.is_none() => Err(wrong("on_conflict", "needs an idempotency_key")),
        Some("return") => Ok(OnConflict::Return),
        Some("reject") => Ok(OnConflict::Reject),
        Some("replace") => Ok(OnConflict::Replace),
        Some(other) => Err(wrong("on_conflict", format!("{other:?} is not one of return, reject, replace"))),
    }
}

/// One publish; the run's id comes from its answer.
async fn publish_plain(api: &Api, checked: Submission) -> Result<Submitted, ApiError> {
    let Submission { job, headers, payload, .. } = checked;
    let subject = api.backbone.names().job(&job.tenant, &job.lane(), &job.job_type);
    match api.backbone.publish(subject, headers, payload).await {
        Ok(ack) => Ok(answer(&RunId::derived(&job.lane(), ack.seq), RunState::Enqueued, false)),
        Err(error) => Err(refusal(api, &job, &error).await),
    }
}

pub(crate) async fn refusal(api: &Api, job: &Job, error: &Error) -> ApiError {
    match error {
        error if error.is_stream_full() => {
            ApiError::unavailable(format!("queue {} is full at priority {}", job.queue, job.priority.number())).hint(
                "its bound is storage.jobs_max_messages or jobs_max_bytes; queues.list shows whether a node works the \
                 queue off",
            )
        }
        // No stream takes the subject; for a declared queue that lasts only until its lane has a leader again.
        error if is_no_responders_error(error) => match must_be_declared(api, &job.queue).await {
            Ok(()) => ApiError::unavailable(format!("queue {} has no leader just now; try again", job.queue)),
            Err(refused) => refused,
        },
        error => error.into(),
    }
}

/// The publish of a job whose record is stored has failed. If its lane has refused it for certain, and it has neither
/// key nor id by which a repeat could go on with it, then its batch must not wait for it.
pub(crate) async fn leave_refused(api: &Api, job: &Job, error: &Error) {
    let Some(options) = &job.options else { return };
    let may_be_repeated = options.own_run_id || options.idempotency_key.is_some();
    if let Some(batch) = &options.batch
        && !may_be_repeated
        && (error.is_stream_full() || is_no_responders_error(error))
    {
        batch::leave(&api.backbone, &job.tenant, batch, &job.run_id).await;
        batch::forget_record(&api.backbone, &job.tenant, &job.run_id).await;
    }
}

/// A record must not be pre-created for a queue that no node declares.
pub(crate) async fn must_be_declared(api: &Api, queue: &Queue) -> Result<(), ApiError> {
    if api.declares(queue).await? {
        return Ok(());
    }
    Err(ApiError::not_found(format!("queue: {:?} is not declared by any node", queue.as_str())).hint(
        "queues.list shows the queues; queues.put declares one more, and so does a section [queues.NAME] in a node's \
         configuration",
    ))
}

#[cfg(test)]
mod tests;
