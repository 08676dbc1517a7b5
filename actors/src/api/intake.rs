//! Intake: takes jobs over request-reply. Answers once the job is durable.
//!
//! A job without an id, a key or a later time of its own is one publish, and its run's id comes from the answer. For
//! any other job intake claims the key (`keyed`), writes the pre-created record, publishes the job, and marks record
//! and claim as published: a crash in between leaves a claim or a record that is not marked, and a repeat of the same
//! submit that finds it publishes the job again.

use std::sync::OnceLock;
use std::time::Instant;

use base64::Engine as _;
use bytes::Bytes;
use longshore_backbone::request::is_no_responders_error;
use longshore_backbone::wire::api::{ApiError, Code, SubmitRequest, Submitted};
use longshore_backbone::wire::header::{self, ATTEMPTS_MAX, COST_MAX, KEY_MAX, TAG_MAX, then};
use longshore_backbone::{Error, Headers};
use longshore_domain::admission::{self, Refusal};
use longshore_domain::job::When;
use longshore_domain::name::there_are;
use longshore_domain::policy::Policies;
use longshore_domain::{BatchId, Job, JobOptions, JobType, Priority, Queue, RunId, RunState, Tenant, Timestamp};

use crate::api::Api;
use crate::api::debounce::Debounced;
use crate::api::fields::{positive, span, wrong};
use crate::api::keyed;
use crate::api::refusals::{over_limit, too_many_wait};
use crate::api::submission::{OnConflict, Submission, answer};
use crate::api::traced;
use crate::attempt::assignment::size_refused;
use crate::batches;
use crate::commit::chain;
use crate::shared::now;
use crate::trace::Tracer;

/// A name's error says which name it is.
fn name(error: longshore_domain::NameError) -> ApiError {
    ApiError::malformed(error.to_string())
}

