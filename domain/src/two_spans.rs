//! What was seen in the span of time that goes on, and in the one before it: enough to say what was lately, without a
//! list of when.

use std::time::{Duration, Instant};

/// What was seen in two spans of time.
#[derive(Debug, Clone, Copy)]
pub struct TwoSpans<T> {
    since: Instant,
    /// In the span that goes on.
    pub this: T,
    /// In the one before.
    pub before: T,
}

impl<T: Copy + Default> TwoSpans<T> {
    /// Nothing was seen so far.
    pub fn new(now: Instant) -> Self {
        Self { since: now, this: T::default(), before: T::default() }
    }

    /// As it is at `now`, if spans are so long: without what is forgotten by then, as two of them are over.
    #[must_use]
    pub fn at(self, now: Instant, span: Duration) -> Self {
        let passed = now.saturating_duration_since(self.since);
        if passed < span {
            return self;
        }
        // The next span begins where this one ends, so that nothing is kept for longer than two.
        let (since, before) = if passed < 2 * span { (self.since + span, self.this) } else { (now, T::default()) };
        Self { since, this: T::default(), before }
    }
}
