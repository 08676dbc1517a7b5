//! Intake: takes jobs over request-reply. Answers once the job is durable.
//!
//! A job without an id or key of its own is one publish, and its run's id comes from the answer. One with either is
//! claimed first, then noted as a record, then published: a crash in between leaves a claim or a note that a repeat of
//! the same submit finds, and then it publishes the job again.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use longshore_backbone::claims::{Claim, Claimed, fingerprint};
use longshore_backbone::records::Written;
use longshore_backbone::request::{STREAM_FULL, nobody_there};
use longshore_backbone::wire::api::{ApiError, Code};
use longshore_backbone::wire::header::{self, ATTEMPTS_MAX, KEY_MAX, is_servers, names};
use longshore_backbone::{Error, Headers};
use longshore_domain::job::{Unique, When};
use longshore_domain::protocol::{Repeat, on_repeat};
use longshore_domain::settlement::Settlement;
use longshore_domain::{
    Job, JobOptions, JobType, Priority, Queue, Run, RunId, RunState, Tenant, Timestamp, duration, story,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::assignment::size_refused;
use crate::carry_out::chain;
use crate::herald::Telling;
use crate::shared::{Shared, now};
use crate::story::{Follow, Matter, Story, Then, Told};

/// What a client asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Submit {
    #[serde(rename = "type")]
    job_type: String,
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    queue: Option<String>,
    priority: Option<u64>,
    idempotency_key: Option<String>,
    run_id: Option<String>,
    run_at: Option<String>,
    delay_ms: Option<u64>,
    expires_at: Option<String>,
    expires_in_ms: Option<u64>,
    max_attempts: Option<u32>,
    retry: Option<String>,
    timeout_ms: Option<u64>,
    keep_ms: Option<u64>,
    deadline: Option<String>,
    concurrency_key: Option<String>,
    limit_key: Option<String>,
    cost: Option<u32>,
    tags: Option<Vec<String>>,
    headers: Option<std::collections::BTreeMap<String, String>>,
}

/// A submission, read and checked.
struct Checked {
    job: Job,
    own_id: Option<RunId>,
    headers: Headers,
    payload: Bytes,
}

impl Checked {
    fn matter(&self) -> Matter {
        Matter { headers: Some(Arc::new(self.headers.clone())), payload: self.payload.clone() }
    }
}

fn wrong(field: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::malformed(format!("{field}: {reason}"))
}

/// A name's own error says which it is.
fn name(error: longshore_domain::NameError) -> ApiError {
    ApiError::malformed(error.to_string())
}

/// Takes one job.
pub(crate) async fn submit(shared: &Shared, tenant: &Tenant, submit: Submit) -> Result<Value, ApiError> {
    let checked = check(shared, tenant, submit)?;
    let due = checked.job.options.as_ref().and_then(|options| options.run_at).map(|when| when.from(now()));
    let keyed = checked.job.options.as_ref().is_some_and(|options| options.idempotency_key.is_some());
    if checked.own_id.is_none() && !keyed && due.is_none_or(|due| due <= now()) {
        return publish_plain(shared, checked).await;
    }
    must_be_declared(shared, &checked.job.queue).await?;
    let mut checked = checked;
    if let Some(id) = &checked.own_id {
        checked.job.run_id = id.clone();
    }
    match claim_key(shared, &checked).await? {
        Claimed::Mine => note_and_publish(shared, checked, due.filter(|due| *due > now())).await,
        Claimed::Theirs(theirs) => repeated(shared, checked, theirs.run_id, due).await,
    }
}

