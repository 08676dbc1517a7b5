//! What stands in a bucket and is not what nodes write there: named, and kept in mind for `health`.
//!
//! Anybody with the right to publish somewhere can have the server write a confirmation under any key, by naming that
//! as the reply subject; and a node of a newer version may write what this one does not know. Nobody here judges what
//! is to become of such a value: its reader does.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::Backbone;
use crate::clock::now;
use crate::error::Error;
use crate::messages::raw::Raw;
use crate::messages::request;
use crate::wire::header::names;

/// A value is named in the log once in so long.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// A value that was not met for so long is not named any more: it is gone, or nothing asks for it.
const KEPT: Duration = Duration::from_secs(180);
/// Values that are kept in mind; what is met beyond them is not.
const MOST: usize = 256;
/// Values that `health` names one by one.
const NAMED: usize = 8;

/// What nodes keep of limits counts for so long after it was last written, and so does what somebody wrote over it.
const COUNTS_FOR: Duration = Duration::from_secs(86_400);

impl Backbone {
    /// Reads what nodes keep as JSON under a key. What is not that is named; nothing at all stands there for a while
    /// where a value was removed.
    pub(crate) fn readable<T: DeserializeOwned>(&self, subject: &str, value: &[u8]) -> Option<T> {
        match serde_json::from_slice(value) {
            Ok(read) => Some(read),
            Err(error) => {
                if !value.is_empty() {
                    self.unreadable().met(subject, &error);
                }
                None
            }
        }
    }

    /// The same where it matters what stood there before: as long as that may count, the value is an error. After that,
    /// or if a person has emptied the key, it is removed.
    pub(crate) async fn readable_or_removed<T: DeserializeOwned>(&self, stored: Raw) -> Result<T, Error> {
        let Raw { subject, sequence, at, headers, payload } = stored;
        let error = match serde_json::from_slice(&payload) {
            Ok(read) => return Ok(read),
            Err(error) => error,
        };
        self.unreadable().met(&subject, &error);
        let is_going = headers.windows(names::TTL.len()).any(|part| part == names::TTL.as_bytes());
        if !is_going && (payload.is_empty() || now().since(at) >= COUNTS_FOR) {
            let headers = request::removal(Some(sequence), Some(Duration::from_secs(1)));
            // If that fails, the next who reads it tries again.
            let _ = request::publish(self.control(), subject.clone(), headers, Bytes::new()).await;
        }
        Err(Error::Unreadable { subject, revision: sequence, value: payload, source: Box::new(error) })
    }
}

/// The values that this node met lately and could not read.
#[derive(Debug, Default)]
pub struct Unreadable(Mutex<BTreeMap<String, UnreadableValue>>);

#[derive(Debug)]
struct UnreadableValue {
    why: String,
    last: Instant,
    said: Instant,
}

impl Unreadable {
    /// A value under this subject could not be read.
    pub(crate) fn met(&self, subject: &str, why: &dyn Display) {
        if self.is_to_be_said(subject, why, Instant::now()) {
            tracing::warn!(subject, "what is stored here is not what nodes write, and is left alone: {why}");
        }
    }

    fn is_to_be_said(&self, subject: &str, why: &dyn Display, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = all.get_mut(subject) {
            seen.last = now;
            let is_due = now.duration_since(seen.said) >= SAY_EVERY;
            seen.said = if is_due { now } else { seen.said };
            return is_due;
        }
        all.retain(|_, seen| now.duration_since(seen.last) < KEPT);
        let has_room = all.len() < MOST;
        if has_room {
            all.insert(subject.to_owned(), UnreadableValue { why: why.to_string(), last: now, said: now });
        }
        has_room
    }

    /// Whether any of these subjects was met lately.
    pub fn has(&self, is_meant: impl Fn(&str) -> bool, now: Instant) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().any(|(subject, seen)| is_meant(subject) && now.duration_since(seen.last) < KEPT)
    }

    /// What `health` says of them.
    pub fn warnings(&self, now: Instant) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let recent: Vec<_> = all.iter().filter(|(_, seen)| now.duration_since(seen.last) < KEPT).collect();
        let named = recent.iter().take(NAMED);
        let mut warnings: Vec<String> = named
            .map(|(subject, seen)| {
                format!("what is stored under {subject} is not what nodes write, and is left alone: {}", seen.why)
            })
            .collect();
        if let Some(more) = recent.len().checked_sub(NAMED).filter(|more| *more > 0) {
            warnings.push(format!("{more} more values that nodes did not write, or more"));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_named_once_a_minute_and_forgotten_once_it_is_gone() {
        let (unreadable, start) = (Unreadable::default(), Instant::now());
        let said = |seconds| unreadable.is_to_be_said("$KV.b.a.r", &"no", start + Duration::from_secs(seconds));
        let times: Vec<u64> = (0..200).filter(|seconds| said(*seconds)).collect();
        assert_eq!(times, [0, 60, 120, 180]);
        let warnings = |seconds| unreadable.warnings(start + Duration::from_secs(seconds));
        assert!(warnings(300)[0].contains("$KV.b.a.r"));
        assert!(warnings(199 + KEPT.as_secs()).is_empty());
        let many = (0..2 * MOST).filter(|at| unreadable.is_to_be_said(&format!("k{at}"), &"no", start)).count();
        assert_eq!(many, MOST - 1, "a client that plants values fills no log");
        assert_eq!(unreadable.warnings(start).len(), NAMED + 1);
    }
}
