//! JSON written out by hand, for what is written for every job.

use serde::Serialize;

/// Writes parts as they are: names and what the rules have checked, which JSON need not escape.
pub(super) fn text(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

pub(super) fn number(out: &mut Vec<u8>, number: u64) {
    // The encoder's own integer writer, which needs neither a formatter nor memory.
    json(out, &number);
}

/// Writes a text in quotes. Most need no escaping, which is seen here many bytes at a time; serde looks at each alone.
pub(super) fn quoted(out: &mut Vec<u8>, value: &str) {
    let plain = value.bytes().fold(true, |plain, byte| plain & (byte >= b' ') & (byte != b'"') & (byte != b'\\'));
    if plain {
        text(out, &["\"", value, "\""]);
    } else {
        json(out, value);
    }
}

/// Writes `,"name":` and a value.
pub(super) fn field<T: Serialize + ?Sized>(out: &mut Vec<u8>, name: &str, value: &T) {
    text(out, &[r#",""#, name, r#"":"#]);
    json(out, value);
}

/// The same, if there is a value.
pub(super) fn maybe<T: Serialize>(out: &mut Vec<u8>, name: &str, value: Option<&T>) {
    if let Some(value) = value {
        field(out, name, value);
    }
}

/// Writes a value that may need escaping, or is rare.
pub(super) fn json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Writing to memory cannot fail, and what is written here has no map with keys that are not text.
    let _ = serde_json::to_writer(out, value);
}
