//! Answers without the payloads and results of some types.

use std::collections::BTreeMap;

use longshore_domain::JobType;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::wire::header::then;
use crate::wire::json::Object;

/// Fields that are a payload, a result, or their bytes.
const HIDDEN: [&str; 4] = ["payload", "payload_base64", "result", "result_base64"];
/// Fields that hold what clients and handlers wrote: nothing in them is the answer's own.
const FOREIGN: [&str; 4] = ["payload", "result", "progress", "headers"];

/// The answer in which each run, dead letter, schedule or payload of a type that `hides` has `"redacted":true` in place
/// of payload and result; `None`: it has none of them.
pub fn redact(answer: &Object, hides: &dyn Fn(&JobType) -> bool) -> Option<Object> {
    redact_event(answer.as_bytes(), hides).map(Object::written)
}

/// The same of an event, as JSON in one line.
pub fn redact_event(json: &[u8], hides: &dyn Fn(&JobType) -> bool) -> Option<Vec<u8>> {
    Some(without(serde_json::from_slice(json).ok()?, hides)?.get().as_bytes().to_vec())
}

/// The value without them; `None`: it stays as it is.
fn without(value: &RawValue, hides: &dyn Fn(&JobType) -> bool) -> Option<Box<RawValue>> {
    match value.get().as_bytes().first()? {
        b'[' => {
            let each: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
            let shorter: Vec<_> = each.iter().map(|value| without(value, hides)).collect();
            shorter.iter().any(Option::is_some).then_some(())?;
            let kept = shorter.iter().zip(each).map(|(shorter, whole)| shorter.as_deref().unwrap_or(whole));
            to_raw_value(&kept.collect::<Vec<_>>()).ok()
        }
        b'{' => {
            // Names as text of their own, as one with an escape cannot be borrowed.
            let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
            let job_type = fields.get("type").and_then(|value| JobType::deserialize(*value).ok());
            let named = fields.len();
            if job_type.is_some_and(|job_type| hides(&job_type)) {
                fields.retain(|name, _| !HIDDEN.contains(&name.as_str()));
            }
            let is_redacted = fields.len() < named;
            let own = fields.iter().filter(|(name, _)| !FOREIGN.contains(&name.as_str()));
            let headers = fields.get_key_value("headers").and_then(|(name, value)| {
                let shorter = headers_without(value, hides)?;
                Some((name.clone(), shorter))
            });
            let shorter: Vec<_> =
                own.filter_map(|(name, value)| Some((name.clone(), without(value, hides)?))).chain(headers).collect();
            (is_redacted || !shorter.is_empty()).then_some(())?;
            fields.extend(shorter.iter().map(|(name, value)| (name.clone(), &**value)));
            let redacted = is_redacted.then(|| to_raw_value(&true)).transpose().ok()?;
            fields.extend(redacted.as_deref().map(|redacted| ("redacted".to_owned(), redacted)));
            to_raw_value(&fields).ok()
        }
        _ => None,
    }
}

/// The headers without them: one holds the job that follows.
fn headers_without(headers: &RawValue, hides: &dyn Fn(&JobType) -> bool) -> Option<Box<RawValue>> {
    let mut all: BTreeMap<String, String> = serde_json::from_str(headers.get()).ok()?;
    let follows = all.get_mut(then::NAME)?;
    *follows = without(serde_json::from_str(follows).ok()?, hides)?.get().to_owned();
    to_raw_value(&all).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_and_result_of_its_types_go_and_everything_else_stays_byte_for_byte() {
        let redacted = |text: &str| {
            let answer = Object::read(text.as_bytes()).unwrap();
            let redacted = redact(&answer, &|job_type| job_type.as_str() == "card");
            redacted.map(|answer| String::from_utf8(answer.into_bytes()).unwrap())
        };
        for (whole, without) in [
            (r#"{"run_id":"a","type":"card","result":{"n":1}}"#, r#"{"redacted":true,"run_id":"a","type":"card"}"#),
            (r#"{"payload_base64":"MQ==","type":"card"}"#, r#"{"redacted":true,"type":"card"}"#),
            (r#"{"\n":0,"run":{"type":"card","result":1}}"#, r#"{"\n":0,"run":{"redacted":true,"type":"card"}}"#),
            (
                r#"{"runs":[{"type":"card","payload":1},{"type":"other","result":1.50}],"cursor":"c"}"#,
                r#"{"cursor":"c","runs":[{"redacted":true,"type":"card"},{"type":"other","result":1.50}]}"#,
            ),
            (
                r#"{"headers":{"A":"{","Longshore-Then":"{\"type\":\"card\",\"payload\":1}"},"payload":2,"type":"other"}"#,
                r#"{"headers":{"A":"{","Longshore-Then":"{\"redacted\":true,\"type\":\"card\"}"},"payload":2,"type":"other"}"#,
            ),
        ] {
            assert_eq!(redacted(whole).as_deref(), Some(without));
        }
        for stays in [
            r#"{"type":"other","result":{"type":"card","result":12345678901234567890.10}}"#,
            r#"{"type":"card","state":"running"}"#,
            r#"{"headers":{"Longshore-Then":"{\"type\":\"other\",\"payload\":1}"},"type":"other"}"#,
            r#"{"runs":[],"n":[1,"a",null]}"#,
        ] {
            assert_eq!(redacted(stays), None);
        }
    }
}
