//! The forms in which jobs are submitted: one as JSON, several as JSON or a line each, or the payload as it is.

use std::collections::BTreeMap;

use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use longshore_backbone::wire::api::{self, ApiError, Endpoint as _, Submitted};
use longshore_domain::RunState;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Duration, Instant, timeout_at};

use super::body::{self, media_type};
use super::conditions::unconditional;
use super::request::{Query, Target, fields_of, raw, value_of};
use super::{Gateway, Variables, WAIT_MAX, asker, shown, unreadable, variables};
use crate::http::problem::{Answered, detail, of_http};

/// How long a line waits for others that come with it.
const GATHERED_FOR: Duration = Duration::from_millis(5);
/// The fields of `submit` that are no parameters of `POST /v1/jobs/<type>`.
pub(in crate::http) const NO_PARAMETERS: [&str; 6] =
    ["type", "payload", "payload_base64", "headers", "debounce", "then"];
/// Headers of this prefix are the job's own.
const OWN: &str = "longshore-header-";

/// `POST /v1/jobs`.
pub(super) async fn submit(State(gateway): State<Gateway>, request: Request) -> Answered {
    if media_type(request.headers()).is_some_and(|given| given == "application/x-ndjson") {
        return lines(gateway, request);
    }
    let (parts, body) = request.into_parts();
    unconditional(&parts.headers)?;
    let query = only_tenant(Query::read(&parts)?)?;
    let body = gateway.bodies.json(&parts.headers, body).await?;
    if names_jobs(&body.bytes) {
        no_key(&parts.headers)?;
        let target = Target::of(&api::SubmitBatch::DECLARATION, query, Vec::new(), body.bytes.clone())?;
        return Ok(shown(StatusCode::OK, gateway.ask(&api::SubmitBatch::DECLARATION, target, &parts).await?));
    }
    gateway.submit_one(query, keyed(body.bytes.clone(), &parts.headers)?, &parts).await
}

/// `POST /v1/jobs/<type>`: the body is the payload, the query has the fields of `submit`.
pub(super) async fn submit_raw(State(gateway): State<Gateway>, path: Variables, request: Request) -> Answered {
    let name = variables(path)?.into_iter().map(|(_, name)| name).collect::<String>();
    let (parts, body) = request.into_parts();
    unconditional(&parts.headers)?;
    let mut query = Query::read(&parts)?;
    let mut fields = BTreeMap::from([("type".to_owned(), raw(&name)?)]);
    for (name, value) in query.take_all_but_tenant() {
        if NO_PARAMETERS.contains(&name.as_str()) {
            return Err(ApiError::malformed(format!("{name}: is no parameter here; POST /v1/jobs takes it")).into());
        }
        let value = match name.as_str() {
            "tags" => raw(&value.split(',').collect::<Vec<_>>())?,
            _ => value_of(&name, &value)?,
        };
        fields.insert(name, value);
    }
    let body = gateway.bodies.read(&parts.headers, body).await?;
    if !body.bytes.is_empty() {
        fields.insert("payload_base64".to_owned(), raw(&STANDARD.encode(&body.bytes))?);
    }
    fields.insert("headers".to_owned(), raw(&own_headers(&parts.headers)?)?);
    let job = serde_json::to_vec(&fields).map_err(|error| ApiError::malformed(error.to_string()))?;
    gateway.submit_one(query, keyed(job.into(), &parts.headers)?, &parts).await
}

/// The headers that go on to the handler: `Longshore-Header-<name>`, and the payload's media type.
fn own_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>, ApiError> {
    let mut own = BTreeMap::<String, String>::new();
    for (name, value) in headers {
        let name = match name.as_str().strip_prefix(OWN) {
            Some("content-type") => return Err(ApiError::malformed("Content-Type: is that of the body; leave it out")),
            Some(name) => name,
            None if name == header::CONTENT_TYPE => "Content-Type",
            None => continue,
        };
        let value = value.to_str().map_err(|_| ApiError::malformed(format!("{name}: is not ASCII")))?;
        // Lines of one name are one list (RFC 9110, 5.3), as any proxy may have written them.
        own.entry(name.to_owned())
            .and_modify(|list| *list = format!("{list}, {value}"))
            .or_insert_with(|| value.to_owned());
    }
    Ok(own)
}

fn only_tenant(query: Query) -> Result<Query, ApiError> {
    if let Some(name) = query.names().find(|name| *name != "tenant") {
        return Err(ApiError::malformed(format!("{name}: is no parameter here; fields of a job stand in the body")));
    }
    Ok(query)
}

fn names_jobs(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        jobs: Option<&'a RawValue>,
    }
    serde_json::from_slice::<Named<'_>>(body).is_ok_and(|body| body.jobs.is_some())
}

