//! Each request as a whole: its id, its line in the log, and how requests are counted.
//!
//! A client may name a request by `X-Request-Id`; else it gets a name here. The answer, the body of a problem and the
//! log's lines about the request have it. No path or text of a client becomes a label or is unbounded in the log.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use longshore_actors::Observer;
use longshore_actors::trace::RequestSpan;
use longshore_backbone::service::TraceContext;
use longshore_domain::RunId;
use uuid::Uuid;

use super::asker::Asker;
use super::{Node, said};

const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id of a client's own, in bytes; any other gets a new one.
const LONGEST: usize = 64;
/// What stands for the route of paths that none has.
const NO_ROUTE: &str = "none";

/// Names, answers, counts and logs a request. A stream is answered as it begins.
pub(super) async fn observe(State(node): State<Node>, mut request: Request, next: Next) -> Response {
    let (begun, method) = (Instant::now(), word(request.method()));
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
    let id = of(request.headers()).unwrap_or_else(|| Uuid::now_v7().to_string());
    let span = node.get().and_then(|node| span(node, &mut request));
    let (trace_id, run_id) = (span.as_ref().map(RequestSpan::trace_id), run_of(method, route, request.uri().path()));
    let said = said::Said { request_id: Some(id.clone()), trace_id, run_id };
    let mut answer = said::SAID.scope(said, next.run(request)).await;
    let (status, took) = (answer.status().as_u16(), begun.elapsed());
    if let Some(node) = node.get() {
        node.count_request(route, method, status, took);
    }
    if let Some(span) = span {
        span.end(method, route, status);
    }
    let who = answer.extensions().get::<Asker>().map(Asker::by).unwrap_or_default();
    let ms = took.as_secs_f64() * 1_000.0;
    tracing::debug!(target: "longshore::http", method, route, status, ms, who, request = id, "answered");
    if let Ok(id) = HeaderValue::from_str(&id) {
        answer.headers_mut().insert(NAME, id);
    }
    answer
}

/// The run that a path names where its route has one.
fn run_of(method: &str, route: &str, path: &str) -> Option<RunId> {
    // What is a run's id to `GET /v1/jobs/<id>` is a type to `POST`.
    let is_run = |part: &str| part == "{run_id}" || (part == "{name}" && method != "POST");
    let at = route.split('/').position(is_run)?;
    RunId::parse(path.split('/').nth(at)?).ok()
}

/// The span of a request that changes something, or that is part of a client's trace: what it leads to hangs below it.
/// One that a page repeats every few seconds would be a trace each.
fn span(node: &Observer, request: &mut Request) -> Option<RequestSpan> {
    let header = |name| request.headers().get(name)?.to_str().ok().map(str::to_owned);
    let outer = header("traceparent").map(|parent| TraceContext { parent, state: header("tracestate") });
    if request.method().is_safe() && outer.is_none() {
        return None;
    }
    let span = node.request_span(outer.as_ref())?;
    let parent = HeaderValue::try_from(span.traceparent()).ok()?;
    request.headers_mut().insert("traceparent", parent);
    Some(span)
}

/// The id that a client gives, if it can stand anywhere.
fn of(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(NAME)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    ((1..=LONGEST).contains(&id.len()) && id.bytes().all(plain)).then(|| id.to_owned())
}

/// A method as a label.
fn word(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"];
    known.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_short_plain_id_is_taken_from_a_client() {
        let read = |text: &str| of(&HeaderMap::from_iter([(NAME, HeaderValue::from_bytes(text.as_bytes()).unwrap())]));
        assert_eq!(read("01J.a-b_c:7").as_deref(), Some("01J.a-b_c:7"));
        for wrong in ["", "a b", "a\"b", "{}", "\u{e9}", &"a".repeat(65)] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
