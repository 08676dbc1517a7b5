//! Whether two jobs of one idempotency key are the same: by their type and payload.
//!
//! A client repeats itself with the same bytes as a rule. One that comes back after a restart, or another program that
//! repeats for it, may write the same JSON otherwise: with other blanks, members in another order, other escapes. So
//! payloads of the same JSON value are the same, too. Numbers are compared as they are written: a reader may
//! distinguish `1` from `1.0`, and nothing is rounded.

use std::borrow::Cow;

use async_nats::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::digest::Output;
use sha2::{Digest as _, Sha256};

use crate::wire::header::{names, value_of};
use crate::wire::record::is_json;

/// What a claim says about the job that made it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fingerprint {
    /// A hash of type and payload, byte for byte.
    #[serde(rename = "fingerprint")]
    bytes: String,
    /// A hash of type and JSON value, if the payload is JSON. Claims of earlier versions have none.
    #[serde(default, rename = "same_json", skip_serializing_if = "Option::is_none")]
    json: Option<String>,
}

impl Fingerprint {
    /// The fingerprint of a job.
    pub fn of(job_type: &str, headers: Option<&HeaderMap>, payload: &[u8]) -> Self {
        let hash = |payload: &[u8]| {
            let hash = Sha256::new().chain_update(job_type.as_bytes()).chain_update([0]).chain_update(payload);
            hex(&hash.finalize()[..16])
        };
        let content_type = headers.and_then(|headers| value_of(headers, names::CONTENT_TYPE));
        // Where the headers say nothing, the payload is meant as JSON.
        let is_called_json = content_type.is_none_or(is_json);
        let json = is_called_json.then(|| serde_json::from_slice::<&RawValue>(payload).ok()).flatten();
        Self { bytes: hash(payload), json: json.map(|json| hash(&digest(json.get()))) }
    }

    /// Whether both are of the same job.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.bytes == other.bytes || self.json.is_some() && self.json == other.json
    }
}

/// A hash of a JSON value, whose text is known to be JSON. It takes one pass however deep the value is.
fn digest(json: &str) -> Output<Sha256> {
    let mut open = Vec::new();
    let mut innermost = Open::List(Sha256::new());
    let mut rest = json;
    while let Some(first) = rest.bytes().next() {
        let (token, behind) = rest.split_at(length(rest));
        rest = behind;
        match first {
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => {}
            b'[' => open.push(std::mem::replace(&mut innermost, Open::List(Sha256::new()))),
            b'{' => open.push(std::mem::replace(&mut innermost, Open::Object { members: Vec::new(), name: None })),
            b']' | b'}' => {
                let Some(outer) = open.pop() else { break };
                let closed = std::mem::replace(&mut innermost, outer);
                innermost.take(first, &closed.digest());
            }
            b'"' => innermost.take(first, &unescaped(token)),
            _ => innermost.take(0, token.as_bytes()),
        }
    }
    innermost.digest()
}

/// The length of the first token of JSON: one byte, except for texts, numbers and words.
fn length(json: &str) -> usize {
    let bytes = json.as_bytes();
    match bytes[0] {
        b'"' => {
            let mut at = 1;
            while let Some(byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                at += if *byte == b'\\' { 2 } else { 1 };
            }
            bytes.len().min(at + 1)
        }
        b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' | b'[' | b']' | b'{' | b'}' => 1,
        _ => json.find([' ', '\t', '\n', '\r', ',', ']', '}']).unwrap_or(bytes.len()),
    }
}

/// A text in quotes as the bytes that it stands for. Half a surrogate pair stands for nothing: such a text stays as it
/// is, behind a byte that no other one has.
fn unescaped(quoted: &str) -> Cow<'_, [u8]> {
    let inner = &quoted[1..quoted.len() - 1];
    if !inner.contains('\\') {
        return Cow::Borrowed(inner.as_bytes());
    }
    Cow::Owned(match serde_json::from_str::<String>(quoted) {
        Ok(text) => text.into_bytes(),
        Err(_) => [&[0xff], inner.as_bytes()].concat(),
    })
}

/// A list or an object whose end was not read yet.
enum Open {
    List(Sha256),
    Object {
        /// The members that were read: name, kind, value.
        members: Vec<(Vec<u8>, u8, Vec<u8>)>,
        /// The name of the member that is being read.
        name: Option<Vec<u8>>,
    },
}

impl Open {
    /// Takes what comes next in it: a value of this kind, or the name of a member.
    fn take(&mut self, kind: u8, value: &[u8]) {
        match self {
            Self::List(hash) => add(hash, kind, value),
            Self::Object { members, name } => match name.take() {
                None => *name = Some(value.to_vec()),
                Some(name) => members.push((name, kind, value.to_vec())),
            },
        }
    }

    fn digest(self) -> Output<Sha256> {
        match self {
            Self::List(hash) => hash.finalize(),
            Self::Object { mut members, .. } => {
                // The order of members says nothing, unless two have the same name: the sort keeps that.
                members.sort_by(|(one, ..), (other, ..)| one.cmp(other));
                let mut hash = Sha256::new();
                for (name, kind, value) in members {
                    add(&mut hash, b'"', &name);
                    add(&mut hash, kind, &value);
                }
                hash.finalize()
            }
        }
    }
}

