//! The API over HTTP: every endpoint at `POST /v1/api/<endpoint>` and at the routes of its declaration.
//!
//! Read in this order: this file (routes, and the answer to each), `request` (a request of the API from path, query
//! and body), `body` (bodies within their bounds), `conditions` (`ETag`, and what asks about it), `jobs` (the forms in
//! which jobs are submitted), `rate` (what is left of a tenant's rate limit).
//! It translates names, headers and status codes, and decides nothing about a job: what the NATS API cannot be asked,
//! it cannot be asked either.

pub(super) mod body;
pub(super) mod conditions;
pub(super) mod doctor;
pub(super) mod jobs;
mod rate;
pub(super) mod request;

use std::collections::BTreeMap;
use std::fmt::Display;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, on, post};
use axum::{Router, middleware};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longshore_backbone::service::{Redaction, Request as ApiRequest, TraceContext};
use longshore_backbone::wire::api::{
    self, ApiError, Code, Declaration, ENDPOINTS, Effect, Endpoint as _, HttpRoute, Scope,
};
use longshore_backbone::wire::header::names;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::asker::{Asker, Guard};
use super::problem::{Answered, of_http, problem};
use body::Bodies;
use request::{Query, Target};

/// The media type of answers.
const JSON: &str = "application/json; charset=utf-8";
/// Characters of a reason that are kept.
const REASON_MAX: usize = 256;
/// Longest wait for a run's end, in seconds.
const WAIT_MAX: u64 = 60;

#[derive(Clone)]
pub(super) struct Gateway {
    pub(super) guard: Guard,
    pub(super) bodies: Bodies,
}

/// Every route of the API, those of the `streams` among them.
pub(super) fn router(gateway: Gateway, streams: Router) -> Router {
    let mut router = Router::new()
        .route("/v1/jobs", post(jobs::submit))
        .route("/v1/jobs/{name}", post(jobs::submit_raw).get(run_of_job))
        .route("/v1/api/{endpoint}", post(any_endpoint));
    // Those under `/v1/jobs` are the ones above.
    for declaration in &ENDPOINTS {
        for &HttpRoute(method, path) in declaration.http.iter().filter(|route| !route.1.starts_with("/v1/jobs")) {
            let endpoint = move |State(gateway): State<Gateway>, path: Variables, request| async move {
                gateway.comfortable(declaration, variables(path)?, request).await
            };
            router = router.route(path, on(filter(method), endpoint));
        }
    }
    let with_rate = middleware::from_fn_with_state(gateway.clone(), rate::with_rate);
    let router = router.with_state(gateway).merge(streams);
    router.method_not_allowed_fallback(other_method).route_layer(with_rate)
}

/// The variables of a path, by their names.
pub(super) type Variables = Result<Path<Vec<(String, String)>>, PathRejection>;

pub(super) fn variables(path: Variables) -> Result<Vec<(String, String)>, ApiError> {
    path.map(|Path(path)| path).map_err(|_| ApiError::malformed("the path is not UTF-8"))
}

fn filter(method: api::Method) -> MethodFilter {
    match method {
        api::Method::Get => MethodFilter::GET,
        api::Method::Put => MethodFilter::PUT,
        api::Method::Post => MethodFilter::POST,
        api::Method::Delete => MethodFilter::DELETE,
    }
}

/// `OPTIONS` says which methods there are, as 405 does: axum adds `Allow` to both.
pub(super) async fn other_method(method: Method) -> Response {
    match method {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => problem(of_http(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "Allow lists the methods of this path")),
    }
}

/// `POST /v1/api/<endpoint>`: request and answer as on NATS.
async fn any_endpoint(State(gateway): State<Gateway>, path: Variables, request: Request) -> Answered {
    let name = variables(path)?.into_iter().map(|(_, name)| name).collect::<String>();
    let unknown = || {
        let names = ENDPOINTS.map(|endpoint| endpoint.name).join(", ");
        ApiError::not_found(format!("no endpoint {name:?}; there are {names}"))
    };
    let declaration = Declaration::named(&name).ok_or_else(unknown)?;
    let (mut parts, body) = request.into_parts();
    conditions::unconditional(&parts.headers)?;
    let mut query = Query::read(&parts)?;
    reveal(&mut query, &mut parts)?;
    let body = gateway.bodies.json(&parts.headers, body).await?;
    let body = match declaration.name {
        api::Submit::NAME => jobs::keyed(body.bytes, &parts.headers)?,
        api::SubmitBatch::NAME => jobs::no_key(&parts.headers).map(|()| body.bytes)?,
        _ => body.bytes,
    };
    let target = Target::of(declaration, query, Vec::new(), body)?;
    Ok(shown(StatusCode::OK, gateway.ask(declaration, target, &parts).await?))
}