/// Takes one job, and counts it.
pub(crate) async fn submit(api: &Api, tenant: &Tenant, submit: SubmitRequest) -> Result<Submitted, ApiError> {
    let then = submit.then.clone();
    let checked = check(&Given::of(api), tenant, submit)?;
    links_go_somewhere(api, then).await?;
    let due = due(&checked.job);
    let place = match due {
        Some(_) => None,
        None => api.waiting.take(&checked.job).await.map_err(|full| too_many_wait(&full))?,
    };
    let tokens = api.limits.admit(tenant).await.map_err(|until| over_limit(tenant, until))?;
    let (trace, job) = (checked.trace.clone(), checked.job.without_options());
    let submitted = traced::written_down(api, trace, &job, take(api, checked, due)).await?;
    // They go back if the job was not taken. A long wait for its answer is not a reason to refuse it.
    let _ = tokens.is_some_and(|tokens| tokens.spend(Instant::now()));
    if submitted.deduplicated {
        api.metrics.deduplicated.inc();
    } else {
        if let Some(place) = place {
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
    let mut checked = checked;
    if let Some(id) = &checked.own_id {
        checked.job.run_id = id.clone();
    }
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
    let joined = batches::join(&api.backbone, &tenant, batch, &run_id).await?;
    joined.map_err(|reason| wrong("batch_id", reason))?;
    let submitted = keyed::submit(api, checked, due).await;
    let is_it = match &submitted {
        Ok(submitted) => submitted.run_id == run_id,
        // It may have been stored all the same.
        Err(error) => error.code >= 500,
    };
    if !is_it {
        batches::leave(&api.backbone, &tenant, batch, &run_id).await;
    }
    submitted
}

/// Checks a job as [`submit`] would, and its queue; it is not submitted.
pub(crate) async fn may_be_submitted(api: &Api, tenant: &Tenant, submit: SubmitRequest) -> Result<(), ApiError> {
    let then = submit.then.clone();
    let checked = check(&Given::of(api), tenant, submit)?;
    links_go_somewhere(api, then).await?;
    must_be_declared(api, &checked.job.queue).await
}

/// The queue of each job that is to follow must be declared.
async fn links_go_somewhere(api: &Api, then: Option<Box<SubmitRequest>>) -> Result<(), ApiError> {
    let (mut field, mut link) = ("then".to_owned(), then);
    while let Some(job) = link {
        let (queue, ..) = names(&job)?;
        must_be_declared(api, &queue).await.map_err(|error| error.within(&field))?;
        field.push_str(".then");
        link = job.then;
    }
    Ok(())
}

/// By what a job is judged before a server is asked.
struct Given<'a> {
    policies: &'a Policies,
    /// Maximum size of payload and headers together, in bytes.
    room: usize,
    tracer: Option<&'a Tracer>,
}

impl<'a> Given<'a> {
    fn of(api: &'a Api) -> Self {
        Self { policies: &api.policies, room: api.backbone.max_in_submit(), tracer: api.tracer.as_deref() }
    }
}

fn check(given: &Given<'_>, tenant: &Tenant, submit: SubmitRequest) -> Result<Submission, ApiError> {
    let Given { policies, room, tracer } = *given;
    let (queue, priority, job_type) = names(&submit)?;
    let own_id = submit.run_id.as_deref().map(RunId::parse_chosen).transpose().map_err(name)?;
    let debounce = Debounced::read(&submit)?;
    if submit.idempotency_key.is_none() && debounce.is_none() {
        let asks_for_key =
            [("unique", submit.unique.is_some()), ("idempotency_window_ms", submit.idempotency_window_ms.is_some())];
        if let Some((field, _)) = asks_for_key.into_iter().find(|(_, is_set)| *is_set) {
            return Err(wrong(field, "needs an idempotency_key"));
        }
    }
    let on_conflict = if debounce.is_some() { OnConflict::Replace } else { on_conflict(&submit)? };
    let payload = payload(&submit)?;
    admission::admit(policies, tenant, &job_type, version(&submit)?, &payload).map_err(|refusal| refused(&refusal))?;
    known_preset(policies, &submit)?;
    if let Some(then) = &submit.then {
        chain::check(policies, tenant, then)?;
    }
    let mut options = options(&submit, own_id.is_some())?;
    if let (Some(debounce), Some(asked)) = (debounce, &submit.debounce) {
        options.idempotency_key = key("debounce.key", Some(&asked.key))?;
        debounce.set(&mut options);
    }
    let mut headers = headers(&submit, &options)?;
    let own = header::size_of(&headers);
    let trace = tracer.map(|tracer| traced::begun(tracer, &mut headers));
    if trace.is_none() {
        traced::passed_on(&mut headers);
    }
    let in_headers = header::size_of(&headers);
    if in_headers > header::HEADERS_MAX {
        let message = format!("headers: have {in_headers} bytes, {} are allowed", header::HEADERS_MAX);
        return Err(ApiError::new(Code::TooLarge, message));
    }
    let mut header_bytes: usize =
        submit.headers.iter().flatten().map(|(name, value)| name.len() + value.len() + 4).sum();
    // Those of its trace.
    header_bytes += in_headers.saturating_sub(own);
    if payload.len() + header_bytes > room {
        let size = payload.len() + header_bytes;
        return Err(ApiError::new(Code::TooLarge, size_refused(size, room)));
    }
    let run_id = RunId::parse(&uuid()).map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    let options = (options != JobOptions::default()).then(|| Box::new(options));
    let job = Job { tenant: tenant.clone(), queue, priority, job_type, run_id, options };
    let fingerprint = OnceLock::new();
    Ok(Submission { job, own_id, on_conflict, debounce, headers, payload, trace, fingerprint })
}

/// Where a job goes, and its type.
pub(crate) fn names(submit: &SubmitRequest) -> Result<(Queue, Priority, JobType), ApiError> {
    let queue = match &submit.queue {
        Some(queue) => Queue::parse(queue).map_err(name)?,
        None => Queue::main(),
    };
    let priority = match submit.priority {
        Some(number) => Priority::new(number).map_err(name)?,
        None => Priority::DEFAULT,
    };
    Ok((queue, priority, JobType::parse(&submit.job_type).map_err(name)?))
}

/// How a job is refused that is not admitted.
pub(crate) fn refused(refusal: &Refusal) -> ApiError {
    let code = match refusal {
        Refusal::Payload { .. } => Code::TooLarge,
        Refusal::Type(_) | Refusal::Tenant(_) => Code::Forbidden,
        Refusal::Schema(_) => Code::Malformed,
    };
    ApiError::new(code, refusal.to_string())
}

fn on_conflict(submit: &SubmitRequest) -> Result<OnConflict, ApiError> {
    match submit.on_conflict.as_deref() {
        None => Ok(OnConflict::default()),
        Some(_) if submit.idempotency_key.is_none() => Err(wrong("on_conflict", "needs an idempotency_key")),
        Some(word) => OnConflict::read(word).map_err(|error| wrong("on_conflict", error)),
    }
}

fn uuid() -> String {
    uuid::Uuid::now_v7().to_string()
}

pub(crate) fn payload(submit: &SubmitRequest) -> Result<Bytes, ApiError> {
    match (&submit.payload, &submit.payload_base64) {
        (Some(_), Some(_)) => Err(wrong("payload_base64", "stands beside payload; one of them is enough")),
        (Some(json), None) => Ok(Bytes::copy_from_slice(json.get().as_bytes())),
        (None, Some(text)) => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map(Bytes::from)
            .map_err(|error| wrong("payload_base64", error)),
        (None, None) => Ok(Bytes::new()),
    }
}

/// The options that a job asks for.
pub(crate) fn options(submit: &SubmitRequest, own_run_id: bool) -> Result<JobOptions, ApiError> {
    let moment = |field: &str, text: &Option<String>| {
        text.as_deref().map(Timestamp::parse).transpose().map_err(|error| wrong(field, error))
    };
    let either = |fields: (&str, &str), at: Option<Timestamp>, after: Option<u64>| match (at, after) {
        (Some(_), Some(_)) => Err(wrong(fields.1, format!("stands beside {}; one of them is enough", fields.0))),
        (Some(at), None) => Ok(Some(When::At(at))),
        // A delay of zero means no delay; a job that expires after zero could never start.
        (None, Some(ms)) if fields.1 == "delay_ms" => span(fields.1, ms).map(|span| Some(When::After(span))),
        (None, Some(ms)) => positive(fields.1, ms).map(|span| Some(When::After(span))),
        (None, None) => Ok(None),
    };
    let number = |field: &str, asked: Option<u64>, max: u32| match asked.map(u32::try_from) {
        Some(Ok(number)) if (1..=max).contains(&number) => Ok(Some(number)),
        Some(_) => Err(wrong(field, format!("is not one of 1 to {max}"))),
        None => Ok(None),
    };
    let unique = submit.unique.as_deref().map(header::unique).transpose().map_err(|error| wrong("unique", error))?;
    let run_at = submit.run_at.as_deref().map(header::run_at).transpose().map_err(|error| wrong("run_at", error))?;
    let deadline = submit.deadline.as_deref().map(header::deadline).transpose();
    let tags = submit.tags.as_ref().map(|tags| header::tags(tags.iter().map(String::as_str))).transpose();
    Ok(JobOptions {
        own_run_id,
        idempotency_key: key("idempotency_key", submit.idempotency_key.as_deref())?,
        idempotency_window: submit.idempotency_window_ms.map(|ms| positive("idempotency_window_ms", ms)).transpose()?,
        unique: unique.unwrap_or_default(),
        max_attempts: number("max_attempts", submit.max_attempts, ATTEMPTS_MAX)?,
        retry: submit.retry.clone(),
        run_at: either(("run_at", "delay_ms"), run_at, submit.delay_ms)?,
        keep: submit.keep_ms.map(|ms| span("keep_ms", ms)).transpose()?,
        timeout: submit.timeout_ms.map(|ms| positive("timeout_ms", ms)).transpose()?,
        deadline: deadline.map_err(|error| wrong("deadline", error))?,
        expires: either(
            ("expires_at", "expires_in_ms"),
            moment("expires_at", &submit.expires_at)?,
            submit.expires_in_ms,
        )?,
        concurrency_key: key("concurrency_key", submit.concurrency_key.as_deref())?,
        limit_key: key("limit_key", submit.limit_key.as_deref())?,
        cost: number("cost", submit.cost, COST_MAX)?,
        schema_version: submit.schema_version.clone(),
        tags: tags.map_err(|error| wrong("tags", error))?.unwrap_or_default(),
        batch: submit
            .batch_id
            .as_deref()
            .map(BatchId::parse)
            .transpose()
            .map_err(|error| wrong("batch_id", error.reason))?,
        then: submit.then.as_deref().map(then::write).transpose().map_err(|error| wrong("then", error))?,
    })
}

/// The preset of back-off that the job names must be one of the configuration.
pub(crate) fn known_preset(policies: &Policies, submit: &SubmitRequest) -> Result<(), ApiError> {
    let Some(name) = submit.retry.as_ref().filter(|name| !policies.retries.contains_key(*name)) else {
        return Ok(());
    };
    let mut known = there_are(policies.retries.keys().map(String::as_str));
    if policies.retries.is_empty() {
        known.push_str("; a section [retries.NAME] of the nodes' configuration makes one");
    }
    Err(wrong("retry", format!("no preset {name:?} is configured; {known}")))
}

/// A key: any text within its bounds.
fn key(field: &str, value: Option<&str>) -> Result<Option<String>, ApiError> {
    sized(field, value, KEY_MAX).map(|text| text.map(str::to_owned))
}

/// The version of a schema: a text that a header can carry.
pub(crate) fn version(submit: &SubmitRequest) -> Result<Option<&str>, ApiError> {
    match sized("schema_version", submit.schema_version.as_deref(), TAG_MAX)? {
        Some(text) if !header::fits_header(text) => {
            Err(wrong("schema_version", "has a control character, or a blank at an end"))
        }
        other => Ok(other),
    }
}

fn sized<'t>(field: &str, value: Option<&'t str>, max: usize) -> Result<Option<&'t str>, ApiError> {
    match value {
        Some("") => Err(wrong(field, "is empty")),
        Some(text) if text.len() > max => Err(wrong(field, format!("has {} bytes, {max} are allowed", text.len()))),
        other => Ok(other),
    }
}

