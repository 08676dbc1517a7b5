//! Chains: the job that follows a run once that has completed.
//!
//! The run's record says that one follows, and its job's header `Longshore-Then` which. So any node that carries the
//! record out makes the same of it: a run of a derived id, whose record is made once, and whose job is published under
//! the seal of that record. A repeat finds the record, and publishes the job again only while that may be missing.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::api::{ApiError, SubmitRequest};
use longshore_backbone::wire::header::{self, names, then};
use longshore_backbone::{Error, Headers};
use longshore_domain::admission::{self, Refusal};
use longshore_domain::outcome::Outcome;
use longshore_domain::policy::Policies;
use longshore_domain::protocol::Repeat;
use longshore_domain::run::RunResult;
use longshore_domain::{ErrorKind, Job, Run, Tenant};

use crate::commit::{NextJob, PublishedJob};
use crate::ports::{RunPorts, Server};
use crate::request;
use crate::runtime::fail_point;
use crate::runtime::log_run::{About, log_run};
use crate::trace;

/// At most so many jobs follow one another.
pub(crate) const LINKS_MAX: usize = 16;
/// How long it waits before it looks again at a record that comes and goes.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
/// Headers by which a run belongs to the trace of the one before.
const OF_TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// Whether the jobs that are to follow can be submitted, as far as this is known before there is a result. An error
/// names the field, from `then` on.
pub(crate) fn check(policies: &Policies, tenant: &Tenant, first: &SubmitRequest) -> Result<(), ApiError> {
    for (number, (field, job)) in links(Some(first)).enumerate() {
        if number == LINKS_MAX {
            let message = format!("{field}: is one too many; at most {LINKS_MAX} follow one another");
            return Err(ApiError::malformed(message));
        }
        check_following(policies, tenant, job).map_err(|error| error.within(&field))?;
    }
    Ok(())
}

/// The jobs that follow one another, each with its field, from `then` on.
pub(crate) fn links(first: Option<&SubmitRequest>) -> impl Iterator<Item = (String, &SubmitRequest)> {
    let first = first.map(|job| ("then".to_owned(), job));
    std::iter::successors(first, |(field, job)| Some((format!("{field}.then"), job.then.as_deref()?)))
}

/// The same of the header of a job that was published bare. An error names header and field.
pub(crate) fn check_header(policies: &Policies, tenant: &Tenant, value: &str) -> Result<(), String> {
    let checked = then::job(value).and_then(|job| check(policies, tenant, &job).map_err(|error| error.message));
    checked.map_err(|error| format!("header {}: {error}", then::NAME))
}

/// Why a job that was published bare is not taken, if a queue of its chain is not declared.
pub(crate) async fn undeclared<P: RunPorts>(ports: &P, job: &Job) -> Result<Option<String>, Error> {
    let then = job.options.as_ref().and_then(|options| options.then.as_ref());
    let first = then.and_then(|then| then::job(&then.job).ok());
    for (field, job) in links(first.as_ref()) {
        if let Ok((queue, ..)) = request::names(job)
            && !ports.declares(&queue).await?
        {
            let queue = queue.as_str();
            return Ok(Some(format!("header {}: {field}.queue: {queue:?} is not declared by any node", then::NAME)));
        }
    }
    Ok(None)
}

/// Whether a job may follow others, as far as this is known before it has a payload. An error names the field.
pub(crate) fn check_following(policies: &Policies, tenant: &Tenant, job: &SubmitRequest) -> Result<(), ApiError> {
    let not_there = [
        ("run_id", job.run_id.is_some()),
        ("idempotency_key", job.idempotency_key.is_some()),
        ("idempotency_window_ms", job.idempotency_window_ms.is_some()),
        ("unique", job.unique.is_some()),
        ("on_conflict", job.on_conflict.is_some()),
        ("debounce", job.debounce.is_some()),
        ("batch_id", job.batch_id.is_some()),
    ];
    if let Some((field, _)) = not_there.into_iter().find(|(_, is_set)| *is_set) {
        return Err(ApiError::malformed(format!("{field}: is not for a job that follows others")));
    }
    let (_, _, job_type) = request::names(job)?;
    request::known_preset(policies, job)?;
    let options = request::options(job, true)?;
    request::headers(job, &options)?;
    let payload = request::payload(job)?;
    match admission::admit(policies, tenant, &job_type, request::version(job)?, &payload) {
        // Its payload is the result, which is not known yet.
        Err(Refusal::Payload { .. } | Refusal::Schema(_)) if !has_payload(job) => Ok(()),
        admitted => admitted.map_err(|refusal| request::refused(&refusal)),
    }
}

fn has_payload(job: &SubmitRequest) -> bool {
    job.payload.is_some() || job.payload_base64.is_some()
}

/// The outcome of an attempt: a failure, if the job that is to follow could not have this result as its payload.
pub(crate) fn judge(policies: &Policies, job: &Job, outcome: Outcome) -> Outcome {
    let Some(then) = job.options.as_ref().and_then(|options| options.then.as_ref()) else { return outcome };
    let Outcome::Completed(result) = &outcome else { return outcome };
    let refused = match (then::job(&then.job), payload_of(result)) {
        (Ok(next), _) if has_payload(&next) => return outcome,
        (Err(reason), _) => reason,
        (Ok(_), Err(reason)) => reason,
        (Ok(next), Ok((payload, _))) => {
            let version = next.schema_version.as_deref();
            match admission::admit(policies, &job.tenant, &then.job_type, version, &payload) {
                Ok(()) => return outcome,
                Err(refusal) => refusal.to_string(),
            }
        }
    };
    let message = format!("the result is not taken as the payload of {}, which follows: {refused}", then.job_type);
    Outcome::failed(ErrorKind::Permanent, message)
}

