//! The result of a job whose service has answered.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, SET_COOKIE};
use longshore_actors::HandlerError;
use longshore_backbone::wire::record::{RESULT_MAX, is_json};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::outbound::Answer;

/// How many bytes of headers are in a result.
const HEADERS: usize = 8 << 10;

#[derive(Serialize)]
struct Reply<'a> {
    status: u16,
    headers: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Body<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

/// The answer as JSON: its body as JSON if it is that as a whole, else as text, or else in base64. Of one that a record
/// would not keep it has the beginning of the body, so that status and headers are there all the same.
pub(super) fn result(mut answer: Answer) -> Result<Bytes, HandlerError> {
    loop {
        let result = written(&answer)?;
        if result.len() <= RESULT_MAX {
            return Ok(result.into());
        }
        // What is beside the body is far shorter than that ([`HEADERS`]), so this comes to an end.
        answer.body.truncate(answer.body.len() * RESULT_MAX / result.len());
        answer.truncated = true;
    }
}

fn written(answer: &Answer) -> serde_json::Result<Vec<u8>> {
    let body = body(answer);
    serde_json::to_vec(&Reply {
        status: answer.status,
        headers: headers(answer),
        body_base64: (body.is_none() && !answer.body.is_empty()).then(|| STANDARD.encode(&answer.body)),
        body,
        truncated: answer.truncated,
    })
}

fn body(answer: &Answer) -> Option<Body<'_>> {
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_whole_json = is_json(kind) && !answer.truncated;
    let json = || is_whole_json.then(|| serde_json::from_slice(&answer.body).ok()).flatten();
    json().map(Body::Json).or_else(|| text(answer).filter(|text| !text.is_empty()).map(Body::Text))
}

/// The body, if it is text; one that was cut may end within a letter.
fn text(answer: &Answer) -> Option<&str> {
    match std::str::from_utf8(&answer.body) {
        Ok(text) => Some(text),
        Err(error) if answer.truncated && error.error_len().is_none() => {
            std::str::from_utf8(&answer.body[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

/// Names in small letters; a header that is there several times has all values, with commas between them. Cookies are
/// left out, as they are credentials, and so is what goes beyond the bound.
fn headers(answer: &Answer) -> Map<String, Value> {
    let (mut map, mut bytes) = (Map::new(), 0);
    for name in answer.headers.keys().filter(|name| **name != SET_COOKIE) {
        let values: Vec<_> =
            answer.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        let text = values.join(", ");
        bytes += name.as_str().len() + text.len();
        if bytes > HEADERS {
            break;
        }
        map.insert(name.to_string(), text.into());
    }
    map
}
