//! Server-sent events: the events of one run until its end, and those of a tenant.
//!
//! It puts the steps of an [`EventStream`] into frames and knows nothing else of events. A client that does not read is
//! not read for: what waits for it is bounded by its stream, and by the connection's time limit on writes.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::StreamExt as _;
use longshore_actors::{EventStream, Logline, Position, StreamFrom, StreamItem};
use longshore_backbone::wire::api::{ApiError, OPERATOR, RunRequest, Scope};
use longshore_backbone::wire::logged::EventFilter;
use longshore_domain::{RunId, Tenant, Timestamp};
use rand::RngExt as _;
use tokio::time::timeout;

use super::asker::{Asker, Guard};
use super::gateway::request::Query;
use super::gateway::{Variables, asker, variables};
use super::problem::Answered;

/// After so long without an event a comment is sent, so that neither side nor a proxy takes the other for gone.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// When a client comes again, in milliseconds, and how far that is spread: a node that ends has many clients.
const RETRY: std::ops::RangeInclusive<u32> = 1_500..=2_500;
/// Bytes that are sent at once.
const CHUNK: usize = 64 << 10;

pub(super) fn router(guard: Guard) -> Router {
    Router::new().route("/v1/events", get(events)).route("/v1/runs/{run_id}/stream", get(of_run)).with_state(guard)
}