/// The key of `Idempotency-Key`, which may stand in quotes.
fn key_of(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let wrong = |why: &str| ApiError::malformed(format!("Idempotency-Key: {why}"));
    if keys.next().is_some() {
        return Err(wrong("comes twice"));
    }
    let key = key.to_str().map_err(|_| wrong("is not ASCII"))?.trim();
    let quoted = key.strip_prefix('"').map(|key| key.strip_suffix('"').ok_or_else(|| wrong("has no closing quote")));
    let key = match quoted.transpose()? {
        // RFC 8941: within quotes a backslash stands before a quote and before itself.
        Some(key) => key.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => key.to_owned(),
    };
    if key.is_empty() { Err(wrong("is empty")) } else { Ok(Some(key)) }
}

/// 400 if a key is named for several jobs. It is not passed over: who repeats them relies on it.
pub(super) fn no_key(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.contains_key("idempotency-key") {
        true => {
            Err(ApiError::malformed("Idempotency-Key: is for one job; each of several has its own idempotency_key"))
        }
        false => Ok(()),
    }
}

/// The job with the key of the header, if there is one.
pub(super) fn keyed(job: Bytes, headers: &HeaderMap) -> Result<Bytes, ApiError> {
    match key_of(headers)? {
        Some(key) => with_key(&job, &key),
        None => Ok(job),
    }
}

fn with_key(job: &[u8], key: &str) -> Result<Bytes, ApiError> {
    let mut fields = fields_of(job)?;
    let key = raw(key)?;
    if let Some(said) = fields.get("idempotency_key")
        && serde_json::from_str::<String>(said.get()).ok() != serde_json::from_str(key.get()).ok()
    {
        return Err(ApiError::malformed("idempotency_key: is another than that of the header Idempotency-Key"));
    }
    fields.insert("idempotency_key".to_owned(), key);
    serde_json::to_vec(&fields).map(Bytes::from).map_err(|error| ApiError::malformed(error.to_string()))
}

/// Which answer a client prefers (RFC 7240): the run as it is after so many seconds, or once it has ended; or at once.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prefer {
    wait: Option<u64>,
    respond_async: bool,
}

impl Prefer {
    /// Of a preference that comes twice the first counts; what cannot be read is passed over.
    fn of(headers: &HeaderMap) -> Self {
        let mut prefer = Self::default();
        let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
        let parts = values.flat_map(|value| {
            let mut is_quoted = false;
            value.split(move |sign| {
                is_quoted ^= sign == '"';
                sign == ',' && !is_quoted
            })
        });
        for one in parts {
            let one = one.split(';').next().unwrap_or_default();
            let (name, value) = one.split_once('=').unwrap_or((one, ""));
            match name.trim().to_ascii_lowercase().as_str() {
                "wait" if prefer.wait.is_none() => {
                    prefer.wait = value.trim().trim_matches('"').parse().ok().map(|seconds: u64| seconds.min(WAIT_MAX));
                }
                "respond-async" => prefer.respond_async = true,
                _ => {}
            }
        }
        prefer
    }

    /// What of it an answer of this status keeps to.
    fn applied(&self, status: StatusCode) -> Option<HeaderValue> {
        let at_once = (self.respond_async && status == StatusCode::ACCEPTED).then(|| "respond-async".to_owned());
        let applied: Vec<String> = at_once.into_iter().chain(self.wait.map(|wait| format!("wait={wait}"))).collect();
        HeaderValue::from_str(&applied.join(", ")).ok().filter(|applied| !applied.is_empty())
    }
}

impl Gateway {
    async fn submit_one(&self, query: Query, job: Bytes, parts: &Parts) -> Answered {
        let target = Target::of(&api::Submit::DECLARATION, query, Vec::new(), job)?;
        let tenant = target.tenant.clone();
        let answer = self.ask(&api::Submit::DECLARATION, target, parts).await?;
        let submitted: Submitted = serde_json::from_slice(&answer).map_err(unreadable)?;
        let run_id = submitted.run_id.as_str();
        let status = if submitted.deduplicated { StatusCode::OK } else { StatusCode::CREATED };
        let prefer = Prefer::of(&parts.headers);
        let waited = match prefer {
            Prefer { wait: None, respond_async: false } => None,
            // The job is taken, whether its end can be waited for or not: after an error it would be submitted again.
            Prefer { wait, .. } => self.waited(&tenant, run_id, wait.unwrap_or(0), parts).await.ok(),
        };
        let applied = waited.as_ref().and_then(|run| prefer.applied(run.status()));
        let mut answer = waited.unwrap_or_else(|| shown(status, answer));
        answer.headers_mut().extend(applied.map(|applied| (HeaderName::from_static("preference-applied"), applied)));
        let place = format!("{}/v1/runs/{run_id}", self.guard.http.base_path);
        let place = if tenant == "default" { place } else { format!("{place}?tenant={tenant}") };
        answer.headers_mut().extend(HeaderValue::from_str(&place).ok().map(|place| (header::LOCATION, place)));
        Ok(answer)
    }