/// The headers that the job is published with: the client's own, and those of its options.
pub(crate) fn headers(submit: &SubmitRequest, options: &JobOptions) -> Result<Headers, ApiError> {
    let mut headers = Headers::new();
    for (name, value) in submit.headers.iter().flatten() {
        let field = format!("headers.{name}");
        let token = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        if !token {
            return Err(wrong(&field, "is not a valid header name"));
        }
        if !header::is_clients(name) {
            return Err(wrong(
                &field,
                "names beginning with Nats- and Longshore- are not a client's; use the request's fields",
            ));
        }
        if value.contains(['\r', '\n']) {
            return Err(wrong(&field, "has a line break"));
        }
        headers.insert(name.as_str(), value.as_str());
    }
    header::write_options(options, &mut headers);
    Ok(headers)
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

/// A record must not be pre-created for a queue that no node declares.
pub(crate) async fn must_be_declared(api: &Api, queue: &Queue) -> Result<(), ApiError> {
    if api.policies.queues.contains_key(queue) {
        return Ok(());
    }
    match api.backbone.is_declared(queue).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(undeclared(queue)),
        Err(error) => Err(error.into()),
    }
}

fn undeclared(queue: &Queue) -> ApiError {
    ApiError::not_found(format!("queue: {:?} is not declared by any node", queue.as_str())).hint(
        "queues.list shows the queues; queues.put declares one more, and so does a section [queues.NAME] in a node's \
         configuration",
    )
}

#[cfg(test)]
mod tests;
