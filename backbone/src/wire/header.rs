//! Every header of the contract, read and written.
//!
//! Names are read in any case, as in HTTP, and written as the contract has them. A client's `Nats-*` headers are
//! instructions to the server and are never passed on.

use async_nats::{HeaderMap, HeaderValue};
use longshore_domain::job::{Unique, When};
use longshore_domain::run::Run;
use longshore_domain::{DurationText, JobOptions, RunId, SmolStr, Timestamp, duration};
use smallvec::SmallVec;

pub use super::by_node::Moved;
use super::by_node::{ByNode, RESERVED};
use super::kind_key::KindKey;

/// Names of the headers that nodes write themselves.
pub mod names {
    /// The run's id.
    pub const RUN_ID: &str = "Longshore-Run-Id";
    /// The round that a moved job or a handler's request is about.
    pub const ROUND: &str = "Longshore-Round";
    /// The attempt that a moved job or a handler's request is about.
    pub const ATTEMPT: &str = "Longshore-Attempt";
    /// Proves that a node wrote the message: the random number that the run's record has as well.
    pub const SEAL: &str = "Longshore-Seal";
    /// How often the run of a moved job had been deferred in its round.
    pub const DEFERRALS: &str = "Longshore-Deferrals";
    /// Why a job had to wait, written by nodes.
    pub const DEFERRED_FOR: &str = "Longshore-Deferred-For";
    /// When a moved job fell due, in Unix milliseconds.
    pub const DUE_AT: &str = "Longshore-Due-At";
    /// The place of a job in the order of its concurrency key.
    pub const PLACE: &str = "Longshore-Place";
    /// The job's tenant.
    pub const TENANT: &str = "Longshore-Tenant";
    /// Its queue.
    pub const QUEUE: &str = "Longshore-Queue";
    /// Its priority.
    pub const PRIORITY: &str = "Longshore-Priority";
    /// Its type.
    pub const TYPE: &str = "Longshore-Type";
    /// Attempts in a round.
    pub const MAX_ATTEMPTS: &str = "Longshore-Max-Attempts";
    /// When the attempt's time is over.
    pub const ATTEMPT_DEADLINE: &str = "Longshore-Attempt-Deadline";
    /// The kind of a signal, which is sent before the reply: `started`, `heartbeat`, `progress`, `log`.
    pub const SIGNAL: &str = "Longshore-Signal";
    /// Whether a failure is worth another attempt.
    pub const RETRYABLE: &str = "Longshore-Retryable";
    /// How long to wait at least before the next attempt.
    pub const RETRY_AFTER: &str = "Longshore-Retry-After";
    /// How long the job is snoozed.
    pub const SNOOZE: &str = "Longshore-Snooze";
    /// How long the job's limit key or type is held, for all jobs.
    pub const HOLD: &str = "Longshore-Hold";
    /// In the answer to a signal: the run is cancelled.
    pub const CANCEL: &str = "Longshore-Cancel";
    /// Who asks the API, as the caller says itself.
    pub const BY: &str = "Longshore-By";
    /// Error code of a NATS service.
    pub const ERROR_CODE: &str = "Nats-Service-Error-Code";
    /// Error text of a NATS service.
    pub const ERROR: &str = "Nats-Service-Error";
    /// The subject of a request without responders; set by the server, in its answer.
    pub const SUBJECT: &str = "Nats-Subject";
    /// JetStream's own protection against a publish sent twice.
    pub const MSG_ID: &str = "Nats-Msg-Id";
    /// The compare-and-set.
    pub const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
    /// How long the message lives.
    pub const TTL: &str = "Nats-TTL";
    /// When the server fires a schedule.
    pub const SCHEDULE: &str = "Nats-Schedule";
    /// The subject a schedule fires to.
    pub const SCHEDULE_TARGET: &str = "Nats-Schedule-Target";
    /// The content type of the payload.
    pub const CONTENT_TYPE: &str = "Content-Type";
}

/// Headers of a request to a handler. Some clients send them back with the reply, nats-py's `respond` for one: in a
/// reply they have no effect.
pub(crate) const OF_REQUEST: [&str; 9] = [
    names::RUN_ID,
    names::TENANT,
    names::QUEUE,
    names::PRIORITY,
    names::TYPE,
    names::ROUND,
    names::ATTEMPT,
    names::MAX_ATTEMPTS,
    names::ATTEMPT_DEADLINE,
];

