//! What a submission says, read: where its job goes, its options, headers and payload. An error names the field and the
//! reason. Nothing of this needs a server.

use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use longshore_backbone::Headers;
use longshore_backbone::wire::api::{ApiError, Code, SubmitRequest};
use longshore_backbone::wire::header::{self, ATTEMPTS_MAX, COST_MAX, KEY_MAX, TAG_MAX, then};
use longshore_domain::admission::Refusal;
use longshore_domain::job::When;
use longshore_domain::name::there_are;
use longshore_domain::policy::Policies;
use longshore_domain::{BatchId, JobOptions, JobType, Priority, Queue, Timestamp, duration};

pub(crate) fn wrong(field: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::malformed(format!("{field}: {reason}"))
}

/// A span that must not be zero.
pub(crate) fn positive(field: &str, ms: u64) -> Result<Duration, ApiError> {
    if ms == 0 { Err(wrong(field, "is zero")) } else { span(field, ms) }
}

pub(crate) fn span(field: &str, ms: u64) -> Result<Duration, ApiError> {
    let span = Duration::from_millis(ms);
    if span > duration::MAX_DURATION { Err(wrong(field, "is more than 3650 days")) } else { Ok(span) }
}

/// A name's error says which name it is.
pub(crate) fn name(error: longshore_domain::NameError) -> ApiError {
    ApiError::malformed(error.to_string())
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

/// A field that is there, read; its error names it.
fn read<T, R, E: std::fmt::Display>(
    field: &str,
    given: Option<T>,
    read: impl FnOnce(T) -> Result<R, E>,
) -> Result<Option<R>, ApiError> {
    given.map(read).transpose().map_err(|error| wrong(field, error))
}

/// The options that a job asks for.
pub(crate) fn options(submit: &SubmitRequest, own_run_id: bool) -> Result<JobOptions, ApiError> {
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
    let unique = read("unique", submit.unique.as_deref(), header::unique)?;
    let run_at = read("run_at", submit.run_at.as_deref(), header::run_at)?;
    let tags = |tags: &Vec<String>| header::tags(tags.iter().map(String::as_str));
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
        deadline: read("deadline", submit.deadline.as_deref(), header::deadline)?,
        expires: either(
            ("expires_at", "expires_in_ms"),
            read("expires_at", submit.expires_at.as_deref(), Timestamp::parse)?,
            submit.expires_in_ms,
        )?,
        concurrency_key: key("concurrency_key", submit.concurrency_key.as_deref())?,
        limit_key: key("limit_key", submit.limit_key.as_deref())?,
        cost: number("cost", submit.cost, COST_MAX)?,
        schema_version: submit.schema_version.clone(),
        tags: read("tags", submit.tags.as_ref(), tags)?.unwrap_or_default(),
        batch: read("batch_id", submit.batch_id.as_deref(), |id| BatchId::parse(id).map_err(|error| error.reason))?,
        then: read("then", submit.then.as_deref(), then::write)?,
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
pub(crate) fn key(field: &str, value: Option<&str>) -> Result<Option<String>, ApiError> {
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