fn check(shared: &Shared, tenant: &Tenant, submit: Submit) -> Result<Checked, ApiError> {
    let queue = match &submit.queue {
        Some(queue) => Queue::parse(queue).map_err(name)?,
        None => Queue::main(),
    };
    let priority = match submit.priority {
        Some(number) => Priority::new(number).map_err(name)?,
        None => Priority::DEFAULT,
    };
    let job_type = JobType::parse(&submit.job_type).map_err(name)?;
    let own_id = submit.run_id.as_deref().map(RunId::parse_chosen).transpose().map_err(name)?;
    let payload = payload(&submit)?;
    let options = options(shared, &submit, own_id.is_some())?;
    let headers = headers(&submit, &options)?;
    let in_headers = header::size_of(&headers);
    if in_headers > header::HEADERS_MAX {
        let message = format!("headers: have {in_headers} bytes, {} are allowed", header::HEADERS_MAX);
        return Err(ApiError::new(Code::TooLarge, message));
    }
    let room = shared.backbone.most_in_submit();
    let header_bytes: usize = submit.headers.iter().flatten().map(|(name, value)| name.len() + value.len() + 4).sum();
    if payload.len() + header_bytes > room {
        let size = payload.len() + header_bytes;
        return Err(ApiError::new(Code::TooLarge, size_refused(size, room)));
    }
    let run_id = RunId::parse(&uuid()).map_err(|error| ApiError::new(Code::Internal, error.to_string()))?;
    let options = (options != JobOptions::default()).then(|| Box::new(options));
    let job = Job { tenant: tenant.clone(), queue, priority, job_type, run_id, options };
    Ok(Checked { job, own_id, headers, payload })
}

fn uuid() -> String {
    uuid::Uuid::now_v7().to_string()
}