/// Adds a value so that no two sequences of values are the same bytes.
fn add(hash: &mut Sha256, kind: u8, value: &[u8]) {
    hash.update([kind]);
    hash.update((value.len() as u64).to_be_bytes());
    hash.update(value);
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_same(one: &str, other: &str) -> bool {
        let of = |payload: &str| Fingerprint::of("t", None, payload.as_bytes());
        of(one).is_same_as(&of(other))
    }

    #[test]
    fn the_same_value_is_the_same_job_however_it_is_written() {
        for (one, other) in [
            (r#"{"b":1}"#, " { \"b\" :\t1\r\n} "),
            (r#"{"a":1,"b":[{"c":2,"d":null}]}"#, r#"{"b": [{"d": null, "c": 2}], "a": 1}"#),
            (r#""\u00fc\/\n""#, "\"ü/\\n\""),
            (r#"{"\u0061":"\ud83d\ude00"}"#, r#"{"a":"😀"}"#),
            (r#""\ud800""#, r#" "\ud800""#),
            ("not JSON", "not JSON"),
        ] {
            assert!(is_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn json_is_compared_as_such_however_its_content_type_is_written() {
        for (content_type, is_json) in [("Application/JSON", true), ("text/plain", false)] {
            let mut headers = HeaderMap::new();
            headers.insert(names::CONTENT_TYPE, content_type);
            let of = |payload: &[u8]| Fingerprint::of("t", Some(&headers), payload);
            assert_eq!(of(b"[1]").is_same_as(&of(b"[ 1 ]")), is_json, "{content_type}");
        }
    }

    #[test]
    fn another_value_is_another_job() {
        for (one, other) in [
            (r#"{"b":1}"#, r#"{"b":1.0}"#),
            ("12345678901234567890123", "12345678901234567890124"),
            ("1", r#""1""#),
            ("[1,2]", "[2,1]"),
            ("[1,2]", "[12]"),
            ("[1,[2]]", "[[1],2]"),
            ("[]", "{}"),
            ("[]", "[[]]"),
            (r#"["a"]"#, r#"{"a":[]}"#),
            (r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
            (r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#),
            (r#""a b""#, r#""ab""#),
            (r#""\ud800""#, r#""\\ud800""#),
            ("null", ""),
            ("not JSON", "not  JSON"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
        let of = |job_type| Fingerprint::of(job_type, None, b"1");
        assert!(!of("a").is_same_as(&of("b")));
    }

    #[test]
    fn bytes_of_another_content_type_are_compared_as_they_are() {
        let of = |kind: &str, payload: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("content-type", kind);
            Fingerprint::of("t", Some(&headers), payload.as_bytes())
        };
        for (kind, same) in [("application/json; charset=utf-8", true), ("text/csv", false)] {
            assert_eq!(of(kind, "[1]").is_same_as(&of(kind, "[ 1 ]")), same, "{kind}");
        }
    }

    #[test]
    fn a_claim_of_an_earlier_version_is_compared_by_its_bytes() {
        let now = Fingerprint::of("t", None, b"[1]");
        let text = serde_json::to_value(&now).unwrap();
        let before: Fingerprint =
            serde_json::from_value(serde_json::json!({"fingerprint": text["fingerprint"]})).unwrap();
        assert!(now.is_same_as(&before) && !Fingerprint::of("t", None, b"[ 1]").is_same_as(&before));
        assert_eq!(serde_json::from_value::<Fingerprint>(text).unwrap(), now);
    }

    #[test]
    fn no_depth_is_too_deep() {
        let deep = |blank: &str| format!("{}1{}", format!("[{blank}{{\"a\":").repeat(10_000), "}]".repeat(10_000));
        assert!(is_same(&deep(""), &deep(" ")) && !is_same(&deep(""), &deep("1,")));
    }

    /// A value.
    fn drawn() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                proptest::collection::vec((any::<String>(), inner), 0..4)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// The text of a value with its members backwards, all escaped, and with blanks.
    fn backwards(value: &serde_json::Value) -> String {
        let escaped = |text: &str| text.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect::<String>();
        match value {
            serde_json::Value::String(text) => format!(" \"{}\" ", escaped(text)),
            serde_json::Value::Array(items) => {
                format!("[\n{} ]", items.iter().map(backwards).collect::<Vec<_>>().join(" ,"))
            }
            serde_json::Value::Object(members) => {
                let member = |(name, value): (&String, _)| format!("\t\"{}\" : {}", escaped(name), backwards(value));
                format!("{{{}}}", members.iter().rev().map(member).collect::<Vec<_>>().join(","))
            }
            other => other.to_string(),
        }
    }

    proptest! {
        #[test]
        fn two_texts_are_the_same_just_if_their_values_are((one, other) in (drawn(), drawn())) {
            prop_assert!(is_same(&one.to_string(), &backwards(&one)));
            prop_assert_eq!(is_same(&one.to_string(), &backwards(&other)), one == other);
        }
    }
}