    /// The run after so many seconds: 200 once it has ended, else 202. Who submits may see that.
    async fn waited(&self, tenant: &str, run_id: &str, seconds: u64, parts: &Parts) -> Result<Response, ApiError> {
        #[derive(Deserialize)]
        struct WaitedRun {
            state: RunState,
        }
        let body = serde_json::json!({"run_id": run_id, "timeout_ms": seconds * 1_000}).to_string();
        let target = Target { tenant: tenant.to_owned(), body: body.into() };
        let run = self.ask_in_any_scope(&api::RunsWait::DECLARATION, target, parts).await?;
        let has_ended = serde_json::from_slice::<WaitedRun>(&run).is_ok_and(|run| run.state.is_terminal());
        let status = if has_ended { StatusCode::OK } else { StatusCode::ACCEPTED };
        Ok(shown(status, run))
    }
}

/// Jobs, one a line, submitted as they come and answered in their order, a line each.
fn lines(gateway: Gateway, request: Request) -> Answered {
    let (parts, body) = request.into_parts();
    unconditional(&parts.headers)?;
    no_key(&parts.headers)?;
    body::as_it_is(&parts.headers)?;
    let query = only_tenant(Query::read(&parts)?)?;
    let tenant = Target::of(&api::Submit::DECLARATION, query, Vec::new(), Bytes::new())?.tenant;
    let asker = asker(&parts)?;
    asker.may_ask(&api::SubmitBatch::DECLARATION)?;
    asker.must_be(&tenant)?;
    // A client that does not read its answers is not read for either.
    let (answers, answered) = mpsc::channel(2);
    let most = gateway.guard.node()?.api().most_in_batch();
    let room = gateway.bodies.room()?;
    let slices = Slices { gateway, tenant, parts, most, answers };
    tokio::spawn(slices.run(body, room));
    let answered = futures_util::stream::unfold(answered, |mut answered| async move {
        answered.recv().await.map(|slice: Bytes| (Ok::<_, std::convert::Infallible>(slice), answered))
    });
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(answered)).into_response())
}

struct Slices {
    gateway: Gateway,
    tenant: String,
    parts: Parts,
    /// Lines that are submitted together.
    most: usize,
    answers: mpsc::Sender<Bytes>,
}

impl Slices {
    async fn run(self, body: Body, mut room: OwnedSemaphorePermit) {
        // Of the rest, so many bytes have no end of a line.
        let (mut pieces, mut rest, mut looked_at) = (body.into_data_stream(), BytesMut::new(), 0);
        let (mut ended, mut is_too_long) = (false, false);
        while !ended {
            let (mut slice, mut refused) = (Vec::new(), None);
            let mut bytes = 0;
            let mut until: Option<Instant> = None;
            while slice.len() < self.most && bytes < self.gateway.bodies.max && refused.is_none() {
                if let Some(end) = rest[looked_at..].iter().position(|byte| *byte == b'\n') {
                    let line = rest.split_to(looked_at + end + 1).freeze();
                    looked_at = 0;
                    bytes += line.len();
                    if is_too_long || line.len() > self.gateway.bodies.max {
                        (is_too_long, refused) = (false, Some(too_long()));
                    } else if !line.trim_ascii().is_empty() {
                        slice.push(line);
                        until.get_or_insert_with(|| Instant::now() + GATHERED_FOR);
                    }
                    continue;
                }
                if rest.len() > self.gateway.bodies.max {
                    // It is passed over, and answered at its end.
                    is_too_long = true;
                    rest.clear();
                }
                looked_at = rest.len();
                let next = self.next(&mut pieces);
                let piece = match until {
                    Some(until) => match timeout_at(until, next).await {
                        Ok(piece) => piece,
                        Err(_) => break,
                    },
                    None => next.await,
                };
                match piece {
                    Some(Ok(piece)) => match self.gateway.bodies.fit(&mut room, bytes + rest.len() + piece.len()) {
                        Ok(()) => {
                            rest.extend_from_slice(&piece);
                            continue;
                        }
                        Err(full) => refused = Some(full),
                    },
                    // What came whole is submitted; the rest is not.
                    Some(Err(error)) => refused = Some(error),
                    None if is_too_long => refused = Some(too_long()),
                    // The last line may lack its end.
                    None if !rest.trim_ascii().is_empty() => slice.push(rest.split().freeze()),
                    None => {}
                }
                ended = true;
                break;
            }
            let is_read = self.submit(slice).await && self.say(refused.iter().map(line_of).collect()).await;
            if !is_read || self.gateway.bodies.fit(&mut room, rest.len()).is_err() {
                return;
            }
        }
    }

