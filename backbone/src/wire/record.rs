//! The run record's bytes.

use bytes::Bytes;
use longshore_domain::Run;
use serde_json::value::RawValue;

/// Largest result that a record keeps, in bytes.
pub const RESULT_MAX: usize = 64 * 1024;

/// Writes a record as it is stored.
#[must_use]
pub fn write(run: &Run) -> Bytes {
    let mut out = Vec::with_capacity(768);
    append(run, &mut out);
    Bytes::from(out)
}

/// Writes a record behind what is in `out`.
pub fn append(run: &Run, out: &mut Vec<u8>) {
    serde_json::to_writer(out, run).expect("a record has string keys only and is written to memory");
}

/// Reads a stored record.
///
/// # Errors
/// The bytes are not a record.
pub fn read(bytes: &[u8]) -> Result<Run, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// The record as an answer shows it: without what only the protocol needs.
#[must_use]
pub fn show(run: &Run) -> serde_json::Value {
    let mut value = serde_json::to_value(run).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        for inner in ["held_by", "origin", "token", "deferral", "deferrals"] {
            fields.remove(inner);
        }
        if run.attempt == 0 {
            fields.remove("attempt");
        }
    }
    value
}

/// The same, no longer than `most` bytes (1 KiB at least): error texts are cut, then attempts from the middle of the
/// history left out, as `attempts_left_out` says.
#[must_use]
pub fn show_within(run: &Run, most: usize) -> serde_json::Value {
    let whole = show(run);
    if length(&whole) <= most {
        return whole;
    }
    let mut short = run.clone();
    (short.result, short.progress) = (None, None);
    for error in short.attempts.iter_mut().filter_map(|attempt| attempt.error.as_mut()).chain(&mut short.error) {
        error.message.truncate(error.message.floor_char_boundary(SHORT_MESSAGE));
    }
    let mut left_out = 0;
    loop {
        let mut value = show(&short);
        if left_out > 0 {
            value["attempts_left_out"] = serde_json::json!(left_out);
        }
        if length(&value) <= most || short.attempts.len() <= 2 {
            return value;
        }
        // The first and the last say most: what is left out is what lies between.
        let go = (short.attempts.len() / 4).max(1);
        let from = (short.attempts.len() - go) / 2;
        short.attempts.drain(from..from + go);
        left_out += go;
    }
}

/// How much of an error's text a letter keeps where the whole does not fit.
const SHORT_MESSAGE: usize = 200;

fn length(value: &serde_json::Value) -> usize {
    value.to_string().len()
}

/// Reads a record back from what [`show`] made of it.
///
/// # Errors
/// It is none.
pub fn read_shown(text: &str) -> Result<Run, serde_json::Error> {
    let mut value: serde_json::Value = serde_json::from_str(text)?;
    if let Some(fields) = value.as_object_mut() {
        fields.entry("attempt").or_insert_with(|| 0.into());
    }
    serde_json::from_value(value)
}

/// A result as the record keeps it: JSON as it is, anything else in base64, nothing above [`RESULT_MAX`].
#[must_use]
pub fn keep(result: &Bytes, content_type: Option<&str>) -> longshore_domain::run::RunResult {
    use base64::Engine as _;
    use longshore_domain::run::RunResult;
    if result.is_empty() {
        return RunResult::None;
    }
    if result.len() > RESULT_MAX {
        return RunResult::TooLarge(result.len() as u64);
    }
    let json = content_type.is_none_or(|kind| kind.contains("json"));
    match serde_json::from_slice::<Box<RawValue>>(result) {
        Ok(value) if json => RunResult::Json(value),
        _ => RunResult::Other {
            base64: base64::engine::general_purpose::STANDARD.encode(result),
            content_type: content_type.map(str::to_owned),
        },
    }
}