/// What the headers of a job say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobHeaders {
    /// The client's options; `None` if it sets none.
    pub options: Option<Box<JobOptions>>,
    /// The run's id, if the message has one.
    pub run_id: Option<RunId>,
    /// Round and attempt of a job that a node moved.
    pub moved: Option<Moved>,
    /// The proof that a node's message carries. It proves nothing unless the record has the same seal.
    pub seal: Option<SmolStr>,
}

/// A header that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header {header}: {reason}")]
pub struct HeaderError {
    /// The header's name.
    pub header: String,
    /// Why it does not parse.
    pub reason: String,
}

/// Maximum attempts in a round.
pub const ATTEMPTS_MAX: u32 = 1_000;
/// Maximum cost of a job, in tokens.
pub const COST_MAX: u32 = 1_000_000;
/// Maximum bytes in a key: idempotency, concurrency, limit.
pub const KEY_MAX: usize = 512;
/// Maximum number of tags.
pub const TAGS_MAX: usize = 8;
/// Maximum bytes in a tag.
pub const TAG_MAX: usize = 64;

/// Reads the headers of a job.
///
/// # Errors
/// Names the first header that does not parse, and why.
pub fn read_job(headers: &HeaderMap) -> Result<JobHeaders, HeaderError> {
    let mut read = JobHeaders::default();
    let mut options = JobOptions::default();
    let mut by_node = ByNode::default();
    let mut seen: SmallVec<[(String, &str); 8]> = SmallVec::new();
    for (name, values) in headers.iter() {
        let full: &str = name.as_ref();
        let Some(short) = short_name(full) else { continue };
        let refuse = |reason: String| HeaderError { header: full.to_owned(), reason };
        let value = only_value(values).map_err(refuse)?;
        match seen.iter().find(|(other, _)| *other == short) {
            Some((_, other)) if *other == value => continue,
            Some(_) => return Err(refuse("stands there twice, with different values".to_owned())),
            None => {}
        }
        match short.as_str() {
            "run-id" => read.run_id = Some(RunId::parse(value).map_err(|error| refuse(error.to_string()))?),
            _ if by_node.read(&short, value).map_err(refuse)? => {}
            _ => read_option(&short, value, &mut options).map_err(refuse)?,
        }
        seen.push((short, value));
    }
    refuse_pairs(&seen)?;
    let is_sealed = by_node.seal.is_some();
    if let Some(id) = read.run_id.as_ref().filter(|_| !is_sealed) {
        // A node may give a job a derived id when it moves it; a client may not choose one.
        RunId::parse_chosen(id.as_str())
            .map_err(|error| HeaderError { header: names::RUN_ID.to_owned(), reason: error.to_string() })?;
        options.own_run_id = true;
    }
    (read.moved, read.seal) = by_node.checked(read.run_id.is_some())?;
    if options != JobOptions::default() {
        read.options = Some(Box::new(options));
    }
    Ok(read)
}

/// By what a job's kind differs from others of its tenant and type, from its headers.
#[must_use]
pub fn kind_key(headers: Option<&HeaderMap>) -> KindKey {
    let value = |wanted: &str| {
        let mut all = headers.into_iter().flat_map(HeaderMap::iter);
        let (_, values) = all.find(|(name, _)| short_name((*name).as_ref()).as_deref() == Some(wanted))?;
        only_value(values).ok()
    };
    KindKey::of_keys(value("limit-key"), value("concurrency-key"))
}

/// The run id that a job's headers name, if it can be read and a client may choose it.
#[must_use]
pub fn read_run_id(headers: &HeaderMap) -> Option<RunId> {
    let named = headers.iter().find(|(name, _)| short_name((*name).as_ref()).as_deref() == Some("run-id"));
    named.and_then(|(_, values)| RunId::parse_chosen(only_value(values).ok()?).ok())
}

/// A header's value; the same value twice counts as one.
fn only_value(values: &[HeaderValue]) -> Result<&str, String> {
    let mut all = values.iter().map(HeaderValue::as_str);
    let first = all.next().unwrap_or_default();
    if all.any(|other| other != first) {
        return Err("stands there twice, with different values".to_owned());
    }
    Ok(first)
}