fn payload(submit: &Submit) -> Result<Bytes, ApiError> {
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

fn options(shared: &Shared, submit: &Submit, own_run_id: bool) -> Result<JobOptions, ApiError> {
    let key = |field: &str, value: &Option<String>| match value {
        Some(text) if text.is_empty() => Err(wrong(field, "is empty")),
        Some(text) if text.len() > KEY_MAX => {
            Err(wrong(field, format!("has {} bytes, {KEY_MAX} are allowed", text.len())))
        }
        Some(text) if text.chars().any(char::is_control) => Err(wrong(field, "has a control character")),
        other => Ok(other.clone()),
    };
    let moment = |field: &str, text: &Option<String>| {
        text.as_deref().map(Timestamp::parse).transpose().map_err(|error| wrong(field, error))
    };
    let either = |fields: (&str, &str), at: Option<Timestamp>, after: Option<u64>| match (at, after) {
        (Some(_), Some(_)) => Err(wrong(fields.1, format!("stands beside {}; one of them is enough", fields.0))),
        (Some(at), None) => Ok(Some(When::At(at))),
        (None, Some(ms)) => span(fields.1, ms).map(|span| Some(When::After(span))),
        (None, None) => Ok(None),
    };
    if let Some(name) = submit.retry.as_ref().filter(|name| !shared.policies.retries.contains_key(*name)) {
        let known: Vec<&str> = shared.policies.retries.keys().map(String::as_str).collect();
        return Err(wrong("retry", format!("no preset {name:?} is configured; there are: {}", known.join(", "))));
    }
    if submit.max_attempts.is_some_and(|attempts| !(1..=ATTEMPTS_MAX).contains(&attempts)) {
        return Err(wrong("max_attempts", format!("is not one of 1 to {ATTEMPTS_MAX}")));
    }
    if submit.cost == Some(0) {
        return Err(wrong("cost", "is 0; a job takes 1 token or more"));
    }
    let deadline = match submit.deadline.as_deref() {
        None => None,
        Some(text) => Some(match duration::parse(text) {
            Ok(span) => When::After(span),
            Err(_) => When::At(Timestamp::parse(text).map_err(|error| wrong("deadline", error))?),
        }),
    };
    let tags = submit.tags.as_ref().map(|tags| header::tags(tags.iter().map(String::as_str))).transpose();
    Ok(JobOptions {
        own_run_id,
        idempotency_key: key("idempotency_key", &submit.idempotency_key)?,
        idempotency_window: None,
        unique: Unique::Window,
        max_attempts: submit.max_attempts,
        retry: submit.retry.clone(),
        run_at: either(("run_at", "delay_ms"), moment("run_at", &submit.run_at)?, submit.delay_ms)?,
        keep: submit.keep_ms.map(|ms| span("keep_ms", ms)).transpose()?,
        timeout: submit.timeout_ms.map(|ms| span("timeout_ms", ms)).transpose()?,
        deadline,
        expires: either(
            ("expires_at", "expires_in_ms"),
            moment("expires_at", &submit.expires_at)?,
            submit.expires_in_ms,
        )?,
        concurrency_key: key("concurrency_key", &submit.concurrency_key)?,
        limit_key: key("limit_key", &submit.limit_key)?,
        cost: submit.cost,
        schema_version: None,
        tags: tags.map_err(|error| wrong("tags", error))?.unwrap_or_default(),
    })
}

fn span(field: &str, ms: u64) -> Result<Duration, ApiError> {
    let span = Duration::from_millis(ms);
    if span > duration::LONGEST { Err(wrong(field, "is more than 3650 days")) } else { Ok(span) }
}

/// The headers the job is published with: the client's own, and what it asked for.
fn headers(submit: &Submit, options: &JobOptions) -> Result<Headers, ApiError> {
    let mut headers = Headers::new();
    for (name, value) in submit.headers.iter().flatten() {
        let field = format!("headers.{name}");
        let token = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
        if !token {
            return Err(wrong(&field, "is no name for a header"));
        }
        if is_servers(name) || name.get(..10).is_some_and(|prefix| prefix.eq_ignore_ascii_case("longshore-")) {
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
async fn publish_plain(shared: &Shared, checked: Checked) -> Result<Value, ApiError> {
    let Checked { job, headers, payload, .. } = checked;
    let subject = shared.backbone.names().job(&job.tenant, &job.queue, job.priority, &job.job_type);
    match shared.backbone.publish(subject, headers, payload).await {
        Ok(ack) => Ok(answer(&RunId::minted(&job.queue, job.priority, ack.seq), RunState::Enqueued, false)),
        Err(error) => Err(refusal(shared, &job, &error).await),
    }
}

fn answer(run_id: &RunId, state: RunState, deduplicated: bool) -> Value {
    json!({"run_id": run_id, "state": state, "deduplicated": deduplicated})
}

async fn refusal(shared: &Shared, job: &Job, error: &Error) -> ApiError {
    match error {
        Error::Refused { code, .. } if STREAM_FULL.contains(code) => {
            ApiError::unavailable(format!("queue {} is full at priority {}", job.queue, job.priority.number()))
        }
        // Nobody takes the subject: of a declared queue only until its lane has a leader again.
        error if nobody_there(error) => match must_be_declared(shared, &job.queue).await {
            Ok(()) => ApiError::unavailable(format!("queue {} has no leader just now; try again", job.queue)),
            Err(refused) => refused,
        },
        error => ApiError::unavailable(chain(error)),
    }
}

/// What is noted before it is published must not be noted for a queue that nobody declared.
pub(crate) async fn must_be_declared(shared: &Shared, queue: &Queue) -> Result<(), ApiError> {
    if shared.policies.queues.contains_key(queue) {
        return Ok(());
    }
    match shared.backbone.is_declared(queue).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(undeclared(queue)),
        Err(error) => Err(ApiError::unavailable(chain(&error))),
    }
}

fn undeclared(queue: &Queue) -> ApiError {
    ApiError::not_found(format!("queue: {:?} is not declared by any node", queue.as_str()))
}

async fn claim_key(shared: &Shared, checked: &Checked) -> Result<Claimed, ApiError> {
    let Some(options) = &checked.job.options else { return Ok(Claimed::Mine) };
    let Some(key) = &options.idempotency_key else { return Ok(Claimed::Mine) };
    let print = fingerprint(checked.job.job_type.as_str(), &checked.payload);
    let claim = Claim { run_id: checked.job.run_id.clone(), fingerprint: print };
    let window = options.idempotency_window.unwrap_or(shared.backbone.storage().idempotency_window);
    let claimed = shared.backbone.claim_key(&checked.job.tenant, key, &claim, window).await;
    claimed.map_err(|error| ApiError::unavailable(chain(&error)))
}

/// Notes the run as a record, then publishes its job or schedule.
async fn note_and_publish(shared: &Shared, checked: Checked, due: Option<Timestamp>) -> Result<Value, ApiError> {
    let job = &checked.job;
    let mut run = Run::new(job, shared.max_attempts(job), now());
    run.token = shared.token();
    if let Some(at) = due {
        return schedule(shared, &checked, run, at).await;
    }
    match shared.backbone.write_record(&run, 0).await {
        Ok(Written::Won(revision)) => publish_noted(shared, &checked, Some(revision)).await?,
        Ok(Written::Lost(Some(found))) => return found_before(shared, &checked, &found.run).await,
        Ok(Written::Lost(None)) => return Err(ApiError::unavailable("the run's record changes; try again")),
        Err(error) => return Err(ApiError::unavailable(chain(&error))),
    }
    Ok(answer(&job.run_id, RunState::Enqueued, false))
}

/// Publishes a job whose record stands. Without the record's revision it is one that must claim its run first.
async fn publish_noted(shared: &Shared, checked: &Checked, revision: Option<u64>) -> Result<(), ApiError> {
    let job = &checked.job;
    let mut headers = checked.headers.clone();
    headers.insert(names::RUN_ID, job.run_id.as_str());
    if let Some(revision) = revision {
        headers.insert(names::REVISION, revision.to_string());
    }
    let subject = shared.backbone.names().job(&job.tenant, &job.queue, job.priority, &job.job_type);
    let id = format!("{}/{}/1/1", job.tenant, job.run_id);
    let moved = shared.backbone.move_to_lane(subject, headers, checked.payload.clone(), &id).await;
    match moved {
        Ok(_) => Ok(()),
        Err(error) => Err(refusal(shared, job, &error).await),
    }
}

/// The run is there already: answered as it stands. Where its job may never have been published, it is now.
async fn found_before(shared: &Shared, checked: &Checked, run: &Run) -> Result<Value, ApiError> {
    match on_repeat(run) {
        Repeat::Publish => publish_noted(shared, checked, None).await?,
        Repeat::Schedule(at) => schedule_noted(shared, checked, run, at).await?,
        Repeat::Nothing => {}
    }
    Ok(answer(&run.run_id, run.state, true))
}

/// The record says that the run waits for its time. Where no schedule stands, either it has fired, and another message of
/// the run does no harm; or the node that noted it died before it wrote one.
async fn schedule_noted(shared: &Shared, checked: &Checked, run: &Run, at: Timestamp) -> Result<(), ApiError> {
    match shared.backbone.has_schedule(run).await {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => return Err(ApiError::unavailable(chain(&error))),
    }
    let matter = checked.matter();
    let told = Told { live: story::of_round(run).len(), log: 0 };
    let mut story = Story::on_record(Box::new(run.clone()), matter, told, &shared.node, &shared.backbone);
    let (done, carried_out) = oneshot::channel();
    story.follow = Some(Follow::Schedule(at));
    story.then = Then::Report(done);
    shared.herald.tell(Telling::Story(Box::new(story))).await;
    carried_out.await.map_err(|_| ApiError::unavailable("the schedule could not be written; try again"))
}

/// The key is another run's: answered with that one.
async fn repeated(shared: &Shared, checked: Checked, theirs: RunId, due: Option<Timestamp>) -> Result<Value, ApiError> {
    let mut checked = checked;
    let tenant = checked.job.tenant.clone();
    checked.job.run_id = theirs;
    match shared.backbone.read_record(&tenant, &checked.job.run_id).await {
        Ok(Some(found)) => found_before(shared, &checked, &found.run).await,
        // A claim whose run never came, or a bare publish that waits: with the record's compare-and-set there is one.
        Ok(None) => {
            let mut first = note_and_publish(shared, checked, due.filter(|due| *due > now())).await?;
            first["deduplicated"] = json!(true);
            Ok(first)
        }
        Err(error) => Err(ApiError::unavailable(chain(&error))),
    }
}

/// Records the run as scheduled, tells it, and writes its schedule; in this order, by the herald.
async fn schedule(shared: &Shared, checked: &Checked, mut run: Run, at: Timestamp) -> Result<Value, ApiError> {
    let run_id = run.run_id.clone();
    run.settle(Settlement::Schedule { at }, now());
    let matter = checked.matter();
    let (done, told) = oneshot::channel();
    let mut story = Story::to_write(Box::new(run), matter, 0, Told::default(), &shared.node, &shared.backbone);
    story.follow = Some(Follow::Schedule(at));
    story.then = Then::Report(done);
    shared.herald.tell(Telling::Story(Box::new(story))).await;
    if told.await.is_ok() {
        return Ok(answer(&run_id, RunState::Scheduled, false));
    }
    // Not ours to tell: there is a run of that id.
    match shared.backbone.read_record(&checked.job.tenant, &run_id).await {
        Ok(Some(found)) => found_before(shared, checked, &found.run).await,
        Ok(None) => Err(ApiError::unavailable("the run's record changes; try again")),
        Err(error) => Err(ApiError::unavailable(chain(&error))),
    }
}
