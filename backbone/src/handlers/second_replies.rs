//! Second replies to one request: two subscriptions without a queue group got it, and each did the job.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Backbone;

/// How long a subject is named after its last second reply.
const NAMED_FOR: Duration = Duration::from_secs(600);
/// How often the log names it.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
const MAX_SUBJECTS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct SecondReplies {
    subjects: Mutex<HashMap<String, SecondReply>>,
    count: AtomicU64,
}

#[derive(Debug)]
struct SecondReply {
    times: u64,
    last: Instant,
    logged: Instant,
}

impl SecondReplies {
    pub(super) fn note(&self, subject: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let mut subjects = self.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = subjects.get_mut(subject) {
            (seen.times, seen.last) = (seen.times + 1, now);
            if now.duration_since(seen.logged) < LOGGED_EVERY {
                return;
            }
            seen.logged = now;
        } else if subjects.len() < MAX_SUBJECTS {
            subjects.insert(subject.to_owned(), SecondReply { times: 1, last: now, logged: now });
        }
        tracing::warn!(subject, "a job was answered twice: do its handlers subscribe without a common queue group?");
    }
}

impl Backbone {
    /// How many second replies have come.
    pub fn second_replies(&self) -> u64 {
        self.0.second_replies.count.load(Ordering::Relaxed)
    }

    /// The subjects whose jobs were answered twice lately, and how often.
    pub fn answered_twice(&self) -> Vec<(String, u64)> {
        let mut subjects = self.0.second_replies.subjects.lock().unwrap_or_else(PoisonError::into_inner);
        subjects.retain(|_, seen| seen.last.elapsed() < NAMED_FOR);
        let mut all: Vec<_> = subjects.iter().map(|(subject, seen)| (subject.clone(), seen.times)).collect();
        all.sort();
        all
    }
}