/// Refuses two headers that say the same in different ways: only one of them may be set.
fn refuse_pairs(seen: &[(String, &str)]) -> Result<(), HeaderError> {
    let has = |name: &str| seen.iter().any(|(short, _)| short == name);
    for (one, other) in [("Run-At", "Delay"), ("Expires-At", "Expires-In")] {
        if has(&one.to_ascii_lowercase()) && has(&other.to_ascii_lowercase()) {
            let reason = format!("stands beside Longshore-{one}; one of them is enough");
            return Err(HeaderError { header: format!("Longshore-{other}"), reason });
        }
    }
    Ok(())
}

fn short_name(name: &str) -> Option<String> {
    const PREFIX: &str = "longshore-";
    let (prefix, rest) = name.split_at_checked(PREFIX.len())?;
    prefix.eq_ignore_ascii_case(PREFIX).then(|| rest.to_ascii_lowercase())
}

fn read_option(name: &str, value: &str, options: &mut JobOptions) -> Result<(), String> {
    match name {
        "idempotency-key" => options.idempotency_key = Some(text(value, KEY_MAX)?),
        "idempotency-window" => options.idempotency_window = Some(positive(value)?),
        "unique" => options.unique = unique(value)?,
        "max-attempts" => options.max_attempts = Some(number(value, ATTEMPTS_MAX)?),
        "retry" => options.retry = Some(text(value, TAG_MAX)?),
        "run-at" => options.run_at = Some(When::At(run_at(value)?)),
        "delay" => options.run_at = Some(When::After(span(value)?)),
        "timeout" => options.timeout = Some(positive(value)?),
        "deadline" => options.deadline = Some(moment_or_span(value)?),
        "expires-at" => options.expires = Some(When::At(moment(value)?)),
        "expires-in" => options.expires = Some(When::After(positive(value)?)),
        "concurrency-key" => options.concurrency_key = Some(text(value, KEY_MAX)?),
        "limit-key" => options.limit_key = Some(text(value, KEY_MAX)?),
        "cost" => options.cost = Some(number(value, COST_MAX)?),
        "keep" => options.keep = Some(span(value)?),
        "schema-version" => options.schema_version = Some(text(value, TAG_MAX)?),
        "tags" => options.tags = tags(value.split(','))?,
        _ => return Err(RESERVED.to_owned()),
    }
    Ok(())
}

/// Reads a list of tags.
///
/// # Errors
/// Says which limit was exceeded.
pub fn tags<'a>(values: impl Iterator<Item = &'a str>) -> Result<Vec<String>, String> {
    let tags: Vec<String> = values.map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    if tags.len() > TAGS_MAX {
        return Err(format!("has {} tags, {TAGS_MAX} are allowed", tags.len()));
    }
    match tags.iter().find(|tag| tag.len() > TAG_MAX || tag.contains(|c: char| c.is_control() || c == ',')) {
        Some(tag) if tag.len() > TAG_MAX => Err(format!("has a tag of {} bytes, {TAG_MAX} are allowed", tag.len())),
        Some(tag) => Err(format!("has a tag with a line break, another control character or a comma: {tag:?}")),
        None => Ok(tags),
    }
}

/// Reads when a key is free again.
///
/// # Errors
/// Names the allowed values.
pub fn unique(value: &str) -> Result<Unique, String> {
    match value {
        "window" => Ok(Unique::Window),
        "queued" => Ok(Unique::Queued),
        "active" => Ok(Unique::Active),
        other => Err(format!("{other:?} is not one of window, queued, active")),
    }
}

pub(super) fn number(value: &str, max: u32) -> Result<u32, String> {
    value
        .parse()
        .ok()
        .filter(|number| (1..=max).contains(number))
        .ok_or_else(|| format!("{value:?} is not a whole number from 1 to {max}"))
}

pub(super) fn text(value: &str, max: usize) -> Result<String, String> {
    match value.len() {
        0 => Err("is empty".to_owned()),
        bytes if bytes > max => Err(format!("has {bytes} bytes, {max} are allowed")),
        _ => Ok(value.to_owned()),
    }
}

fn span(value: &str) -> Result<std::time::Duration, String> {
    duration::parse(value).map_err(|error| error.to_string())
}

/// A span that must not be zero.
pub(crate) fn positive(value: &str) -> Result<std::time::Duration, String> {
    span(value).and_then(|span| if span.is_zero() { Err("is zero".to_owned()) } else { Ok(span) })
}

fn moment(value: &str) -> Result<Timestamp, String> {
    Timestamp::parse(value).map_err(|error| error.to_string())
}

