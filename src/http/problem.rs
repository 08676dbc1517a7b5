//! Errors as HTTP has them: `application/problem+json` (RFC 9457), from the API's errors.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use longshore_backbone::wire::api::{ApiError, Code};
use longshore_domain::RunId;
use serde_json::json;

use super::said::{Said, said};

pub(super) type Answered = Result<Response, Problem>;

/// An error as a route's answer.
pub(super) struct Problem(ApiError);

impl<E: Into<ApiError>> From<E> for Problem {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        problem(self.0)
    }
}

/// An error that only HTTP has, such as 405 or 415.
pub(super) fn of_http(status: StatusCode, word: &str, message: impl Into<String>) -> ApiError {
    ApiError { code: status.as_u16(), error: word.to_owned(), ..ApiError::new(Code::Malformed, message) }
}

/// The answer that says what went wrong.
pub(super) fn problem(error: ApiError) -> Response {
    let code = if error.error == Code::IdempotencyMismatch.as_str() { 422 } else { error.code };
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let Said { request_id, trace_id, run_id } = said();
    tracing::debug!(
        target: "longshore::http",
        request = request_id,
        status = status.as_u16(),
        "refused: {}",
        error.message
    );
    let field = if status == StatusCode::BAD_REQUEST { field(&error.message) } else { None };
    let mut body = json!({
        "type": format!("urn:longshore:error:{}", error.error),
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "code": error.error,
        "detail": detail(&error),
        "request_id": request_id,
        "run_id": run_id.as_ref().map(RunId::as_str),
        "trace_id": trace_id,
        "errors": field.map(|(pointer, detail)| [json!({"pointer": pointer, "detail": detail})]),
        "retry_after_ms": error.retry_after_ms,
        "hint": error.hint,
    });
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let headers =
        [(header::CONTENT_TYPE, "application/problem+json; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    let mut answer = (status, headers, body.to_string()).into_response();
    if [429, 503].contains(&status.as_u16()) {
        let seconds = error.retry_after_ms.unwrap_or(1_000).div_ceil(1_000);
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    if status == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

/// What a client reads of an error: what NATS said, with its subjects, is for the log alone.
pub(super) fn detail(error: &ApiError) -> &str {
    if error.is_of_nats { "NATS does not answer, or refuses; the node's log says more" } else { &error.message }
}

/// The field that the message begins with, as a JSON pointer (RFC 6901), and the rest: `set.tags: …` is about
/// `/set/tags`.
fn field(message: &str) -> Option<(String, &str)> {
    // A name that the client made up may have any sign.
    if let Some(at) = message.find(": unknown field `") {
        let (path, detail) = (&message[..at], &message[at + 2..]);
        let name = detail.split('`').nth(1)?;
        return Some((pointer(path.strip_suffix(name)?) + &token(name), detail));
    }
    if let Some(at) = message.find(": is not a field of ") {
        return Some((token(&message[..at]), &message[at + 2..]));
    }
    const NO_HEADER: &str = "is not a valid header name";
    let header = message.strip_suffix(NO_HEADER).and_then(|path| path.strip_suffix(": ")?.split_once("headers."));
    if let Some((within, name)) = header {
        return Some((pointer(within) + "/headers" + &token(name), NO_HEADER));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '[' | ']');
    let (path, rest) = message.split_at(message.find(|c| !plain(c))?);
    // What is no name is said after it: `queue "a b" has a blank`. A place in a payload is a pointer: `payload /n: …`.
    let (within, detail) = match rest.strip_prefix(": ") {
        Some(detail) => ("", detail),
        None => match rest.strip_prefix(' ')? {
            rest if rest.starts_with('"') => ("", rest),
            rest if rest.starts_with('/') => rest.split_once(": ")?,
            _ => return None,
        },
    };
    (!path.is_empty()).then(|| (pointer(path) + within, detail))
}

/// The pointer of a path such as `jobs[3].type`.
fn pointer(path: &str) -> String {
    path.split(['.', '[']).filter(|part| !part.is_empty()).map(|part| token(part.trim_end_matches(']'))).collect()
}

fn token(name: &str) -> String {
    format!("/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use longshore_backbone::Error;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_message_that_names_a_field_has_its_pointer() {
        for (message, pointer) in [
            ("set.headers.a: is no text", Some("/set/headers/a")),
            ("jobs[3].type: is missing", Some("/jobs/3/type")),
            ("headers.a b: is not a valid header name", Some("/headers/a b")),
            ("jobs[3].headers.: is not a valid header name", Some("/jobs/3/headers/")),
            ("limit: is above 500", Some("/limit")),
            ("then.type \"a b\" has a blank at byte 1", Some("/then/type")),
            ("payload /items/0/a~1b: is no number", Some("/payload/items/0/a~1b")),
            ("jobs[3].payload /n: is no number", Some("/jobs/3/payload/n")),
            ("a.b: unknown field `a.b`, expected one of `type`", Some("/a.b")),
            ("set.a/b: unknown field `a/b`, expected `queue`", Some("/set/a~1b")),
            ("\u{e9} ~: unknown field `\u{e9} ~`, there are no fields", Some("/\u{e9} ~0")),
            (": unknown field ``, expected one of `type`", Some("/")),
            ("a b: is not a field of this endpoint; there are run_id", Some("/a b")),
            ("type 7 is no type", None),
            ("the request is not JSON: EOF", None),
            ("nothing is wrong", None),
        ] {
            assert_eq!(field(message).map(|(pointer, _)| pointer).as_deref(), pointer, "{message}");
        }
    }

    #[tokio::test]
    async fn what_nats_said_is_not_for_clients() {
        let error = Error::Read { subject: "$KV.longshore_keys.a".to_owned(), source: "no".into() };
        let error = ApiError::from(error);
        assert!(error.message.contains("$KV"), "{error}");
        let body = axum::body::to_bytes(problem(error).into_body(), 1_024).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert!(body["status"] == 503 && body["detail"].as_str().unwrap().starts_with("NATS does not"), "{body}");
    }

    #[test]
    fn a_key_of_another_job_is_422_and_what_passes_says_when_to_come_again() {
        assert_eq!(problem(ApiError::new(Code::IdempotencyMismatch, "x")).status(), 422);
        let limited = ApiError { retry_after_ms: Some(1_001), ..ApiError::new(Code::RateLimited, "x") };
        assert_eq!(problem(limited).headers()[header::RETRY_AFTER], "2");
    }
}