/// The events of a tenant, or of all. Words of the query may be several with commas between them.
async fn events(State(guard): State<Guard>, parts: Parts) -> Answered {
    let (asker, mut query) = (asker(&parts)?, Query::read(&parts)?);
    let tenant = tenant(asker, query.take("tenant"))?;
    let from = match (last_event_id(&parts.headers)?, query.take("since")) {
        (Some(position), _) => StreamFrom::After(position),
        (None, Some(since)) => {
            let since = Timestamp::parse(&since).map_err(|error| ApiError::malformed(format!("since: {error}")))?;
            StreamFrom::Since(since)
        }
        (None, None) => StreamFrom::Now,
    };
    let mut list = |name| -> Vec<String> {
        let words = query.take(name).unwrap_or_default();
        words.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    let filter = EventFilter {
        events: list("event"),
        types: list("type"),
        queues: list("queue"),
        runs: list("run_id"),
        tags: list("tag"),
    };
    query.must_be_empty()?;
    let stream = guard.node()?.streams().events(tenant, filter, from).await?;
    Ok(followed(stream, "{}", asker.clone()))
}

/// The events of a run until its end; 204 to a client that had its end, so that it does not come again.
async fn of_run(State(guard): State<Guard>, path: Variables, parts: Parts) -> Answered {
    let (asker, mut query) = (asker(&parts)?, Query::read(&parts)?);
    let run_id = variables(path)?.into_iter().map(|(_, run_id)| run_id).collect::<String>();
    let run_id = RunId::parse(&run_id);
    let run_id = run_id.map_err(|error| ApiError::malformed(format!("run_id: {}", error.reason)))?;
    let tenant = tenant(asker, query.take("tenant"))?;
    query.must_be_empty()?;
    let (end, run) = (format!("{{\"run_id\":\"{run_id}\"}}"), RunRequest { run_id, tenant });
    Ok(match guard.node()?.streams().of_run(OPERATOR, run, last_event_id(&parts.headers)?).await? {
        Some(stream) => followed(stream, &end, asker.clone()),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// The tenant that is meant, if the asker may read its events: its own if none is named, all of `_all`.
fn tenant(asker: &Asker, named: Option<String>) -> Result<Option<Tenant>, ApiError> {
    asker.must_have(Scope::Read)?;
    let named = named.as_deref().unwrap_or(asker.tenant());
    asker.must_be(named)?;
    match named {
        OPERATOR => Ok(None),
        named => {
            Tenant::parse(named).map(Some).map_err(|error| ApiError::malformed(format!("tenant: {}", error.reason)))
        }
    }
}

/// Where the client is, as its last `id` says.
fn last_event_id(headers: &HeaderMap) -> Result<Option<Position>, ApiError> {
    let Some(id) = headers.get("last-event-id").filter(|id| !id.is_empty()) else { return Ok(None) };
    let position = id
        .to_str()
        .ok()
        .and_then(|id| id.split_once('.'))
        .and_then(|(sequence, line)| Some((sequence.parse().ok()?, line.parse().ok()?)));
    let wrong = || ApiError::malformed("Last-Event-ID: is not the id of an event of a stream, such as 1207.3");
    position.map(Some).ok_or_else(wrong)
}

/// The answer that follows a stream, for as long as its asker may have it.
fn followed(stream: EventStream, end: &str, asker: Asker) -> Response {
    let retry = Bytes::from(format!("retry: {}\n\n", rand::rng().random_range(RETRY)));
    let end = end.to_owned();
    let frames = futures_util::stream::unfold(Some(stream), move |stream| {
        let end = end.clone();
        async move {
            let mut stream = stream?;
            let mut text = String::new();
            let mut step = match timeout(COMMENT_EVERY, stream.next()).await {
                Err(_) => return Some((Bytes::from_static(b":\n\n"), Some(stream))),
                Ok(step) => Some(step?),
            };
            while let Some(said) = step {
                write(&said, &end, |line| stream.shown(line), &mut text);
                step = if text.len() < CHUNK { stream.ready() } else { None };
            }
            Some((Bytes::from(text), Some(stream)))
        }
    });
    let body = futures_util::stream::iter([retry]).chain(frames).take_until(asker.ends()).map(Ok::<_, Infallible>);
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (HeaderName::from_static("x-accel-buffering"), "no")];
    (headers, Body::from_stream(body)).into_response()
}

/// Writes a frame. An event is one line, and so is its frame's data.
fn write(step: &StreamItem, end: &str, shown: impl Fn(&Logline) -> Bytes, out: &mut String) {
    let _ = match step {
        StreamItem::Event(line) => {
            let ((sequence, number), json) = (line.position, shown(line));
            let json = String::from_utf8_lossy(&json);
            write!(out, "id: {sequence}.{number}\nevent: {}\ndata: {json}\n\n", line.event)
        }
        StreamItem::End((sequence, number)) => write!(out, "id: {sequence}.{number}\nevent: end\ndata: {end}\n\n"),
        StreamItem::Reset { oldest: Some((sequence, number)) } => {
            write!(out, "event: reset\ndata: {{\"reason\":\"gone\",\"oldest\":\"{sequence}.{number}\"}}\n\n")
        }
        StreamItem::Reset { oldest: None } => write!(out, "event: reset\ndata: {{\"reason\":\"slow\"}}\n\n"),
        StreamItem::Bye => write!(out, "event: bye\ndata: {{}}\n\n"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_of_a_client_is_read_or_refused() {
        let read = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", id.parse().unwrap());
            last_event_id(&headers)
        };
        assert_eq!(last_event_id(&HeaderMap::new()).unwrap(), None);
        assert_eq!((read("").unwrap(), read("1207.3").unwrap()), (None, Some((1_207, 3))));
        for wrong in ["7", "7.", ".3", "a.b", "-1.2", "7.3.1", "7.99999999999", " "] {
            let error = read(wrong).unwrap_err();
            assert!(error.code == 400 && error.message.starts_with("Last-Event-ID: "), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn frames_are_as_event_source_reads_them() {
        let mut text = String::new();
        for step in [
            StreamItem::End((7, 2)),
            StreamItem::Reset { oldest: Some((9, 1)) },
            StreamItem::Reset { oldest: None },
            StreamItem::Bye,
        ] {
            write(&step, r#"{"run_id":"r"}"#, |line| line.json.clone(), &mut text);
        }
        let frames: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(
            frames,
            [
                "id: 7.2\nevent: end\ndata: {\"run_id\":\"r\"}",
                "event: reset\ndata: {\"reason\":\"gone\",\"oldest\":\"9.1\"}",
                "event: reset\ndata: {\"reason\":\"slow\"}",
                "event: bye\ndata: {}",
            ]
        );
    }
}
