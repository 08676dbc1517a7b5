//! Handlers for trials: `noop` succeeds, `echo` returns the payload, `sleep` waits, `fail` fails as its payload says.
//!
//! A payload that cannot be read is a permanent failure that names the field: another attempt would read the same
//! bytes.

use std::time::Duration;

use longshore_actors::{Context, HandlerError, Handlers, Success};
use serde_json::{Map, Value};

pub(crate) fn add(handlers: Handlers) -> Handlers {
    let handlers = handlers.with_everywhere("noop", noop).with_everywhere("echo", echo);
    handlers.with_everywhere("sleep", sleep).with_everywhere("fail", fail)
}

async fn noop(_: Context) -> Result<(), HandlerError> {
    Ok(())
}

async fn echo(context: Context) -> Result<Success, HandlerError> {
    let header = context.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let content_type = header.map(|(_, content_type)| content_type.clone());
    Ok(Success::Done { result: context.payload.clone(), content_type })
}

/// `{"ms":100}`. Ends early when the run is cancelled, its time over or its lease lost.
async fn sleep(context: Context) -> Result<(), HandlerError> {
    let fields = fields(&context)?;
    let ms = whole_number(&fields, "ms")?.ok_or_else(|| wrong("ms", "is missing; write {\"ms\":100}"))?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(ms)) => Ok(()),
        () = context.cancellation.cancelled() => Err(HandlerError::retryable("cancelled while asleep")),
    }
}

/// `{"times":2,"kind":"retryable"}`: the first `times` attempts of a round fail; without `times`, all of them.
async fn fail(context: Context) -> Result<(), HandlerError> {
    let fields = fields(&context)?;
    let times = whole_number(&fields, "times")?;
    let kind = fields.get("kind").map_or(Some("retryable"), Value::as_str);
    let Some(kind @ ("retryable" | "permanent" | "panic")) = kind else {
        return Err(wrong("kind", "is not \"retryable\", \"permanent\" or \"panic\""));
    };
    let attempt = context.attempt;
    if times.is_some_and(|times| u64::from(attempt) > times) {
        return Ok(());
    }
    let message = format!("attempt {attempt} fails as asked");
    match kind {
        "panic" => panic!("{message}"),
        "permanent" => Err(HandlerError::permanent(message)),
        _ => Err(HandlerError::retryable(message)),
    }
}

/// The payload's fields; a job without a payload has none.
fn fields(context: &Context) -> Result<Map<String, Value>, HandlerError> {
    if context.payload.is_empty() {
        return Ok(Map::new());
    }
    context.json()
}

fn whole_number(fields: &Map<String, Value>, field: &str) -> Result<Option<u64>, HandlerError> {
    match fields.get(field) {
        None => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| wrong(field, "is not a whole number")),
    }
}

fn wrong(field: &str, what: &str) -> HandlerError {
    HandlerError::permanent(format!("payload: {field} {what}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;

    fn context(payload: &str, attempt: u32) -> Context {
        let mut context = Context::for_test("t", payload.to_owned());
        context.headers = Arc::new(vec![("Content-Type".to_owned(), "text/plain".to_owned())]);
        context.attempt = attempt;
        context
    }

    async fn call(name: &str, payload: &str, attempt: u32) -> Result<Success, HandlerError> {
        crate::handlers::built_in().get(name).unwrap().call(context(payload, attempt)).await
    }

    #[tokio::test]
    async fn echo_returns_the_payload_as_it_is() {
        let echoed = Success::Done { result: Bytes::from("hé"), content_type: Some("text/plain".to_owned()) };
        assert_eq!(call("echo", "hé", 1).await, Ok(echoed));
        assert_eq!(call("noop", "anything", 1).await, Ok(().into()));
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_lasts_as_long_as_asked_and_ends_when_cancelled() {
        let start = tokio::time::Instant::now();
        assert_eq!(call("sleep", r#"{"ms":100}"#, 1).await, Ok(().into()));
        assert_eq!(start.elapsed().as_millis(), 100);

        let context = context(r#"{"ms":86400000}"#, 1);
        context.cancellation.cancel();
        let error = sleep(context).await.unwrap_err();
        assert!(!error.permanent && start.elapsed().as_millis() == 100, "{error}");
    }

    #[tokio::test]
    async fn fail_fails_the_first_attempts_of_a_round() {
        let payload = r#"{"times":2}"#;
        assert_eq!(call("fail", payload, 1).await, Err(HandlerError::retryable("attempt 1 fails as asked")));
        assert!(call("fail", payload, 2).await.is_err());
        assert_eq!(call("fail", payload, 3).await, Ok(().into()));
        assert!(call("fail", "", 1_000).await.is_err(), "every attempt where `times` is absent");
        assert!(call("fail", r#"{"kind":"permanent"}"#, 1).await.unwrap_err().permanent);
    }

    #[tokio::test]
    #[should_panic(expected = "attempt 1 fails as asked")]
    async fn fail_panics_when_asked() {
        let _ = call("fail", r#"{"kind":"panic"}"#, 1).await;
    }

    #[tokio::test]
    async fn a_malformed_payload_is_permanent_and_names_the_field() {
        for (name, payload, expected) in [
            ("sleep", "", "payload: ms is missing; write {\"ms\":100}"),
            ("sleep", r#"{"ms":"100"}"#, "payload: ms is not a whole number"),
            ("fail", r#"{"times":-1}"#, "payload: times is not a whole number"),
            ("fail", r#"{"kind":"loud"}"#, "payload: kind is not \"retryable\", \"permanent\" or \"panic\""),
            ("fail", "[1]", "payload: invalid type: sequence, expected a map at line 1 column 0"),
        ] {
            assert_eq!(call(name, payload, 1).await, Err(HandlerError::permanent(expected)), "{name} {payload}");
        }
    }
}
