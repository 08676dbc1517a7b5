//! The result of a job whose service has answered.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, SET_COOKIE};
use longshore_actors::HandlerError;
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

/// The answer as JSON: its body as JSON if it is that as a whole, else as text, or else in base64.
///
/// # Errors
/// None that is known.
pub(super) fn result(answer: &Answer) -> Result<Bytes, HandlerError> {
    let body = body(answer);
    let reply = Reply {
        status: answer.status,
        headers: headers(answer),
        body_base64: (body.is_none() && !answer.body.is_empty()).then(|| STANDARD.encode(&answer.body)),
        body,
        truncated: answer.truncated,
    };
    Ok(serde_json::to_vec(&reply)?.into())
}

fn body(answer: &Answer) -> Option<Body<'_>> {
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let json = || serde_json::from_slice(&answer.body).ok().filter(|_| kind.contains("json") && !answer.truncated);
    let text = || std::str::from_utf8(&answer.body).ok().filter(|text| !text.is_empty());
    json().map(Body::Json).or_else(|| text().map(Body::Text))
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
