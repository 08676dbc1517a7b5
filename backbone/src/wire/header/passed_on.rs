//! Which headers of a job are passed on: to the same job when a node publishes it again, to a handler, to a replay.

use async_nats::HeaderMap;
use longshore_domain::run::Run;
use longshore_domain::{Timestamp, duration};

use super::{has, is_clients, is_servers, names, short_name};

/// The content type of a payload whose job names none.
const JSON: &str = "application/json";

/// The headers under which a node publishes a job again: the client's options and its own headers, the run, round and
/// attempt that the job is about, and the seal that proves it. None of the server's headers.
pub fn carry_on(original: Option<&HeaderMap>, run: &Run, attempt: u32, due_at: Option<Timestamp>) -> HeaderMap {
    let mut headers = as_published(original);
    headers.insert(names::RUN_ID, run.run_id.as_str());
    headers.insert(names::ROUND, run.round.to_string());
    headers.insert(names::ATTEMPT, attempt.to_string());
    headers.insert(names::SEAL, run.seal.as_str());
    if run.deferrals > 0 {
        headers.insert(names::DEFERRALS, run.deferrals.to_string());
    }
    if let Some(deferral) = run.deferral.as_ref().filter(|deferral| deferral.nth == run.deferrals) {
        headers.insert(names::DEFERRED_FOR, deferral.reason.as_str());
    }
    if let Some(turn) = &run.turn {
        headers.insert(names::PLACE, turn.number.to_string());
    }
    if let Some(at) = due_at {
        headers.insert(names::DUE_AT, at.millis().to_string());
    }
    headers
}

/// The headers that a client gave its job: neither the server's, nor those that nodes wrote when they moved it.
pub fn as_published(original: Option<&HeaderMap>) -> HeaderMap {
    let by_node = ["run-id", "round", "attempt", "deferrals", "deferred-for", "seal", "due-at", "place"];
    let is_nodes = |name: &str| short_name(name).is_some_and(|short| by_node.contains(&short.as_str()));
    kept(original, |name| !is_servers(name) && !is_nodes(name))
}

/// All headers but those that are instructions to the server.
pub fn without_servers(original: Option<&HeaderMap>) -> HeaderMap {
    kept(original, |name| !is_servers(name))
}

/// The headers whose names are to be kept, with all their values.
pub(crate) fn kept(headers: Option<&HeaderMap>, keep: impl Fn(&str) -> bool) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for (name, values) in headers.into_iter().flat_map(HeaderMap::iter).filter(|(name, _)| keep((*name).as_ref())) {
        for value in values {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

/// The headers that a remote handler gets: the client's own, and the run and attempt that it is about. The client's
/// options for Longshore are left out: forwarded to a follow-up job, they would apply once more.
pub fn for_handler(original: Option<&HeaderMap>, run: &Run, attempt: u32) -> HeaderMap {
    let mut headers = sent_on(original);
    headers.insert(names::RUN_ID, run.run_id.as_str());
    headers.insert(names::ROUND, run.round.to_string());
    headers.insert(names::ATTEMPT, attempt.to_string());
    headers
}

/// The client's own headers, with the content type that holds where it names none.
fn sent_on(original: Option<&HeaderMap>) -> HeaderMap {
    let mut headers = kept(original, is_clients);
    if !has(&headers, names::CONTENT_TYPE) {
        headers.insert(names::CONTENT_TYPE, JSON);
    }
    headers
}

/// All headers but one, whatever its case.
pub fn without(headers: &HeaderMap, gone: &str) -> HeaderMap {
    kept(Some(headers), |name| !name.eq_ignore_ascii_case(gone))
}

/// The headers of a job that a replay runs again, without those that bound its first round to a point in time.
pub fn for_replay(original: &HeaderMap) -> HeaderMap {
    kept(Some(original), |name| match short_name(name).unwrap_or_default().as_str() {
        "run-at" | "delay" | "expires-at" => false,
        "deadline" => original.get_last(name).is_some_and(|value| duration::parse(value.as_str()).is_ok()),
        _ => true,
    })
}

/// The client's own headers for a handler in Rust: neither the server's nor Longshore's, nor the content type that
/// every job has which names none. A call of another node says that one, so it is left out wherever it comes from.
pub fn own(headers: Option<&HeaderMap>) -> Vec<(String, String)> {
    let all = headers.iter().flat_map(|headers| headers.iter());
    let of_client = all.filter(|(name, _)| is_clients((*name).as_ref()));
    of_client
        .flat_map(|(name, values)| values.iter().map(|value| (name.to_string(), value.as_str().to_owned())))
        .filter(|(name, value)| !(value == JSON && name.eq_ignore_ascii_case(names::CONTENT_TYPE)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_servers_is_passed_on() {
        let mut map = HeaderMap::new();
        for (name, value) in [("Nats-Rollup", "all"), ("nats-ttl", "1s"), ("X-Mine", "y"), ("Longshore-Retry", "fast")]
        {
            map.insert(name, value);
        }
        assert_eq!(own(Some(&map)), [("X-Mine".to_owned(), "y".to_owned())]);
    }

    #[test]
    fn a_handler_in_rust_has_the_same_headers_wherever_it_runs() {
        for (name, value) in [("X-Mine", "y"), ("content-type", JSON), ("content-type", "text/plain")] {
            let mut map = HeaderMap::new();
            map.insert(name, value);
            let here = own(Some(&map));
            assert_eq!(here, own(Some(&sent_on(Some(&map)))), "{name}: {value}");
            assert_eq!(here.is_empty(), value == JSON);
        }
    }
}