/// Reads the time of a schedule: the server counts nanoseconds since 1970, and a time that does not fit fires at once.
///
/// # Errors
/// It is not a time, or is a time that no schedule can hold.
pub fn run_at(value: &str) -> Result<Timestamp, String> {
    let at = moment(value)?;
    if at > Timestamp::LAST_SCHEDULE {
        return Err(format!("{value:?} is later than a schedule can hold: {}", Timestamp::LAST_SCHEDULE));
    }
    Ok(at)
}

fn moment_or_span(value: &str) -> Result<When, String> {
    if duration::parse(value).is_ok() {
        return positive(value).map(When::After);
    }
    moment(value).map(When::At).map_err(|_| format!("{value:?} is neither an RFC 3339 time nor a duration such as 30s"))
}

/// The headers under which a node publishes a job again: the client's options and its own headers, the run, round and
/// attempt that the job is about, and the seal that proves it. None of the server's headers.
#[must_use]
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
#[must_use]
pub fn as_published(original: Option<&HeaderMap>) -> HeaderMap {
    let by_node = ["run-id", "round", "attempt", "deferrals", "deferred-for", "seal", "due-at", "place"];
    let is_nodes = |name: &str| short_name(name).is_some_and(|short| by_node.contains(&short.as_str()));
    kept(original, |name| !is_servers(name) && !is_nodes(name))
}

/// All headers but those that are instructions to the server.
#[must_use]
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
#[must_use]
pub fn for_handler(original: Option<&HeaderMap>, run: &Run, attempt: u32) -> HeaderMap {
    let mut headers = kept(original, is_clients);
    headers.insert(names::RUN_ID, run.run_id.as_str());
    headers.insert(names::ROUND, run.round.to_string());
    headers.insert(names::ATTEMPT, attempt.to_string());
    headers
}

/// Whether a header is an instruction to the server.
#[must_use]
pub fn is_servers(name: &str) -> bool {
    name.get(..5).is_some_and(|prefix| prefix.eq_ignore_ascii_case("nats-"))
}

/// Whether a header is Longshore's.
pub(crate) fn is_ours(name: &str) -> bool {
    short_name(name).is_some()
}

/// Whether a header is a client's own: neither the server's nor Longshore's.
#[must_use]
pub fn is_clients(name: &str) -> bool {
    !is_servers(name) && !is_ours(name)
}

/// Whether a header is present, whatever its case.
#[must_use]
pub fn has(headers: &HeaderMap, name: &str) -> bool {
    headers.iter().any(|(found, _)| AsRef::<str>::as_ref(found).eq_ignore_ascii_case(name))
}

/// The value of a header, whatever its case; the first, if it stands there more than once.
#[must_use]
pub fn value_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let (_, values) = headers.iter().find(|(found, _)| AsRef::<str>::as_ref(*found).eq_ignore_ascii_case(name))?;
    values.first().map(HeaderValue::as_str)
}

/// All headers but one, whatever its case.
#[must_use]
pub fn without(headers: &HeaderMap, gone: &str) -> HeaderMap {
    kept(Some(headers), |name| !name.eq_ignore_ascii_case(gone))
}

/// Maximum bytes of a job's headers: the server accepts 64 KiB, and a job that is published again gets more headers.
pub const HEADERS_MAX: usize = 24 * 1024;
/// The same for a job that a node moved, whose own headers come on top.
pub const MOVED_HEADERS_MAX: usize = HEADERS_MAX + 1_024;

/// How many bytes headers take on the wire.
#[must_use]
pub fn size_of(headers: &HeaderMap) -> usize {
    let line = |name: &str, value: &str| name.len() + value.len() + 4;
    headers.iter().flat_map(|(name, values)| values.iter().map(move |value| line(name.as_ref(), value.as_str()))).sum()
}

/// The headers of a job that a replay runs again, without those that bound its first round to a point in time.
#[must_use]
pub fn for_replay(original: &HeaderMap) -> HeaderMap {
    kept(Some(original), |name| match short_name(name).unwrap_or_default().as_str() {
        "run-at" | "delay" | "expires-at" => false,
        "deadline" => original.get_last(name).is_some_and(|value| duration::parse(value.as_str()).is_ok()),
        _ => true,
    })
}

