//! The values of headers: their bounds, and how each kind is read.

use std::time::Duration;

use longshore_domain::job::{Unique, When};
use longshore_domain::{Timestamp, duration};

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
/// Maximum time for which a message is stored that says how long, in seconds.
const TTL_MAX: u64 = 100 * 365 * 24 * 60 * 60;

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
    Unique::parse(value).ok_or_else(|| format!("{value:?} is not one of {}", Unique::NAMES.join(", ")))
}

pub(super) fn number(value: &str, max: u32) -> Result<u32, String> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit()).then_some(value);
    digits
        .and_then(|digits| digits.parse().ok())
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

/// Whether a header can carry this text: its value ends with the line, and blanks around it are not part of it.
pub fn fits_header(text: &str) -> bool {
    text.trim().len() == text.len() && !text.contains(char::is_control)
}

pub(super) fn span(value: &str) -> Result<Duration, String> {
    duration::parse(value).map_err(|error| error.to_string())
}

/// A span that must not be zero.
pub(crate) fn positive(value: &str) -> Result<Duration, String> {
    span(value).and_then(|span| if span.is_zero() { Err("is zero".to_owned()) } else { Ok(span) })
}

/// How long a message is stored, as the server is asked for it: in whole seconds, rounded up, and one at least. At most
/// a hundred years: one that ends after 2262, which the server counts in nanoseconds since 1970, would be gone at once.
pub(crate) fn ttl(lasts: Duration) -> String {
    let begun = u64::from(lasts.subsec_nanos() > 0);
    format!("{}s", lasts.as_secs().saturating_add(begun).clamp(1, TTL_MAX))
}

pub(super) fn moment(value: &str) -> Result<Timestamp, String> {
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

/// Reads a deadline: a time, or a duration above zero.
///
/// # Errors
/// It is neither.
pub fn deadline(value: &str) -> Result<When, String> {
    if duration::parse(value).is_ok() {
        return positive(value).map(When::After);
    }
    moment(value).map(When::At).map_err(|_| format!("{value:?} is neither an RFC 3339 time nor a duration such as 30s"))
}
