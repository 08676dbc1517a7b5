//! Pages of other origins that may ask: those of `http.cors_origins`, by the CORS protocol (WHATWG Fetch).
//!
//! They bring a key, or ask as `http.auth` says; a session's cookie is never sent by them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

/// Headers of an answer that a page may read, beside those that it always may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "ETag, Link, Location, Preference-Applied, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id",
);
/// Seconds for which a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The origin of a request that is one of `allowed`.
pub(super) fn allowed<'a>(allowed: &[String], headers: &'a HeaderMap) -> Option<&'a HeaderValue> {
    headers.get(header::ORIGIN).filter(|origin| allowed.iter().any(|one| one.as_bytes() == origin.as_bytes()))
}

/// The method and the headers of the request that a browser asks about.
fn question(request: &Request) -> Option<(HeaderValue, Option<HeaderValue>)> {
    let asked = |name| request.headers().get(name).cloned();
    let method = asked(header::ACCESS_CONTROL_REQUEST_METHOD).filter(|_| request.method() == Method::OPTIONS)?;
    Some((method, asked(header::ACCESS_CONTROL_REQUEST_HEADERS)))
}

/// Answers a browser's question about a request to come, and says of every answer who may read it.
pub(super) async fn answer(State(origins): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let Some(origin) = allowed(&origins, request.headers()).cloned() else { return next.run(request).await };
    let mut answer = match question(&request) {
        Some((method, headers)) => {
            let mut answer = StatusCode::NO_CONTENT.into_response();
            answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_METHODS, method);
            answer.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
            answer.headers_mut().extend(headers.map(|headers| (header::ACCESS_CONTROL_ALLOW_HEADERS, headers)));
            answer
        }
        None => next.run(request).await,
    };
    answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.headers_mut().insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    answer.headers_mut().append(header::VARY, HeaderValue::from_static("Origin"));
    answer
}
