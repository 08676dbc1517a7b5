//! What a remote handler replied: its result or failure, and what it asks for.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::wire::header::{self, is_ours, names, positive};

/// A handler's reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HandlerReply {
    /// Its body: the result, or what the handler says about the failure.
    pub payload: Bytes,
    /// The content type of the body.
    pub content_type: Option<String>,
    /// The failure, if it reports one.
    pub error: Option<ServiceError>,
    /// Whether a failure is worth another attempt, where the handler says so.
    pub retryable: Option<bool>,
    /// How long to wait at least before the next attempt.
    pub retry_after: Option<Duration>,
    /// How long the job is to be snoozed.
    pub snooze: Option<Duration>,
    /// How long the attempt goes on elsewhere.
    pub detach: Option<Duration>,
    /// How long the job's limit key or type is to be held.
    pub hold: Option<Duration>,
    /// The part of its headers that cannot be read, so that the handler's intent is not known.
    pub unreadable: Option<String>,
}

/// A failure as NATS services report it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServiceError {
    /// Its code; `None` if there is only a text.
    pub code: Option<u16>,
    /// Its text.
    pub text: String,
}

/// A header's value, whatever the case of its name; the same value twice counts as one.
pub(super) fn text<'a>(headers: Option<&'a HeaderMap>, name: &str) -> Result<Option<&'a str>, String> {
    let all = headers.into_iter().flat_map(HeaderMap::iter);
    let same = all.filter(|(found, _)| AsRef::<str>::as_ref(found).eq_ignore_ascii_case(name));
    let mut values = same.flat_map(|(_, values)| values).map(|value| value.as_str().trim());
    let first = values.next();
    if values.any(|other| Some(other) != first) {
        return Err(format!("{name} stands there twice, with different values"));
    }
    Ok(first)
}

/// Reads a reply; what cannot be read of its headers is said in it.
pub(super) fn read_reply(headers: Option<&HeaderMap>, payload: Bytes) -> HandlerReply {
    let mut reply = HandlerReply { payload, ..HandlerReply::default() };
    let read = headers.map_or(Ok(()), |headers| read_headers(headers, &mut reply));
    reply.unreadable = read.and_then(|()| contradiction(&reply)).err();
    reply
}

/// Reads a reply's headers. A header that cannot be read, or has two values, must not be taken for a missing one.
fn read_headers(headers: &HeaderMap, reply: &mut HandlerReply) -> Result<(), String> {
    let code = text(Some(headers), names::ERROR_CODE)?.map(|code| code.parse().unwrap_or(500));
    let said = text(Some(headers), names::ERROR)?.unwrap_or_default();
    let is_error = code.is_some() || !said.is_empty();
    reply.error = is_error.then(|| ServiceError { code, text: said.to_owned() });
    reply.content_type = text(Some(headers), names::CONTENT_TYPE)?.map(str::to_owned);
    read_advice(headers, reply)
}

/// The headers with which a handler may ask for something.
const ADVICE: [&str; 5] = [names::RETRYABLE, names::RETRY_AFTER, names::SNOOZE, names::DETACH, names::HOLD];

fn read_advice(headers: &HeaderMap, reply: &mut HandlerReply) -> Result<(), String> {
    let all = headers.iter().map(|(name, _)| -> &str { name.as_ref() });
    let is_known = |name: &str| ADVICE.iter().chain(&header::OF_REQUEST).any(|known| known.eq_ignore_ascii_case(name));
    let others = all.filter(|name| is_ours(name) && !is_known(name));
    // The first by name: the headers themselves have no order.
    if let Some(name) = others.min() {
        return Err(format!("{name} is not a header of a reply"));
    }
    let span = |name| match text(Some(headers), name)? {
        Some(value) => positive(value).map(Some).map_err(|reason| format!("{name}: {reason}")),
        None => Ok(None),
    };
    let retryable = text(Some(headers), names::RETRYABLE)?.map(|value| {
        let read = value.to_ascii_lowercase().parse();
        read.map_err(|_| format!("{}: {value:?} is neither true nor false", names::RETRYABLE))
    });
    reply.retryable = retryable.transpose()?;
    reply.retry_after = match text(Some(headers), names::RETRY_AFTER)? {
        // As in HTTP.
        Some(seconds) if seconds.bytes().all(|byte| byte.is_ascii_digit()) => {
            let span = positive(&format!("{seconds}s"));
            Some(span.map_err(|reason| format!("{}: {reason}", names::RETRY_AFTER))?)
        }
        _ => span(names::RETRY_AFTER)?,
    };
    reply.snooze = span(names::SNOOZE)?;
    reply.detach = span(names::DETACH)?;
    reply.hold = span(names::HOLD)?;
    Ok(())
}

