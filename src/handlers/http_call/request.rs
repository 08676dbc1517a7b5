//! The request of a job: of the target that its type fixes, or of its payload; and what a redirect makes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Uri};
use longshore_actors::{Context, HandlerError};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::value::RawValue;
use url::Url;

use super::super::payload;
use super::Call;

const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];
/// Headers that belong to the connection, or would lead the request elsewhere.
const REFUSED: [&str; 11] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Headers of the job that go with the request: the trace that it belongs to.
const PASSED_ON: [&str; 2] = ["traceparent", "tracestate"];
/// What a URL needs no escape for.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A target that does not depend on the job, but for what is filled in.
#[derive(Debug)]
pub(crate) struct CallTarget {
    url: String,
    method: Method,
    headers: HeaderMap,
}

impl CallTarget {
    pub(crate) fn new(url: String, method: Method, headers: HeaderMap) -> Self {
        Self { url, method, headers }
    }

    /// The address for some job, or why it is none.
    pub(crate) fn example(&self) -> Result<Uri, String> {
        let host = self.url.split_once("://").map_or("", |(_, rest)| rest).split(['/', '?', '#']).next();
        if host.is_some_and(|host| host.contains('{')) {
            return Err("fills in its host, which has to be fixed".to_owned());
        }
        let url = self.filled(|_| "x".to_owned());
        if url.contains(['{', '}']) {
            return Err("has braces around something else than run_id, tenant or type".to_owned());
        }
        url.parse().map_err(|error| format!("is no URL: {error}"))
    }

    fn filled(&self, value: impl Fn(&str) -> String) -> String {
        let fill = |url: String, name: &str| url.replace(&format!("{{{name}}}"), &value(name));
        ["run_id", "tenant", "type"].into_iter().fold(self.url.clone(), fill)
    }

    pub(super) fn call(&self, context: &Context) -> Result<Call, HandlerError> {
        let job = &context.job;
        let url = self.filled(|name| {
            let value = match name {
                "run_id" => job.run_id.as_str(),
                "tenant" => job.tenant.as_str(),
                _ => job.job_type.as_str(),
            };
            utf8_percent_encode(value, PLAIN).to_string()
        });
        let url = url.parse().map_err(|error| HandlerError::permanent(format!("url: {error}")))?;
        let has_body = ![Method::GET, Method::HEAD].contains(&self.method);
        let body = if has_body { context.payload.clone() } else { Bytes::new() };
        let mut headers = HeaderMap::new();
        if !body.is_empty() {
            let own = header_of(context, CONTENT_TYPE.as_str()).and_then(|text| HeaderValue::from_str(text).ok());
            headers.insert(CONTENT_TYPE, own.unwrap_or(HeaderValue::from_static("application/json")));
        }
        headers.extend(self.headers.clone());
        Ok(Call { method: self.method.clone(), url, headers, body, within: None })
    }
}

/// A method by its name, if a request may have it.
pub(crate) fn method(name: &str) -> Result<Method, String> {
    let known = METHODS.iter().find(|method| method.as_str() == name);
    let names = || METHODS.each_ref().map(Method::as_str).join(", ");
    known.cloned().ok_or_else(|| format!("{name:?} is not one of {}", names()))
}

/// Headers that somebody sets; their values are kept out of all output, also of the error that names a wrong one.
pub(crate) fn request_headers(headers: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, text) in headers {
        let wrong = || format!("{name:?} is no header, or its value has a control character");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(text).map_err(|_| wrong())?;
        if REFUSED.contains(&name.as_str()) {
            return Err(format!("{name} cannot be set"));
        }
        value.set_sensitive(true);
        map.append(name, value);
    }
    Ok(map)
}

/// What every request says: whose it is, and the trace that it belongs to.
pub(super) fn usual_headers(context: &Context) -> Result<HeaderMap, HandlerError> {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("longshore/", env!("CARGO_PKG_VERSION"))));
    headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_str(context.run_id().as_str())?);
    for name in PASSED_ON {
        if let Some(value) = header_of(context, name).and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    }
    Ok(headers)
}

fn header_of<'c>(context: &'c Context, name: &str) -> Option<&'c str> {
    let header = context.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
    header.map(|(_, text)| text.as_str())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallPayload {
    method: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Box<RawValue>>,
    body_base64: Option<String>,
    timeout_ms: Option<u64>,
}

/// The request that the payload names; a field that is wrong fails the job for good.
pub(super) fn of_payload(context: &Context) -> Result<Call, HandlerError> {
    let payload: CallPayload = payload(context)?;
    let wrong = |field: &str, reason: String| HandlerError::permanent(format!("payload: {field}: {reason}"));
    let method = method(&payload.method).map_err(|reason| wrong("method", reason))?;
    let url = payload.url.parse().map_err(|error| wrong("url", format!("is no URL: {error}")))?;
    let mut headers = request_headers(&payload.headers).map_err(|reason| wrong("headers", reason))?;
    let (body, kind) = match (&payload.body, &payload.body_base64) {
        (Some(_), Some(_)) => return Err(wrong("body_base64", "stands beside body; one of them is enough".to_owned())),
        (None, None) => (Bytes::new(), None),
        (None, Some(text)) => {
            let body = STANDARD.decode(text).map_err(|error| wrong("body_base64", error.to_string()))?;
            (body.into(), Some("application/octet-stream"))
        }
        // A text is sent as it is, any other value as JSON.
        (Some(body), None) => match serde_json::from_str::<String>(body.get()) {
            Ok(text) => (text.into(), Some("text/plain; charset=utf-8")),
            Err(_) => (body.get().to_owned().into(), Some("application/json")),
        },
    };
    if let Some(kind) = kind {
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(kind));
    }
    if payload.timeout_ms == Some(0) {
        return Err(wrong("timeout_ms", "is not above zero".to_owned()));
    }
    let within = payload.timeout_ms.map(|ms| Duration::from_millis(ms).min(super::LONGEST_WAIT));
    Ok(Call { method, url, headers, body, within })
}

impl Call {
    /// Makes this the request that a redirect asks for; one that leads where none may lead fails the job for good.
    pub(super) fn follow(&mut self, status: u16, location: &HeaderValue) -> Result<(), HandlerError> {
        let wrong = |reason: &str| HandlerError::permanent(format!("the service redirects {reason}"));
        let from = Url::parse(&self.url.to_string()).map_err(|_| wrong("from an address that is no URL"))?;
        let to = location.to_str().ok().and_then(|location| from.join(location).ok());
        let mut to = to.ok_or_else(|| wrong("to what is no URL"))?;
        if !["http", "https"].contains(&to.scheme()) {
            return Err(wrong("to what begins neither with http:// nor https://"));
        }
        if from.scheme() == "https" && to.scheme() != "https" {
            return Err(wrong("from https to an address without it"));
        }
        if from.origin() != to.origin() {
            // They may hold credentials, whatever they are called.
            let kind = self.headers.remove(CONTENT_TYPE);
            self.headers = kind.map(|kind| (CONTENT_TYPE, kind)).into_iter().collect();
        }
        // As browsers do it: the answer to a POST is fetched, unless the redirect says that the request is meant.
        if status == 303 && self.method != Method::HEAD || [301, 302].contains(&status) && self.method == Method::POST {
            (self.method, self.body) = (Method::GET, Bytes::new());
            self.headers.remove(CONTENT_TYPE);
        }
        to.set_fragment(None);
        self.url = to.as_str().parse().map_err(|_| wrong("to what is no URL"))?;
        Ok(())
    }
}