/// `GET /v1/jobs/<id>` is `GET /v1/runs/<id>`.
async fn run_of_job(State(gateway): State<Gateway>, path: Variables, request: Request) -> Answered {
    let path = variables(path)?.into_iter().map(|(_, run_id)| ("run_id".to_owned(), run_id)).collect();
    gateway.comfortable(&api::RunsGet::DECLARATION, path, request).await
}

/// Who asks. A request that the guard has not seen is nobody's.
pub(super) fn asker(parts: &Parts) -> Result<&Asker, ApiError> {
    parts.extensions.get::<Asker>().ok_or_else(|| ApiError::new(Code::Internal, "the request has not been admitted"))
}

/// Why it is asked: `Longshore-Reason`, in which a browser can only send what is written with `%`.
fn reason(parts: &Parts) -> Option<String> {
    let text = percent_encoding::percent_decode(parts.headers.get(names::REASON)?.as_bytes()).decode_utf8_lossy();
    let line: String = text.chars().filter(|sign| !sign.is_control()).take(REASON_MAX).collect();
    Some(line).filter(|line| !line.is_empty())
}

impl Gateway {
    /// Asks the API within this node, as far as the asker may.
    async fn ask(&self, declaration: &'static Declaration, target: Target, parts: &Parts) -> Result<Vec<u8>, ApiError> {
        let asker = asker(parts)?;
        asker.may_ask(declaration)?;
        // What cannot be read is refused by the endpoint.
        if declaration.name == api::KeysCreate::NAME
            && let Ok(wanted) = api::KeysCreate::read(&target.body)
        {
            asker.may_make(&wanted)?;
        }
        self.ask_in_any_scope(declaration, target, parts).await
    }

    /// The same where another scope has decided.
    async fn ask_in_any_scope(
        &self,
        declaration: &'static Declaration,
        target: Target,
        parts: &Parts,
    ) -> Result<Vec<u8>, ApiError> {
        let asker = asker(parts)?;
        asker.must_be(&target.tenant)?;
        let node = self.guard.node()?;
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let request = ApiRequest {
            tenant: target.tenant,
            endpoint: declaration.name.to_owned(),
            trace: header("traceparent").map(|parent| TraceContext { parent, state: header("tracestate") }),
            by: Some(asker.by()),
            reason: reason(parts),
            from: "http".to_owned(),
            redaction: match declaration.effect {
                // Who gets the job needs its payload.
                Effect::HandsOut => Redaction::Never,
                _ => parts.extensions.get().copied().unwrap_or(Redaction::Hides),
            },
            body: target.body,
        };
        Ok(node.api().ask(request).await?.into_bytes())
    }

    /// The answer at a route of the endpoint's declaration.
    async fn comfortable(
        &self,
        mut declaration: &'static Declaration,
        mut path: Vec<(String, String)>,
        request: Request,
    ) -> Answered {
        let (mut parts, body) = request.into_parts();
        let (mut query, reads) = (Query::read(&parts)?, declaration.effect == Effect::Reads);
        if reads {
            reveal(&mut query, &mut parts)?;
        }
        if declaration.name == api::RunsGet::NAME
            && let Some(seconds) = query.take("wait")
        {
            (declaration, path) = (&api::RunsWait::DECLARATION, with_wait(path, &seconds)?);
        }
        let body = self.bodies.json(&parts.headers, body).await?;
        if !reads && conditions::asks_for_a_schedule(declaration, &parts.headers)? {
            let target = Target::of(declaration, query.clone(), path.clone(), body.bytes.clone())?;
            path.push(("if_updated_at".to_owned(), self.as_it_was(declaration, target, &path, &parts).await?));
        }
        let of_queue = declaration.name == api::QueuesList::NAME && !path.is_empty();
        let target = Target::of(declaration, query, path, body.bytes)?;
        let mut answer = self.ask(declaration, target, &parts).await?;
        if declaration.name == api::RunsPayload::NAME {
            return Ok(payload(&answer)?);
        }
        if of_queue {
            answer = only_queue(&answer)?;
        }
        let next = next_page(declaration, &self.guard.http.base_path, &parts.uri, &answer);
        let has_tag = reads || declaration.name == api::SchedulesPut::NAME;
        let tag = if has_tag { conditions::etag(&answer) } else { None };
        let mut known = false;
        if let Some(tag) = tag.as_ref().filter(|_| reads) {
            conditions::is_asked_for(&parts.headers, tag)?;
            known = conditions::is_known(&parts.headers, tag);
        }
        let mut answer = if known { StatusCode::NOT_MODIFIED.into_response() } else { shown(StatusCode::OK, answer) };
        answer.headers_mut().extend(next.map(|next| (header::LINK, next)));
        answer.headers_mut().extend(tag.map(|tag| (header::ETAG, tag)));
        Ok(answer)
    }