/// A result as a payload, and its content type if that is not JSON.
fn payload_of(result: &RunResult) -> Result<(Bytes, Option<&str>), String> {
    match result {
        RunResult::None => Ok((Bytes::new(), None)),
        RunResult::Json(json) => Ok((Bytes::copy_from_slice(json.get().as_bytes()), None)),
        RunResult::Other { base64, content_type } => {
            let bytes = STANDARD.decode(base64).map_err(|error| error.to_string())?;
            Ok((bytes.into(), content_type.as_deref()))
        }
        RunResult::TooLarge { bytes, .. } => Err(format!("it has {bytes} bytes, and is not kept")),
    }
}

pub(crate) fn next<P: RunPorts>(ports: &P, run: &Run, payload: &PublishedJob) -> Option<Box<NextJob>> {
    run.child()?;
    let made = made(ports, run, payload.headers.as_deref());
    made.inspect_err(|reason| log_run!(warn, About::run(run), "no job follows this run: {reason}")).ok().map(Box::new)
}

fn made<P: RunPorts>(ports: &P, before: &Run, published: Option<&Headers>) -> Result<NextJob, String> {
    let text = published.and_then(|headers| header::value_of(headers, then::NAME));
    let job = then::job(text.ok_or("its job does not say which")?)?;
    let words = |error: ApiError| error.message;
    let (queue, priority, job_type) = request::names(&job).map_err(words)?;
    let options = request::options(&job, true).map_err(words)?;
    let mut headers = request::headers(&job, &options).map_err(words)?;
    let payload = if has_payload(&job) {
        request::payload(&job).map_err(words)?
    } else {
        let (payload, content_type) = payload_of(before.state.result().unwrap_or(&RunResult::None))?;
        if let Some(content_type) = content_type.filter(|_| !header::has(&headers, names::CONTENT_TYPE)) {
            headers.insert(names::CONTENT_TYPE, content_type);
        }
        payload
    };
    for name in OF_TRACE.into_iter().filter(|name| !header::has(&headers, name)).collect::<Vec<_>>() {
        if let Some(value) = published.and_then(|headers| header::value_of(headers, name)) {
            headers.insert(name, value);
        }
    }
    let (tenant, run_id, options) = (before.tenant.clone(), before.run_id.then(), Some(Box::new(options)));
    let job = Job { tenant, queue, priority, job_type, run_id, options };
    let mut run = ports.policies().new_run(&job, &payload, ports.now());
    run.parent = Some(before.run_id.clone());
    run.seal = ports.seal();
    run.trace_id = trace::context::id_in(Some(&headers));
    ports.sign(&mut run);
    headers.insert(names::RUN_ID, run.run_id.as_str());
    // The record of an earlier run went two leases after its end at the soonest; this one is made at this run's end.
    let since = before.state.ended_at().unwrap_or(before.origin).minus(ports.lease());
    Ok(NextJob { run, headers, payload, mark: ports.token(), since })
}

/// Makes the record of the run that follows, publishes its job, and marks the record as published.
pub(crate) async fn publish<S: Server>(server: &S, next: &NextJob) -> Result<(), Error> {
    fail_point::pass("before-then");
    let Some(Found { mut run, revision }) = recorded(server, next).await? else { return Ok(()) };
    fail_point::pass("after-then-record");
    let mut headers = next.headers.clone();
    headers.insert(names::SEAL, run.seal.as_str());
    if !server.publish_next(&run, headers, next.payload.clone()).await? {
        // Not marked as published, its record goes away by itself.
        return Ok(());
    }
    fail_point::pass("after-then");
    run.published = true;
    run.token = next.mark.clone();
    // If another write was first, a node has taken the job up.
    server.write_record(&run, revision).await.map(drop)
}

/// The record of the run that follows, as long as its job may not have been published.
async fn recorded<S: Server>(server: &S, next: &NextJob) -> Result<Option<Found>, Error> {
    let followed_another = |found: &Run| found.parent == next.run.parent && found.origin < next.since;
    let mut expected = 0;
    loop {
        match server.write_record(&next.run, expected).await {
            Ok(Written::Won(revision)) => return Ok(Some(Found { run: next.run.clone(), revision })),
            Ok(Written::Lost(Some(found))) if followed_another(&found.run) && found.run.state.is_terminal() => {
                expected = found.revision;
            }
            Ok(Written::Lost(Some(found))) if found.run.parent != next.run.parent || followed_another(&found.run) => {
                log_run!(warn, About::run(&next.run), "its chain ends before it: another run has its id");
                return Ok(None);
            }
            Ok(Written::Lost(Some(found))) => {
                let is_open = server.on_repeat(&found.run) == Repeat::Publish;
                return Ok(is_open.then_some(*found));
            }
            Ok(Written::Lost(None)) => {
                expected = 0;
                server.pause(AGAIN_AFTER).await;
            }
            Err(error) if error.unreadable_at().is_some() => {
                log_run!(warn, About::run(&next.run), "its chain ends before it: {}", error.with_causes());
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
}