/// Refuses a reply that asks for two things that exclude each other.
fn contradiction(reply: &HandlerReply) -> Result<(), String> {
    let failed = reply.error.is_some();
    let of_failure = match (reply.retryable, reply.retry_after) {
        (Some(_), _) => Some(names::RETRYABLE),
        (None, Some(_)) => Some(names::RETRY_AFTER),
        (None, None) => None,
    };
    let goes_on = match (reply.snooze, reply.detach) {
        (Some(_), Some(_)) => return Err(format!("{} stands beside {}", names::SNOOZE, names::DETACH)),
        (Some(_), None) => Some(names::SNOOZE),
        (None, Some(_)) => Some(names::DETACH),
        (None, None) => None,
    };
    match (goes_on, of_failure) {
        (Some(name), _) if failed => Err(format!("{name} stands beside a failure")),
        (Some(name), Some(other)) => Err(format!("{name} stands beside {other}, which is for failures")),
        (None, Some(_)) if !failed => {
            Err(format!("{} and {} are for failures, and it is not one", names::RETRYABLE, names::RETRY_AFTER))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(headers: &[(&str, &str)]) -> HandlerReply {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, *value);
        }
        read_reply(Some(&map), Bytes::new())
    }

    #[test]
    fn a_reply_is_read_whatever_the_case_of_its_headers() {
        let failed = reply(&[("nats-service-error-code", "422"), ("NATS-SERVICE-ERROR", "no"), ("content-type", "x")]);
        assert_eq!(failed.error, Some(ServiceError { code: Some(422), text: "no".to_owned() }));
        assert_eq!((failed.content_type.as_deref(), failed.unreadable), (Some("x"), None));
        let wishes = reply(&[
            ("Nats-Service-Error", "text alone"),
            ("longshore-retryable", "True"),
            ("LONGSHORE-RETRY-AFTER", " 30s "),
            ("Longshore-Hold", "1m"),
        ]);
        assert_eq!(wishes.error, Some(ServiceError { code: None, text: "text alone".to_owned() }));
        let seconds = |span: Option<Duration>| span.map(|span| span.as_secs());
        assert_eq!((wishes.retryable, seconds(wishes.retry_after)), (Some(true), Some(30)));
        assert_eq!((seconds(wishes.hold), wishes.unreadable), (Some(60), None));
        let again = reply(&[("Nats-Service-Error-Code", "503"), ("Longshore-Retry-After", "90")]);
        assert_eq!((seconds(again.retry_after), again.unreadable), (Some(90), None), "a bare number is seconds");
        assert_eq!(reply(&[("Nats-Service-Error", "")]).error, None, "an empty text is not a failure");
        assert_eq!(seconds(reply(&[("longshore-snooze", "5m"), ("Longshore-Snooze", "5m")]).snooze), Some(300));
    }

    #[test]
    fn what_cannot_be_read_in_a_reply_is_said() {
        for (headers, says) in [
            (&[("Longshore-Snooze", "soon")][..], "Longshore-Snooze: "),
            (&[("Longshore-Snoze", "5m")], "Longshore-Snoze is not a header of a reply"),
            (&[("Longshore-Seal", "x")], "Longshore-Seal is not a header of a reply"),
            (&[("Longshore-Hold", "-1s")], "Longshore-Hold: "),
            (&[("Longshore-Retryable", "maybe"), ("Nats-Service-Error-Code", "503")], "Longshore-Retryable: "),
            (&[("Longshore-Snooze", "5m"), ("longshore-snooze", "6m")], "twice"),
            (&[("Longshore-Snooze", "5m"), ("Longshore-Snooze", "6m")], "twice"),
            (&[("Longshore-Snooze", "5m"), ("Nats-Service-Error-Code", "503")], "stands beside a failure"),
            (
                &[("Longshore-Detach", "2h"), ("Nats-Service-Error-Code", "503")],
                "Longshore-Detach stands beside a failure",
            ),
            (
                &[("Longshore-Detach", "2h"), ("Longshore-Retry-After", "30s")],
                "Longshore-Detach stands beside Longshore-Retry-After, which is for failures",
            ),
            (
                &[("Longshore-Detach", "2h"), ("Longshore-Snooze", "5m")],
                "Longshore-Snooze stands beside Longshore-Detach",
            ),
            (&[("Longshore-Retryable", "true")], "are for failures"),
            (&[("longshore-snooze", "0s")], "Longshore-Snooze: is zero"),
            (&[("Longshore-Hold", "0ms")], "Longshore-Hold: is zero"),
            (&[("Longshore-Retry-After", "0s"), ("Nats-Service-Error-Code", "503")], "Longshore-Retry-After: is zero"),
        ] {
            let unreadable = reply(headers).unreadable;
            assert!(unreadable.as_ref().is_some_and(|text| text.contains(says)), "{headers:?}: {unreadable:?}");
        }
    }

    /// A map has no fixed order, and each map has another: the result must not depend on it.
    #[test]
    fn a_reply_that_contradicts_itself_is_never_decided_by_chance() {
        for (headers, says) in [
            (
                [("Nats-Service-Error-Code", "404"), ("nats-service-error-code", "500")],
                "Nats-Service-Error-Code stands",
            ),
            (
                [("Nats-Service-Error-Code", "404"), ("Nats-Service-Error-Code", "500")],
                "Nats-Service-Error-Code stands",
            ),
            ([("Nats-Service-Error", ""), ("nats-service-error", "bad")], "Nats-Service-Error stands there twice"),
            ([("Content-Type", "a/b"), ("content-type", "c/d")], "Content-Type stands there twice"),
            ([("Longshore-A", "1"), ("longshore-b", "1")], "Longshore-A is not a header of a reply"),
        ] {
            for _ in 0..32 {
                let unreadable = reply(&headers).unreadable;
                assert!(unreadable.as_ref().is_some_and(|text| text.starts_with(says)), "{headers:?}: {unreadable:?}");
            }
        }
        let same = reply(&[("Nats-Service-Error-Code", "404"), ("nats-service-error-code", " 404")]);
        assert_eq!(
            (same.error.unwrap().code, same.unreadable),
            (Some(404), None),
            "the same value twice counts as one"
        );
    }
}
