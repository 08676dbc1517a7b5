//! Stored messages byte for byte, as `get` reads them, and what the client library cannot read in them.
//!
//! The check here must agree with the client's own parser, line for line: what the client cannot read ends its
//! connection, so it must be found; what it can read must not be taken for broken. A test runs both on the same bytes.
//! The check is stricter in one point: only the server sets a status in the first header line, so a message with one is
//! never a job.

use std::str::FromStr as _;

use async_nats::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use bytes::Bytes;
use longshore_domain::Timestamp;

#[derive(Debug, Clone)]
pub(crate) struct Raw {
    /// Its subject; bytes in it that are not UTF-8 appear as U+FFFD.
    pub(crate) subject: String,
    pub(crate) sequence: u64,
    pub(crate) at: Timestamp,
    /// Its headers, including their first line; empty if it has none.
    pub(crate) headers: Bytes,
    pub(crate) payload: Bytes,
}

/// The part of a message that the client library cannot read; `None`: it can read all of it.
pub(crate) fn fault(subject: &str, headers: &[u8]) -> Option<String> {
    if subject.contains('\u{fffd}') {
        return Some("subject: is not UTF-8".to_owned());
    }
    if headers.is_empty() {
        return None;
    }
    if subject.contains(char::is_whitespace) {
        return Some("subject: has a blank".to_owned());
    }
    parse(headers).err().map(|reason| format!("headers: {reason}"))
}

/// As [`fault`] for the headers of a message that came straight from the server, which may set a status.
pub(crate) fn fault_on_the_way(headers: &[u8]) -> Option<String> {
    text(headers).and_then(|text| read(text, Status::Allowed, &mut |_, _| {})).err()
}

/// The headers that can be read, line by line, whatever the other lines are.
pub(crate) fn readable(headers: &[u8]) -> HeaderMap {
    let mut all = HeaderMap::new();
    for line in headers.split(|byte| *byte == b'\n').skip(1) {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let Some((name, value)) = line.strip_suffix('\r').unwrap_or(line).split_once(':') else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::from_str(name), HeaderValue::from_str(value.trim())) {
            all.append(name, value);
        }
    }
    all
}

/// Parses headers from their bytes on the wire, for a message whose headers were not parsed when it was read.
pub(crate) fn parse(headers: &[u8]) -> Result<HeaderMap, String> {
    let mut all = HeaderMap::new();
    let text = text(headers)?;
    if !text.is_empty() {
        read(text, Status::Refused, &mut |name, value| all.append(name, value))?;
    }
    Ok(all)
}

/// Headers as text; the error names the first header that is none, or its line if it has no name.
fn text(headers: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(headers).map_err(|error| {
        let before = &headers[..error.valid_up_to()];
        let line = &before[before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)..];
        let name = std::str::from_utf8(line).ok().and_then(|line| line.split_once(':')).map(|(name, _)| name);
        match name.filter(|name| HeaderName::from_str(name).is_ok()) {
            Some(name) => format!("{name} is not UTF-8"),
            None => format!("line {} is not UTF-8", 1 + before.iter().filter(|byte| **byte == b'\n').count()),
        }
    })
}

/// Whether the first line may have a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Allowed,
    Refused,
}

/// Reads headers as the client library does, except for the status, which the library takes from the first line. Why
/// they cannot be read is logged, so it quotes no line: half a header may be a password.
fn read(text: &str, status: Status, take: &mut dyn FnMut(HeaderName, HeaderValue)) -> Result<(), String> {
    let mut lines = (1..).zip(text.lines()).peekable();
    match lines.next().and_then(|(_, first)| first.strip_prefix("NATS/1.0")) {
        None => return Err("do not begin with NATS/1.0".to_owned()),
        Some(rest) if status == Status::Allowed && is_status(rest.trim()) => {}
        Some(rest) if !rest.trim().is_empty() => return Err("have more than NATS/1.0 in the first line".to_owned()),
        Some(_) => {}
    }
    while let Some((number, line)) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| format!("line {number} has no colon"))?;
        let header = HeaderName::from_str(name).map_err(|_| format!("line {number} has a name that is not valid"))?;
        let mut value = value.trim_start().to_owned();
        while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        value.truncate(value.trim_end().len());
        let value = HeaderValue::from_str(&value).map_err(|_| format!("{name} has a carriage return in its value"))?;
        take(header, value);
    }
    Ok(())
}

/// Whether the client library can read the rest of a first line as a status and its description.
fn is_status(rest: &str) -> bool {
    let code = rest.split_once(' ').map_or(rest, |(code, _)| code.trim());
    code.parse::<StatusCode>().is_ok()
}

#[cfg(test)]
mod tests;
