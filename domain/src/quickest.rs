//! How quickly attempts of a kind have succeeded lately: the least time that the next one needs, as far as a node has
//! seen. It is what [`clearance`](crate::clearance) compares with the time that a deadline leaves.
//!
//! The minimum and not a typical value: a job that is not started for want of time has no second chance, so it must
//! have had none. What was seen is forgotten after a while, so that a kind whose jobs all have too little time is tried
//! again: otherwise nothing would ever show that it has become faster.

use std::time::{Duration, Instant};

use crate::two_spans::TwoSpans;

/// Successes are forgotten together with all others of their span, once the span after it is over as well: after two
/// and a half to five minutes.
pub const SPAN: Duration = Duration::from_secs(150);
/// Of fewer successes nothing is concluded.
pub const ENOUGH: u32 = 20;

/// The quickest success of a kind of jobs.
#[derive(Debug, Clone, Copy)]
pub struct Quickest(TwoSpans<SpanSuccesses>);

#[derive(Debug, Clone, Copy)]
struct SpanSuccesses {
    count: u32,
    least: Duration,
}

impl Default for SpanSuccesses {
    fn default() -> Self {
        Self { count: 0, least: Duration::MAX }
    }
}

impl Quickest {
    /// Nothing was seen so far.
    pub fn new(now: Instant) -> Self {
        Self(TwoSpans::new(now))
    }

    /// An attempt has succeeded, which took so long.
    pub fn add(&mut self, took: Duration, now: Instant) {
        self.0 = self.0.at(now, SPAN);
        let SpanSuccesses { count, least } = &mut self.0.this;
        (*count, *least) = (count.saturating_add(1), took.min(*least));
    }

    /// The least time that a success took lately; `None` if too few were seen.
    pub fn least(&self, now: Instant) -> Option<Duration> {
        let TwoSpans { this, before, .. } = self.0.at(now, SPAN);
        (this.count.saturating_add(before.count) >= ENOUGH).then(|| this.least.min(before.least))
    }

    /// Whether all that was seen is forgotten.
    pub fn is_forgotten(&self, now: Instant) -> bool {
        let TwoSpans { this, before, .. } = self.0.at(now, SPAN);
        this.count == 0 && before.count == 0
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_quickest_of_enough_successes_counts_until_it_is_forgotten() {
        let from = Instant::now();
        let mut quickest = Quickest::new(from);
        for nth in 1..ENOUGH {
            quickest.add(nth * 100 * MS, from);
            assert_eq!(quickest.least(from), None, "after {nth}");
        }
        quickest.add(30_000 * MS, from + SPAN / 2);
        assert_eq!(quickest.least(from + SPAN / 2), Some(100 * MS));
        // The next span: the first one still counts, until that is over as well.
        quickest.add(300 * MS, from + SPAN);
        assert_eq!(quickest.least(from + SPAN), Some(100 * MS));
        assert_eq!(quickest.least(from + 2 * SPAN - MS), Some(100 * MS));
        assert_eq!(quickest.least(from + 2 * SPAN), None, "one success is not enough");
        assert!(!quickest.is_forgotten(from + 2 * SPAN) && quickest.is_forgotten(from + 3 * SPAN));
    }

    /// Against a list of all successes, at random times: it never says more than the least of the last span, and never
    /// less than the least of the last two.
    #[test]
    fn it_lies_between_the_least_of_one_span_and_of_two() {
        let from = Instant::now();
        let mut chance = 7_u64;
        let mut draw = |below: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % below
        };
        for _ in 0..200 {
            let (mut quickest, mut seen, mut now) = (Quickest::new(from), Vec::new(), from);
            for _ in 0..300 {
                now += Duration::from_secs([0, 1, 5, 60, 200][draw(5) as usize] * draw(3));
                let took = MS * u32::try_from(1 + draw(10_000)).unwrap();
                quickest.add(took, now);
                seen.push((now, took));
                let within = |span: Duration| seen.iter().filter(move |(at, _)| now - *at < span);
                let least = |span| within(span).map(|(_, took)| *took).min();
                let said = quickest.least(now);
                assert!(said <= least(SPAN) || said.is_none(), "{said:?}, but of the last span {:?}", least(SPAN));
                assert!(said.is_none() || said >= least(2 * SPAN));
                assert!(said.is_some() || within(SPAN).count() < ENOUGH as usize);
                assert!(said.is_none() || within(2 * SPAN).count() >= ENOUGH as usize);
            }
        }
    }
}
