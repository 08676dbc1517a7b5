//! `http.call`: a job is a request to a service. Either its type fixes the target, and the payload is the body; or the
//! payload names the request, and only what the guard of [`outbound`](crate::outbound) allows is called.
//!
//! The run's id goes with each request as its `Idempotency-Key`, so that a service recognises a repeat. What an answer
//! means is judged by its status alone. It may not know where settings come from.

use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Method, Request, StatusCode, Uri};
use longshore_actors::handler::BoxFuture;
use longshore_actors::{Context, Handler, HandlerError, Success};
use tokio::time::timeout;

use crate::outbound::{Allow, Answer, NoAnswer, Outbound, Refused};

mod answer;
mod request;

pub(crate) use request::{CallTarget, method, request_headers};

/// The longest wait that a service may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);
/// How much of a failed answer's body is in the error.
const EXCERPT: usize = 500;
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// The client of the type `http.call` itself: nothing but globally routable addresses.
static STRICT: LazyLock<Outbound> = LazyLock::new(|| Outbound::new(Allow::default()));

fn has(statuses: &[RangeInclusive<u16>], status: u16) -> bool {
    statuses.iter().any(|statuses| statuses.contains(&status))
}

#[derive(Debug)]
pub(crate) struct HttpCall {
    /// `None`: the payload names the request.
    pub(crate) target: Option<CallTarget>,
    /// What the statuses of the service mean.
    pub(crate) success: Vec<RangeInclusive<u16>>,
    pub(crate) permanent: Vec<RangeInclusive<u16>>,
    pub(crate) retryable: Vec<RangeInclusive<u16>>,
    /// `None`: the strict one.
    pub(crate) outbound: Option<Outbound>,
    /// So many bytes of an answer are read at most.
    pub(crate) max_response: usize,
    pub(crate) redirects: u32,
}

/// One request, before the redirects that it meets.
struct Call {
    method: Method,
    url: Uri,
    headers: HeaderMap,
    body: Bytes,
    within: Option<Duration>,
}

impl HttpCall {
    /// The handler of the type `http.call` itself, with the guard at its strictest.
    pub(crate) fn strict() -> Self {
        Self {
            target: None,
            success: vec![200..=299],
            permanent: Vec::new(),
            retryable: Vec::new(),
            outbound: None,
            max_response: 32 << 10,
            redirects: 0,
        }
    }

    /// As the contract has it for error codes of handlers; what is set comes first.
    fn is_permanent(&self, status: u16) -> bool {
        let usually = (400..500).contains(&status) && ![408, 425, 429].contains(&status);
        has(&self.permanent, status) || usually && !has(&self.retryable, status)
    }

    async fn perform(&self, context: &Context) -> Result<Success, HandlerError> {
        let call = match &self.target {
            Some(target) => target.call(context)?,
            None => request::of_payload(context)?,
        };
        // Without a limit of its own it has that of the attempt, at whose end the node stops it.
        let within = call.within.unwrap_or(LONGEST_WAIT);
        let answer = tokio::select! {
            answer = timeout(within, self.send(call, request::usual_headers(context)?)) => {
                answer.map_err(|_| HandlerError::retryable(NoAnswer::TooLate(within).to_string()))??
            }
            () = context.cancelled() => return Err(HandlerError::retryable("the call was stopped")),
        };
        self.judge(answer)
    }

    /// The answer, behind at most so many redirects as are followed.
    async fn send(&self, mut call: Call, usual: HeaderMap) -> Result<Answer, HandlerError> {
        let outbound = self.outbound.as_ref().unwrap_or_else(|| &STRICT);
        let mut left = self.redirects;
        loop {
            let mut request = Request::builder().method(call.method.clone()).uri(call.url.clone());
            if let Some(headers) = request.headers_mut() {
                headers.clone_from(&usual);
                // A header of the same name that the type or the payload sets takes the place of the usual one.
                headers.extend(call.headers.clone());
                if call.body.is_empty() && [Method::POST, Method::PUT, Method::PATCH].contains(&call.method) {
                    // Servers wait for a body or refuse the request (411) if nothing says that there is none.
                    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
                }
            }
            let request = request.body(Full::new(call.body.clone()));
            let request = request.map_err(|error| HandlerError::permanent(format!("request: {error}")))?;
            let answer = outbound.send(request, LONGEST_WAIT, self.max_response).await;
            let answer = answer.map_err(|error| {
                let whose = match left == self.redirects {
                    true => "url".to_owned(),
                    // Only the host: the rest may hold credentials.
                    false => format!("the service redirects to {}", call.url.host().unwrap_or_default()),
                };
                match error {
                    NoAnswer::TooLate(_) | NoAnswer::Failed(_) => HandlerError::retryable(error.to_string()),
                    NoAnswer::Refused(Refused::Unknown(_)) => HandlerError::retryable(format!("{whose}: {error}")),
                    NoAnswer::Refused(_) => HandlerError::permanent(format!("{whose}: {error}")),
                }
            })?;
            let location = answer.headers.get(LOCATION).filter(|_| left > 0 && REDIRECTS.contains(&answer.status));
            let Some(location) = location else { return Ok(answer) };
            left -= 1;
            call.follow(answer.status, location)?;
        }
    }

    fn judge(&self, answer: Answer) -> Result<Success, HandlerError> {
        let status = answer.status;
        if has(&self.success, status) {
            return Ok(Success::from(answer::result(answer)?));
        }
        let name = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
        let mut text = format!("the service answered {status} {name}").trim_end().to_owned();
        let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(EXCERPT)]);
        if !body.trim().is_empty() {
            text = format!("{text}: {}", body.trim());
        }
        if self.is_permanent(status) {
            return Err(HandlerError::permanent(text));
        }
        let wait = answer.headers.get(RETRY_AFTER).and_then(|header| wait(header.to_str().ok()?, SystemTime::now()));
        let error = HandlerError::retryable(text);
        Err(match wait {
            Some(wait) => error.after(wait),
            None => error,
        })
    }
}

impl Handler for HttpCall {
    fn call(&self, context: Context) -> BoxFuture<'_, Result<Success, HandlerError>> {
        Box::pin(async move { self.perform(&context).await })
    }
}

/// How long to wait, by a header that has seconds or a date; `None` if that is not a time to come.
fn wait(text: &str, now: SystemTime) -> Option<Duration> {
    let wait = match text.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text.trim()).ok()?.duration_since(now).unwrap_or_default(),
    };
    (!wait.is_zero()).then_some(wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_says_in_seconds_or_by_a_date_when_to_come_again() {
        let now = httpdate::parse_http_date("Thu, 26 Nov 2026 12:00:00 GMT").unwrap();
        for (text, seconds) in [
            ("120", Some(120)),
            (" 7 ", Some(7)),
            ("Thu, 26 Nov 2026 12:00:30 GMT", Some(30)),
            ("99999999999999", Some(86_400)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(86_400)),
            ("0", None),
            ("-1", None),
            ("soon", None),
            ("Thu, 26 Nov 2026 11:00:00 GMT", None),
        ] {
            assert_eq!(wait(text, now), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