/// The client's own headers: neither the server's nor Longshore's.
#[must_use]
pub fn own(headers: Option<&HeaderMap>) -> Vec<(String, String)> {
    let all = headers.iter().flat_map(|headers| headers.iter());
    all.filter(|(name, _)| is_clients((*name).as_ref()))
        .flat_map(|(name, values)| values.iter().map(|value| (name.to_string(), value.as_str().to_owned())))
        .collect()
}

/// Writes the options of a `submit` as the headers of a job.
pub fn write_options(options: &JobOptions, headers: &mut HeaderMap) {
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            headers.insert(format!("Longshore-{name}").as_str(), value);
        }
    };
    let span = |span: std::time::Duration| DurationText(span).to_string();
    put("Idempotency-Key", options.idempotency_key.clone());
    put("Idempotency-Window", options.idempotency_window.map(span));
    put("Max-Attempts", options.max_attempts.map(|number| number.to_string()));
    put("Retry", options.retry.clone());
    put("Timeout", options.timeout.map(span));
    put("Deadline", options.deadline.map(when));
    put("Keep", options.keep.map(span));
    put("Concurrency-Key", options.concurrency_key.clone());
    put("Limit-Key", options.limit_key.clone());
    put("Cost", options.cost.map(|cost| cost.to_string()));
    put("Schema-Version", options.schema_version.clone());
    put("Tags", (!options.tags.is_empty()).then(|| options.tags.join(",")));
    put(
        "Unique",
        match options.unique {
            Unique::Window => None,
            Unique::Queued => Some("queued".to_owned()),
            Unique::Active => Some("active".to_owned()),
        },
    );
    match options.run_at {
        Some(When::At(at)) => put("Run-At", Some(at.to_string())),
        Some(When::After(wait)) => put("Delay", Some(span(wait))),
        None => {}
    }
    match options.expires {
        Some(When::At(at)) => put("Expires-At", Some(at.to_string())),
        Some(When::After(wait)) => put("Expires-In", Some(span(wait))),
        None => {}
    }
}

fn when(when: When) -> String {
    match when {
        When::At(at) => at.to_string(),
        When::After(span) => DurationText(span).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, *value);
        }
        headers
    }

    #[test]
    fn each_header_is_read_and_written() {
        let map = headers(&[
            ("longshore-idempotency-key", "order 1"),
            ("Longshore-Unique", "active"),
            ("Longshore-Max-Attempts", "3"),
            ("Longshore-Delay", "5m"),
            ("Longshore-Deadline", "2h"),
            ("Longshore-Expires-At", "2027-01-01T00:00:00Z"),
            ("Longshore-Tags", "a, b"),
            ("Nats-Msg-Id", "x"),
        ]);
        let read = read_job(&map).unwrap().options.unwrap();
        assert_eq!(read.run_at, Some(When::After(Duration::from_secs(300))));
        let mut written = HeaderMap::new();
        write_options(&read, &mut written);
        assert_eq!(read_job(&written).unwrap().options.unwrap(), read);
    }

    #[test]
    fn what_does_not_parse_is_named() {
        for (name, value, reason) in [
            ("Longshore-Max-Attempts", "0", "is not a whole number from 1 to 1000"),
            ("Longshore-Max-Attempts", "1001", "is not a whole number from 1 to 1000"),
            ("Longshore-Delay", "-3s", "is not a valid duration"),
            ("Longshore-Run-At", "tomorrow", "is not a valid RFC 3339 time"),
            ("Longshore-Run-Id", "main-p5-7", "derived"),
            ("Longshore-Run-Id", "a.b", "'.' at byte 1"),
            ("Longshore-Unique", "never", "not one of"),
            ("Longshore-Tags", "1,2,3,4,5,6,7,8,9", "has 9 tags"),
            ("Longshore-Tags", "a\u{7}", "control character"),
            ("Longshore-Run-At", "2262-04-12T00:00:00Z", "later than a schedule can hold"),
            ("Longshore-Idempotency-Key", "", "is empty"),
        ] {
            let error = read_job(&headers(&[(name, value)])).unwrap_err().to_string();
            assert!(error.starts_with(&format!("header {name}: ")) && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn nothing_of_the_servers_is_passed_on() {
        let map = headers(&[("Nats-Rollup", "all"), ("nats-ttl", "1s"), ("X-Mine", "y"), ("Longshore-Retry", "fast")]);
        assert_eq!(own(Some(&map)), [("X-Mine".to_owned(), "y".to_owned())]);
    }
}
