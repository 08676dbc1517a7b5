//! Reads requests, and describes what is wrong with one without naming this program's types.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use longshore_domain::JobType;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::error::Category;
use serde_json::value::{RawValue, to_raw_value};

use super::ApiError;
use crate::wire::json::OrderedFields;
pub(super) use crate::wire::json::any_json;

/// What is wrong with a field that JSON readers may each take in another way.
const TWICE: &str = "stands twice";

/// The request of an endpoint that takes no fields.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Reads a request; the error names the field. No body at all is a request without fields.
///
/// # Errors
/// 400: it cannot be read.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.is_empty() { b"{}" } else { body };
    // Serde would read an array as the fields in the order in which this program has them.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(ApiError::malformed("the request is not a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let (path, error) = (error.path().to_string(), error.inner());
        // If the text itself is broken there is no field to name; the error says at which line and column.
        let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok();
        let reason = match error.classify() {
            // A number in the place of a word is an error of the text to serde_json.
            Category::Syntax if is_json() => "has a value of another kind than it may have".to_owned(),
            Category::Syntax | Category::Eof => {
                return ApiError::malformed(format!("the request is not JSON: {error}"));
            }
            _ => in_words(&error.to_string()),
        };
        match of_field(&reason) {
            Some((name, what)) if path == "." => ApiError::malformed(format!("{name}: {what}")),
            Some((name, what)) => ApiError::malformed(format!("{path}.{name}: {what}")),
            None if path == "." => ApiError::malformed(reason),
            None => ApiError::malformed(format!("{path}: {reason}")),
        }
    })?;
    reader.end().map_err(|error| ApiError::malformed(error.to_string()))?;
    Ok(value)
}

/// The fields of a request, each with its text.
///
/// # Errors
/// 400 if the request is not a JSON object, or has a field twice.
pub fn fields(body: &[u8]) -> Result<BTreeMap<String, Box<RawValue>>, ApiError> {
    let mut fields = BTreeMap::new();
    for (name, value) in read::<OrderedFields>(body)?.0 {
        if fields.contains_key(&name) {
            return Err(ApiError::malformed(format!("{name}: {TWICE}")));
        }
        fields.insert(name, value);
    }
    Ok(fields)
}

/// The same request about this tenant, for the operator to ask.
///
/// # Errors
/// 400 if the request is not a JSON object.
pub fn about_tenant(tenant: &str, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let mut fields = fields(body)?;
    fields.insert("tenant".to_owned(), to_raw_value(tenant).map_err(|error| ApiError::malformed(error.to_string()))?);
    serde_json::to_vec(&fields).map_err(|error| ApiError::malformed(error.to_string()))
}

/// Reads a field that is an object or `null`. Serde would read an array as the fields in the order in which this
/// program has them.
pub(super) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_option(Object(PhantomData))
}

struct Object<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

/// Reads the type that a client names: one that a job may have, not what stands for one that cannot be read.
pub(super) fn job_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<JobType, D::Error> {
    JobType::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// The field that serde names, and what is wrong with it.
fn of_field(reason: &str) -> Option<(&str, &'static str)> {
    let named = |begins: &str| reason.strip_prefix(begins)?.split('`').next();
    let missing = named("missing field `").map(|name| (name, "is missing"));
    missing.or_else(|| Some((named("duplicate field `")?, TWICE)))
}

/// The JSON reader's error, without the names of this program's types.
pub(super) fn in_words(error: &str) -> String {
    let mut words = error.to_owned();
    if let Some(at) = words.find("struct ") {
        let end = words[at + 7..].find(|c: char| !c.is_alphanumeric()).map_or(words.len(), |end| at + 7 + end);
        words.replace_range(at..end, "an object");
    }
    for (inner, plain) in [
        ("u64", "a whole number from 0 to 2^64 - 1"),
        ("usize", "a whole number from 0 to 2^64 - 1"),
        ("f64", "a number"),
        ("a sequence", "an array"),
        ("a map", "an object"),
    ] {
        words = words.replace(&format!("expected {inner}"), &format!("expected {plain}"));
    }
    for (inner, plain) in [("sequence", "array"), ("map", "object")] {
        words = words.replace(&format!("invalid type: {inner}"), &format!("invalid type: {plain}"));
    }
    words.replace("unknown variant", "unknown word")
}

#[cfg(test)]
mod tests {
    use super::super::{DlqReplay, Endpoint as _, Submit};

    #[test]
    fn an_error_names_the_field_and_does_not_speak_of_this_programs_types() {
        let replay = |body: &str| DlqReplay::read(body.as_bytes()).unwrap_err().message;
        for (body, said) in [
            ("7", "the request is not a JSON object"),
            ("[[]]", "the request is not a JSON object"),
            (r#"{"limit":-1}"#, "limit: invalid value: integer `-1`, expected a whole number from 0 to 2^64 - 1"),
            ("{", "the request is not JSON: EOF while parsing an object at line 1 column 1"),
            ("{\"all\":true,\n\"tag\":tru}", "the request is not JSON: expected ident at line 2 column 10"),
            (r#"{"set":{"headers":{"X"}}}"#, "the request is not JSON: expected `:` at line 1 column 23"),
            (r#"{"queue":{}}"#, "queue: invalid type: object, expected a string"),
            (r#"{"rate_per_s":"x"}"#, r#"rate_per_s: invalid type: string "x", expected a number"#),
            (r#"{"set":7}"#, "set: invalid type: integer `7`, expected an object"),
            (r#"{"set":["bulk"]}"#, "set: invalid type: array, expected an object"),
            (r#"{"set":{"headers":{"a":1}}}"#, "set.headers.a: invalid type: integer `1`, expected a string"),
            (r#"{"queue":"a","queue":"b"}"#, "queue: stands twice"),
            (r#"{"set":{"queue":"a","queue":"b"}}"#, "set.queue: stands twice"),
            (r#"{"set":{"tags":[]}}"#, "set.tags: unknown field `tags`, expected one of "),
            (r#"{"all":true} {}"#, "trailing characters"),
        ] {
            assert!(replay(body).starts_with(said), "{body}: {}", replay(body));
        }
        assert!(DlqReplay::read(br#"{"all":true,"set":null}"#).unwrap().set.is_none());
        let submit = |body: &str| Submit::read(body.as_bytes()).unwrap_err().message;
        assert!(submit(r#"{"type":"a","maximum":1}"#).starts_with("maximum: unknown field `maximum`, expected one of"));
        assert_eq!(submit("{}"), "type: is missing");
        assert!(submit(r#"{"type":"a","payload":{]}"#).starts_with("the request is not JSON: "));
        let limit = |body: &str| super::super::LimitsSet::read(body.as_bytes()).unwrap_err().message;
        assert!(limit(r#"{"type":"a","rate":5,"window":5}"#).starts_with("window: has a value of another kind"));
        assert!(submit(r#"{"type":"a","tags":{}}"#).starts_with("tags: invalid type: object, expected an array"));
    }
}