    /// When the schedule that this change is about was changed last, if the client has read it since.
    async fn as_it_was(
        &self,
        declaration: &'static Declaration,
        target: Target,
        path: &[(String, String)],
        parts: &Parts,
    ) -> Result<String, ApiError> {
        asker(parts)?.may_ask(declaration)?;
        let body = serde_json::to_vec(&path.iter().cloned().collect::<BTreeMap<_, _>>());
        let target = Target { tenant: target.tenant, body: body.unwrap_or_default().into() };
        match self.ask_in_any_scope(&api::SchedulesGet::DECLARATION, target, parts).await {
            Ok(schedule) => conditions::updated_at(&parts.headers, &schedule),
            Err(error) if error.code == StatusCode::NOT_FOUND.as_u16() => Err(conditions::changed()),
            Err(error) => Err(error),
        }
    }
}

/// Whether the asker wishes to see what types hide, `reveal=true`, and may.
fn reveal(query: &mut Query, parts: &mut Parts) -> Result<(), ApiError> {
    match query.take("reveal").as_deref() {
        None | Some("false") => Ok(()),
        Some("true") => {
            asker(parts)?.must_have(Scope::Reveal)?;
            parts.extensions.insert(Redaction::Revealed);
            Ok(())
        }
        Some(_) => Err(ApiError::malformed("reveal: is neither true nor false")),
    }
}

pub(super) fn shown(status: StatusCode, answer: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], answer).into_response()
}

fn unreadable(error: impl Display) -> ApiError {
    ApiError::new(Code::Internal, format!("the answer cannot be read: {error}"))
}

/// The fields of `runs.wait` for a wait of so many seconds.
fn with_wait(mut path: Vec<(String, String)>, seconds: &str) -> Result<Vec<(String, String)>, ApiError> {
    let wrong = || ApiError::malformed(format!("wait: is not a number of seconds from 0 to {WAIT_MAX}"));
    let seconds = seconds.parse::<u64>().ok().filter(|seconds| *seconds <= WAIT_MAX).ok_or_else(wrong)?;
    path.push(("timeout_ms".to_owned(), (seconds * 1_000).to_string()));
    Ok(path)
}

/// The one queue of an answer, so that its depth stands at the top.
fn only_queue(answer: &[u8]) -> Result<Vec<u8>, ApiError> {
    #[derive(Deserialize)]
    struct Queues<'a> {
        #[serde(borrow)]
        queues: Vec<&'a RawValue>,
    }
    let queues: Queues<'_> =
        serde_json::from_slice(answer).map_err(|error| ApiError::unavailable(error.to_string()))?;
    let queue = queues.queues.first().ok_or_else(|| ApiError::not_found("queue: is not declared"))?;
    Ok(queue.get().as_bytes().to_vec())
}

/// A payload as it is. It is a stranger's: no browser shows it as a page of this origin.
fn payload(answer: &[u8]) -> Result<Response, ApiError> {
    let api::Payload { content_type, payload_base64, .. } = serde_json::from_slice(answer).map_err(unreadable)?;
    let bytes = STANDARD.decode(payload_base64).map_err(unreadable)?;
    // Handlers get a job that names no type as JSON. Other bytes are application/octet-stream, as axum has it.
    let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok();
    let content_type = content_type.or_else(|| is_json().then(|| JSON.to_owned()));
    let headers = [
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "sandbox"),
    ];
    let mut answer = (headers, bytes).into_response();
    if let Some(Ok(content_type)) = content_type.map(header::HeaderValue::try_from) {
        answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    Ok(answer)
}

/// The link to the next page of a list that has one.
fn next_page(declaration: &Declaration, base: &str, uri: &Uri, answer: &[u8]) -> Option<header::HeaderValue> {
    #[derive(Deserialize)]
    struct NextPage {
        cursor: Option<String>,
    }
    if declaration.effect != Effect::Reads {
        return None;
    }
    let cursor = serde_json::from_slice::<NextPage>(answer).ok()?.cursor?;
    let query = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let is_cursor = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default();
        percent_encoding::percent_decode_str(name).eq("cursor".bytes())
    };
    let kept = query.filter(|pair| !is_cursor(pair)).map(|pair| format!("{pair}&")).collect::<String>();
    let cursor = percent_encoding::utf8_percent_encode(&cursor, percent_encoding::NON_ALPHANUMERIC);
    header::HeaderValue::from_str(&format!("<{base}{}?{kept}cursor={cursor}>; rel=\"next\"", uri.path())).ok()
}
