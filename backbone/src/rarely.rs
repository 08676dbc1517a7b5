//! Log lines about what happens again and again: one in a while for all of it, with its number.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Things that are counted each by itself; those beyond are counted together.
const MOST: usize = 64;

/// When each of some things was last said, and how often it has happened since.
#[derive(Debug)]
pub struct Rarely {
    every: Duration,
    said: Mutex<BTreeMap<String, (Instant, u64)>>,
}

impl Rarely {
    /// Each thing is said at most once in that time.
    pub const fn once_in(every: Duration) -> Self {
        Self { every, said: Mutex::new(BTreeMap::new()) }
    }

    /// It has happened now: if it is to be said, how often it has happened since it was last said.
    pub fn happened(&self, what: &str, now: Instant) -> Option<u64> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let what = if said.len() < MOST || said.contains_key(what) { what } else { "" };
        let Some((at, times)) = said.get_mut(what) else {
            said.insert(what.to_owned(), (now, 0));
            return Some(1);
        };
        *times += 1;
        if now.duration_since(*at) < self.every {
            return None;
        }
        *at = now;
        Some(std::mem::take(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_said_once_in_a_while_with_its_number() {
        let (rarely, start) = (Rarely::once_in(Duration::from_secs(1)), Instant::now());
        let happened = |what: &str, ms| rarely.happened(what, start + Duration::from_millis(ms));
        assert_eq!(
            [happened("a", 0), happened("b", 1), happened("a", 2), happened("a", 999)],
            [Some(1), Some(1), None, None]
        );
        assert_eq!([happened("a", 1_000), happened("a", 1_001), happened("a", 9_000)], [Some(3), None, Some(2)]);
        let many = (0..1_000).filter(|at| happened(&format!("x{at}"), 9_000).is_some()).count();
        assert!(many <= MOST, "{many} lines");
    }
}
