//! The table of a job's options as headers: the name of each, how its value is read, and how it is written. Which
//! headers exclude each other is the business of the reader of all headers.

use async_nats::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longshore_domain::job::{Unique, When};
use longshore_domain::{BatchId, DurationText, JobOptions};

use super::then;
use super::value::{
    ATTEMPTS_MAX, COST_MAX, KEY_MAX, TAG_MAX, deadline, fits_header, moment, number, positive, run_at, span, tags,
    text, unique,
};

/// The beginning of every name.
pub(super) const PREFIX: &str = "Longshore-";

/// One header. A value that a key or a time has may have to stand in the next one.
pub(super) struct JobOption {
    name: &'static str,
    pub(super) read: fn(&str, &mut JobOptions) -> Result<(), String>,
    write: fn(&JobOptions) -> Option<String>,
}

impl JobOption {
    /// The option of a header, by its name without the prefix.
    pub(super) fn named(short: &str) -> Option<&'static Self> {
        OPTIONS.iter().find(|option| option.short().eq_ignore_ascii_case(short))
    }

    pub(super) fn short(&self) -> &'static str {
        &self.name[PREFIX.len()..]
    }
}

/// The option of a field that may be absent: reads a text into the field's value, and writes it, as far as this header
/// can carry it.
macro_rules! option {
    ($name:literal, $field:ident, $read:expr, $write:expr) => {
        JobOption {
            name: $name,
            read: |value, options| {
                options.$field = Some($read(value)?);
                Ok(())
            },
            write: |options| options.$field.as_ref().and_then($write),
        }
    };
}

pub(super) static OPTIONS: [JobOption; 22] = [
    option!("Longshore-Idempotency-Key", idempotency_key, key, plain),
    option!("Longshore-Idempotency-Key-Base64", idempotency_key, encoded_key, encoded),
    option!("Longshore-Idempotency-Window", idempotency_window, positive, |window| after(&When::After(*window))),
    JobOption {
        name: "Longshore-Unique",
        read: |value, options| {
            options.unique = unique(value)?;
            Ok(())
        },
        write: |options| (options.unique != Unique::Window).then(|| options.unique.as_str().to_owned()),
    },
    option!("Longshore-Max-Attempts", max_attempts, |value| number(value, ATTEMPTS_MAX), as_text),
    option!("Longshore-Retry", retry, |value| text(value, TAG_MAX), as_text),
    option!("Longshore-Run-At", run_at, |value| run_at(value).map(When::At), at),
    option!("Longshore-Delay", run_at, |value| span(value).map(When::After), after),
    option!("Longshore-Timeout", timeout, positive, |timeout| after(&When::After(*timeout))),
    option!("Longshore-Deadline", deadline, deadline, |deadline| at(deadline).or_else(|| after(deadline))),
    option!("Longshore-Expires-At", expires, |value| moment(value).map(When::At), at),
    option!("Longshore-Expires-In", expires, |value| positive(value).map(When::After), after),
    option!("Longshore-Concurrency-Key", concurrency_key, key, plain),
    option!("Longshore-Concurrency-Key-Base64", concurrency_key, encoded_key, encoded),
    option!("Longshore-Limit-Key", limit_key, key, plain),
    option!("Longshore-Limit-Key-Base64", limit_key, encoded_key, encoded),
    option!("Longshore-Cost", cost, |value| number(value, COST_MAX), as_text),
    option!("Longshore-Keep", keep, span, |keep| after(&When::After(*keep))),
    option!("Longshore-Schema-Version", schema_version, |value| text(value, TAG_MAX), as_text),
    option!("Longshore-Then", then, then::read, |then| Some(then.job.clone())),
    option!("Longshore-Batch-Id", batch, batch, as_text),
    JobOption {
        name: "Longshore-Tags",
        read: |value, options| {
            options.tags = tags(value.split(','))?;
            Ok(())
        },
        write: |options| (!options.tags.is_empty()).then(|| options.tags.join(",")),
    },
];

/// Writes the options of a `submit` as the headers of a job.
pub fn write_options(options: &JobOptions, headers: &mut HeaderMap) {
    for option in &OPTIONS {
        if let Some(value) = (option.write)(options) {
            headers.insert(option.name, value);
        }
    }
}

fn key(value: &str) -> Result<String, String> {
    text(value, KEY_MAX)
}

fn batch(value: &str) -> Result<BatchId, String> {
    BatchId::parse(value).map_err(|error| error.reason)
}

pub(super) fn encoded_key(value: &str) -> Result<String, String> {
    let bytes = STANDARD.decode(value).map_err(|error| format!("is not base64: {error}"))?;
    let decoded = String::from_utf8(bytes).map_err(|_| "is not UTF-8 in base64".to_owned())?;
    text(&decoded, KEY_MAX)
}

#[expect(clippy::ptr_arg, reason = "the field is a String")]
fn plain(key: &String) -> Option<String> {
    fits_header(key).then(|| key.clone())
}

fn encoded(key: &String) -> Option<String> {
    (!fits_header(key)).then(|| STANDARD.encode(key))
}

#[expect(clippy::unnecessary_wraps, reason = "other headers cannot carry every value")]
fn as_text(value: &impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn at(when: &When) -> Option<String> {
    if let When::At(at) = when { Some(at.to_string()) } else { None }
}

fn after(when: &When) -> Option<String> {
    if let When::After(span) = when { Some(DurationText(*span).to_string()) } else { None }
}