    /// The next piece of the body, until the node ends.
    async fn next(&self, pieces: &mut BodyDataStream) -> Option<Result<Bytes, ApiError>> {
        let ends = &self.gateway.guard.ends;
        let ended = || Some(Err(ApiError::unavailable("the node ends, and reads no more; send the rest to another")));
        ends.run_until_cancelled(body::next(pieces)).await.unwrap_or_else(ended)
    }

    /// Submits lines; `false`: nobody reads the answers any more.
    async fn submit(&self, lines: Vec<Bytes>) -> bool {
        if lines.is_empty() {
            return true;
        }
        let not_json = |error: serde_json::Error| ApiError::malformed(format!("the line is not JSON: {error}"));
        let json = lines.iter().map(|line| serde_json::from_slice::<&RawValue>(line).map_err(not_json));
        let read: Vec<Result<&RawValue, ApiError>> = json.collect();
        let jobs: Vec<&RawValue> = read.iter().filter_map(|line| line.as_ref().ok().copied()).collect();
        let asked = if jobs.is_empty() { Ok(Vec::new()) } else { self.ask(jobs).await };
        let mut asked = asked.map(Vec::into_iter);
        let said = read.iter().map(|line| match (line, &mut asked) {
            (Err(error), _) => line_of(error),
            (_, Err(error)) => line_of(error),
            (_, Ok(answers)) => answers.next().map_or_else(String::new, |answer| answer.get().to_owned()),
        });
        self.say(said.collect()).await
    }

    /// Asks, if the asker's key still counts: lines may come for days.
    async fn ask(&self, jobs: Vec<&RawValue>) -> Result<Vec<Box<RawValue>>, ApiError> {
        #[derive(Deserialize)]
        struct Answers {
            jobs: Vec<Box<RawValue>>,
        }
        asker(&self.parts)?.must_still_be().await?;
        let body = serde_json::to_vec(&BTreeMap::from([("jobs", jobs)])).unwrap_or_default();
        let target = Target { tenant: self.tenant.clone(), body: body.into() };
        let answer = self.gateway.ask(&api::SubmitBatch::DECLARATION, target, &self.parts).await?;
        serde_json::from_slice(&answer).map(|Answers { jobs }| jobs).map_err(unreadable)
    }

    async fn say(&self, lines: Vec<String>) -> bool {
        if lines.is_empty() {
            return true;
        }
        let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        self.answers.send(text.into()).await.is_ok()
    }
}

fn too_long() -> ApiError {
    of_http(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the line is longer than http.max_body")
}

fn line_of(error: &ApiError) -> String {
    let said = ApiError { message: detail(error).to_owned(), ..error.clone() };
    serde_json::to_string(&said).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_key_is_read_quoted_or_bare() {
        let key = |value: &str| key_of(&headers("idempotency-key", value));
        assert_eq!(key("order-1").unwrap().unwrap(), "order-1");
        assert_eq!(key(r#""a \"b\" \\""#).unwrap().unwrap(), r#"a "b" \"#);
        for wrong in ["", "\"\"", "\"a"] {
            assert!(key(wrong).unwrap_err().message.starts_with("Idempotency-Key: "), "{wrong}");
        }
        assert!(with_key(br#"{"type":"a","idempotency_key":"x"}"#, "y").is_err());
        assert_eq!(
            with_key(br#"{"type":"a","payload":1.0}"#, "y").unwrap(),
            &br#"{"idempotency_key":"y","payload":1.0,"type":"a"}"#[..]
        );
    }

    #[test]
    fn a_preference_is_bounded() {
        for (value, wait, respond_async, applied) in [
            ("wait=5", Some(5), false, "wait=5"),
            ("respond-async, wait=2", Some(2), true, "respond-async, wait=2"),
            ("Wait = 3; a=b, wait=4, RESPOND-ASYNC", Some(3), true, "respond-async, wait=3"),
            ("wait=\"900\"", Some(60), false, "wait=60"),
            ("respond-async", None, true, "respond-async"),
            ("handling=lenient; wait=7", None, false, ""),
            ("wait=-1", None, false, ""),
            ("x=\"a,wait=0\", wait=2", Some(2), false, "wait=2"),
        ] {
            let prefer = Prefer::of(&headers("prefer", value));
            assert_eq!(prefer, Prefer { wait, respond_async }, "{value}");
            let said = prefer.applied(StatusCode::ACCEPTED);
            assert_eq!(said.as_ref().map_or("", |said| said.to_str().unwrap()), applied, "{value}");
        }
        let both = Prefer::of(&headers("prefer", "respond-async, wait=2"));
        assert_eq!(both.applied(StatusCode::OK).unwrap(), "wait=2", "the run has ended: it is answered as it is");
    }
}
