//! Writes that the server leaves unanswered: a stream whose disk is full or read-only, or that has lost most of its
//! replicas, refuses nothing; it says nothing.
//!
//! Kept for each connection, by what is written to: a bucket, or the first two words of a subject. Bounded by the
//! number of those, and empty while all is well, so that an answered write only reads a flag.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Without another unanswered write for so long, nothing is known any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct SilentWrites {
    any: AtomicBool,
    by_place: Mutex<BTreeMap<String, Silence>>,
}

#[derive(Debug)]
struct Silence {
    since: Instant,
    last: Instant,
}

impl SilentWrites {
    /// A write of `subject`, sent at `sent`, has had no answer until `now`.
    pub(crate) fn add(&self, subject: &str, sent: Instant, now: Instant) {
        let mut by_place = self.by_place.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = by_place.entry(place(subject)).or_insert_with_key(|place| {
            tracing::warn!(
                "NATS stores nothing in {place}, and does not say why: its disk may be full or read-only, as its own \
                 log would say, or most replicas of the stream are away"
            );
            Silence { since: sent, last: now }
        });
        silence.last = now;
        self.any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn answered(&self, subject: &str) {
        if !self.are_any() {
            return;
        }
        let mut by_place = self.by_place.lock().unwrap_or_else(PoisonError::into_inner);
        by_place.remove(&place(subject));
        self.any.store(!by_place.is_empty(), Ordering::Relaxed);
    }

    /// Where writes go unanswered, and for how long they have.
    pub(crate) fn list(&self, now: Instant) -> Vec<(String, Duration)> {
        let mut by_place = self.by_place.lock().unwrap_or_else(PoisonError::into_inner);
        by_place.retain(|_, silence| now.saturating_duration_since(silence.last) < FORGOTTEN_AFTER);
        self.any.store(!by_place.is_empty(), Ordering::Relaxed);
        by_place.iter().map(|(place, silence)| (place.clone(), now.saturating_duration_since(silence.since))).collect()
    }
}

/// The bucket that a subject belongs to, or its first two words.
fn place(subject: &str) -> String {
    let mut words = subject.splitn(3, '.');
    match (words.next(), words.next()) {
        (Some("$KV"), Some(bucket)) => bucket.to_owned(),
        (Some(first), Some(second)) => format!("{first}.{second}"),
        _ => subject.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silence_lasts_from_the_first_unanswered_write_until_one_is_answered() {
        let (writes, start) = (SilentWrites::default(), Instant::now());
        assert_eq!(writes.list(start), []);
        writes.add("$KV.longshore_runs.default.a", start, start + SECOND * 5);
        writes.add("$KV.longshore_runs.default.b", start + SECOND * 4, start + SECOND * 9);
        writes.add("longshore.schedules.default.a", start + SECOND * 5, start + SECOND * 10);
        let both = [("longshore.schedules".to_owned(), SECOND * 5), ("longshore_runs".to_owned(), SECOND * 10)];
        assert_eq!(writes.list(start + SECOND * 10), both);
        writes.answered("$KV.longshore_runs.acme.c");
        assert_eq!(writes.list(start + SECOND * 10), both[..1]);
        writes.answered("longshore.schedules.acme.c");
        assert_eq!(writes.list(start + SECOND * 10), []);
        assert!(!writes.are_any(), "an answered write takes no lock again");
    }

    #[test]
    fn what_nobody_writes_any_more_is_forgotten() {
        let (writes, start) = (SilentWrites::default(), Instant::now());
        writes.add("longshore.parked.x", start, start + SECOND * 5);
        assert_eq!(writes.list(start + SECOND * 64).len(), 1);
        assert_eq!(writes.list(start + SECOND * 65), []);
    }
}
