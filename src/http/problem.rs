//! Errors as HTTP has them: `application/problem+json` (RFC 9457), from the API's errors.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use longshore_backbone::wire::api::ApiError;
use serde_json::json;

/// The answer that says what went wrong.
pub(super) fn problem(error: ApiError) -> Response {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut body = json!({
        "type": format!("urn:longshore:error:{}", error.error),
        "title": status.canonical_reason().unwrap_or_default(),
        "status": error.code,
        "code": error.error,
        "detail": error.message,
    });
    if let Some(millis) = error.retry_after_ms {
        body["retry_after_ms"] = millis.into();
    }
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::CACHE_CONTROL, "no-store")];
    let mut answer = (status, headers, body.to_string()).into_response();
    if [429, 503].contains(&error.code) {
        let seconds = error.retry_after_ms.unwrap_or(1_000).div_ceil(1_000);
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}
