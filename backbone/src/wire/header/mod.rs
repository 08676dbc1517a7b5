//! Every header of the contract, read and written.
//!
//! Names are read in any case, as in HTTP, and written as the contract has them. A client's `Nats-*` headers are
//! instructions to the server and are never passed on.

use std::borrow::Cow;

use async_nats::{HeaderMap, HeaderValue};
use longshore_domain::{JobOptions, RunId, SmolStr, likeness};
use smallvec::SmallVec;

use super::kind_key::KindKey;

mod by_node;
pub mod names;
mod options;
mod passed_on;
pub mod then;
mod value;

pub use by_node::Moved;
pub use options::write_options;
pub use passed_on::{as_published, carry_on, for_handler, for_replay, own, without, without_servers};
pub use value::{ATTEMPTS_MAX, COST_MAX, KEY_MAX, TAG_MAX, TAGS_MAX, deadline, fits_header, run_at, tags, unique};

pub(crate) use passed_on::kept;
pub(crate) use value::{positive, ttl};

use by_node::{ByNode, RESERVED};
use options::{JobOption, OPTIONS};

/// Headers of a request to a handler. Some clients send them back with the reply, nats-py's `respond` for one: in a
/// reply they have no effect.
pub(crate) const OF_REQUEST: [&str; 10] = [
    names::RUN_ID,
    names::TENANT,
    names::QUEUE,
    names::PRIORITY,
    names::TYPE,
    names::ROUND,
    names::ATTEMPT,
    names::MAX_ATTEMPTS,
    names::ATTEMPT_DEADLINE,
    names::ATTEMPT_TOKEN,
];

/// A header that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header {header}: {reason}")]
pub struct HeaderError {
    /// The header's name.
    pub header: String,
    /// Why it does not parse.
    pub reason: String,
}

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
            _ => {
                let option = JobOption::named(&short).ok_or_else(|| refuse(refused(&short)))?;
                (option.read)(value, &mut options).map_err(refuse)?;
            }
        }
        seen.push((short, value));
    }
    refuse_contradictions(&seen)?;
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
pub fn kind_key(headers: Option<&HeaderMap>) -> KindKey {
    let value = |wanted: &str| {
        let mut all = headers.into_iter().flat_map(HeaderMap::iter);
        let (_, values) = all.find(|(name, _)| short_name((*name).as_ref()).as_deref() == Some(wanted))?;
        only_value(values).ok()
    };
    let key = |plain: &str, encoded: &str| match value(plain) {
        Some(key) => Some(Cow::Borrowed(key)),
        None => options::encoded_key(value(encoded)?).ok().map(Cow::Owned),
    };
    let (limit, concurrency) = (key("limit-key", "limit-key-base64"), key("concurrency-key", "concurrency-key-base64"));
    KindKey::of_keys(limit.as_deref(), concurrency.as_deref())
}

/// The run id that a job's headers name, if it can be read and a client may choose it.
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

/// Two headers that say the same in different ways: only one of them may be set.
const ONE_OF: [(&str, &str); 5] = [
    ("Run-At", "Delay"),
    ("Expires-At", "Expires-In"),
    ("Idempotency-Key", "Idempotency-Key-Base64"),
    ("Concurrency-Key", "Concurrency-Key-Base64"),
    ("Limit-Key", "Limit-Key-Base64"),
];

/// Refuses headers that contradict each other, or that say something about a key that is not there.
fn refuse_contradictions(seen: &[(String, &str)]) -> Result<(), HeaderError> {
    let has = |name: &str| seen.iter().any(|(short, _)| short.eq_ignore_ascii_case(name));
    let refuse = |header: &str, reason: String| Err(HeaderError { header: format!("Longshore-{header}"), reason });
    if let Some((one, other)) = ONE_OF.iter().find(|(one, other)| has(one) && has(other)) {
        return refuse(other, format!("stands beside Longshore-{one}; one of them is enough"));
    }
    let has_key = has("Idempotency-Key") || has("Idempotency-Key-Base64");
    match ["Unique", "Idempotency-Window"].into_iter().find(|header| has(header)) {
        Some(header) if !has_key => refuse(header, "needs a Longshore-Idempotency-Key".to_owned()),
        _ => Ok(()),
    }
}

fn short_name(name: &str) -> Option<String> {
    const PREFIX: &str = "longshore-";
    let (prefix, rest) = name.split_at_checked(PREFIX.len())?;
    prefix.eq_ignore_ascii_case(PREFIX).then(|| rest.to_ascii_lowercase())
}

/// Why a header of Longshore's is refused that is none of a job: nodes write it, or nobody does.
fn refused(name: &str) -> String {
    if OF_REQUEST.iter().any(|known| short_name(known).as_deref() == Some(name)) {
        return RESERVED.to_owned();
    }
    match likeness::nearest(name, OPTIONS.iter().map(JobOption::short).chain(["Run-Id"])) {
        Some(meant) => format!("is not known; did you mean Longshore-{meant}?"),
        None => "is not known: names that begin with Longshore- are reserved".to_owned(),
    }
}

/// Whether a header is an instruction to the server.
pub fn is_servers(name: &str) -> bool {
    name.get(..5).is_some_and(|prefix| prefix.eq_ignore_ascii_case("nats-"))
}

/// Whether a header is Longshore's.
pub(crate) fn is_ours(name: &str) -> bool {
    short_name(name).is_some()
}

/// Whether a header is a client's own: neither the server's nor Longshore's.
pub fn is_clients(name: &str) -> bool {
    !is_servers(name) && !is_ours(name)
}

/// Whether a header is present, whatever its case.
pub fn has(headers: &HeaderMap, name: &str) -> bool {
    headers.iter().any(|(found, _)| AsRef::<str>::as_ref(found).eq_ignore_ascii_case(name))
}

/// The value of a header, whatever its case; the first, if it stands there more than once.
pub fn value_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let (_, values) = headers.iter().find(|(found, _)| AsRef::<str>::as_ref(*found).eq_ignore_ascii_case(name))?;
    values.first().map(HeaderValue::as_str)
}

/// Maximum bytes of a job's headers: the server accepts 64 KiB, and a job that is published again gets more headers.
pub const HEADERS_MAX: usize = 24 * 1024;
/// The same for a job that a node moved, whose own headers come on top.
pub const MOVED_HEADERS_MAX: usize = HEADERS_MAX + 1_024;

/// Headers of one line.
pub fn single(name: &str, value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, value);
    headers
}

/// How many bytes headers take on the wire.
pub fn size_of(headers: &HeaderMap) -> usize {
    let line = |name: &str, value: &str| name.len() + value.len() + 4;
    headers.iter().flat_map(|(name, values)| values.iter().map(move |value| line(name.as_ref(), value.as_str()))).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_domain::job::When;
    use proptest::prelude::*;

    use super::*;

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
            ("Longshore-Max-Attempts", "+5", "is not a whole number from 1 to 1000"),
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
            ("Longshore-Limit-Key-Base64", "", "is empty"),
            ("Longshore-Idempotency-Key-Base64", "?", "is not base64"),
            ("Longshore-Idempotency-Key-Base64", "/w==", "is not UTF-8"),
            ("Longshore-Dealy", "5m", "is not known; did you mean Longshore-Delay?"),
            ("longshore-idempotencykey", "k", "is not known; did you mean Longshore-Idempotency-Key?"),
            ("Longshore-Colour", "red", "is not known: names that begin with Longshore- are reserved"),
            ("Longshore-Tenant", "acme", "is reserved: only nodes write it"),
            ("Longshore-Unique", "active", "needs a Longshore-Idempotency-Key"),
            ("Longshore-Idempotency-Window", "5m", "needs a Longshore-Idempotency-Key"),
        ] {
            let error = read_job(&headers(&[(name, value)])).unwrap_err().to_string();
            assert!(error.starts_with(&format!("header {name}: ")) && error.contains(reason), "{error}");
        }
    }

    #[test]
    fn two_headers_for_one_thing_contradict_each_other() {
        for (one, other) in ONE_OF {
            let values = [one, other].map(|name| match name {
                "Run-At" | "Expires-At" => "2027-01-01T00:00:00Z",
                "Delay" | "Expires-In" => "5m",
                _ => "YQ==",
            });
            let names = [one, other].map(|name| format!("Longshore-{name}"));
            let error = read_job(&headers(&[(&names[0], values[0]), (&names[1], values[1])])).unwrap_err().to_string();
            assert!(error.starts_with(&format!("header {}: stands beside {}", names[1], names[0])), "{error}");
        }
    }

    #[test]
    fn a_message_is_stored_for_whole_seconds_and_never_too_short() {
        let asked = |ms| ttl(std::time::Duration::from_millis(ms));
        assert_eq!([0, 999, 1_999, 2_000].map(asked), ["1s", "1s", "2s", "2s"]);
        assert_eq!(asked(u64::MAX), "3153600000s", "the server can still say when it ends");
    }

    /// The headers as they come from the wire.
    fn over_the_wire(headers: &HeaderMap) -> HeaderMap {
        let lines = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
        let text = lines.fold("NATS/1.0\r\n".to_owned(), |text, (name, value)| text + &format!("{name}: {value}\r\n"));
        crate::messages::raw::parse(text.as_bytes()).unwrap()
    }

    fn key() -> impl Strategy<Value = String> {
        let any_text = prop_oneof![any::<String>(), "[ \t\r\n\u{0}\u{a0}\u{2028}a:]{1,9}"];
        any_text.prop_filter("1 to 512 bytes", |key| (1..=KEY_MAX).contains(&key.len()))
    }

    proptest! {
        #[test]
        fn a_key_may_be_any_text((idempotency, concurrency, limit) in (key(), key(), key())) {
            let kind = KindKey::of_keys(Some(&limit), Some(&concurrency));
            let options = JobOptions {
                idempotency_key: Some(idempotency),
                concurrency_key: Some(concurrency),
                limit_key: Some(limit),
                ..JobOptions::default()
            };
            let mut written = HeaderMap::new();
            write_options(&options, &mut written);
            let read = over_the_wire(&written);
            prop_assert_eq!(kind_key(Some(&read)), kind);
            prop_assert_eq!(*read_job(&read).unwrap().options.unwrap(), options);
        }
    }
}
