//! Counts of outcomes: in a row, and within a window.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The window is counted in so many parts: an outcome leaves it together with all others of its part.
const PARTS: u32 = 10;
/// At most so many parts are kept, should the clocks of nodes differ by more than a window.
const MAX_PARTS: usize = 4 * PARTS as usize;

/// Outcomes that a node has counted and not yet added to the record, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Failures before the first success.
    leading: u32,
    /// Whether there was a success.
    succeeded: bool,
    /// The most failures in a row after a success.
    longest: u32,
    /// Failures since the last success.
    trailing: u32,
    /// The same outcomes by time, if there is a window.
    pub(super) window: OutcomeWindow,
}

impl Tally {
    /// Adds an outcome that came at `now`; `window` is given where the share of failures counts.
    pub fn add(&mut self, success: bool, now: Timestamp, window: Option<Duration>) {
        match (success, self.succeeded) {
            (true, _) => (self.succeeded, self.trailing) = (true, 0),
            (false, false) => self.leading = self.leading.saturating_add(1),
            (false, true) => {
                self.trailing = self.trailing.saturating_add(1);
                self.longest = self.longest.max(self.trailing);
            }
        }
        if let Some(window) = window {
            self.window.add(success, now, window);
        }
    }

    /// The most failures in a row, if `before` failures in a row came before these outcomes.
    pub fn longest_after(&self, before: u32) -> u32 {
        before.saturating_add(self.leading).max(self.longest)
    }

    /// How many failures in a row there are after these outcomes, if there were `before`.
    pub fn in_a_row_after(&self, before: u32) -> u32 {
        if self.succeeded { self.trailing } else { before.saturating_add(self.leading) }
    }

    /// Whether there was a failure.
    pub fn has_failures(&self) -> bool {
        self.leading > 0 || self.longest > 0
    }

    /// Whether there was a success.
    pub fn has_successes(&self) -> bool {
        self.succeeded
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        !self.succeeded && self.leading == 0 && self.window.0.is_empty()
    }

    /// Forgets the order of the outcomes, where it no longer matters, and keeps those of the window.
    pub(super) fn forget_order(&mut self) {
        *self = Self { window: std::mem::take(&mut self.window), ..Self::default() };
    }
}

/// How many outcomes came in each part of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OutcomeWindow(Vec<WindowPart>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct WindowPart {
    /// When the part begins.
    at: Timestamp,
    calls: u32,
    failures: u32,
}

/// The outcomes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// All of them.
    pub calls: u32,
    /// The failures among them.
    pub failures: u32,
}

impl Totals {
    /// Whether the share of failures is at least `ratio`, of `min_calls` or more.
    #[must_use]
    pub fn reach(self, ratio: f64, min_calls: u32) -> bool {
        self.failures > 0 && self.calls >= min_calls && f64::from(self.failures) >= ratio * f64::from(self.calls)
    }
}

impl OutcomeWindow {
    fn add(&mut self, success: bool, now: Timestamp, window: Duration) {
        let part = i64::try_from((window / PARTS).as_millis()).unwrap_or(i64::MAX).max(1);
        let at = Timestamp::from_millis(now.millis() - now.millis().rem_euclid(part));
        self.count(WindowPart { at, calls: 1, failures: u32::from(!success) });
        self.forget_before(now, window);
    }

    fn count(&mut self, part: WindowPart) {
        match self.0.iter_mut().find(|own| own.at == part.at) {
            Some(own) => {
                own.calls = own.calls.saturating_add(part.calls);
                own.failures = own.failures.saturating_add(part.failures);
            }
            None => self.0.push(part),
        }
    }

    /// Adds the outcomes of another count, and forgets the parts that are too old.
    pub(super) fn add_all(&mut self, other: &Self, now: Timestamp, window: Duration) {
        other.0.iter().for_each(|part| self.count(*part));
        self.forget_before(now, window);
    }

    fn forget_before(&mut self, now: Timestamp, window: Duration) {
        self.0.retain(|part| is_within(part, now, window));
        if self.0.len() > MAX_PARTS {
            self.0.sort_unstable_by_key(|part| part.at);
            self.0.drain(..self.0.len() - MAX_PARTS);
        }
    }

    /// The outcomes that came within `window` before `now`, to a tenth of it.
    pub fn totals(&self, now: Timestamp, window: Duration) -> Totals {
        let within = self.0.iter().filter(|part| is_within(part, now, window));
        within.fold(Totals::default(), |sum, part| Totals {
            calls: sum.calls.saturating_add(part.calls),
            failures: sum.failures.saturating_add(part.failures),
        })
    }
}

/// A part counts until it began a window ago. Clocks differ a little, so a part may also begin in the future.
fn is_within(part: &WindowPart, now: Timestamp, window: Duration) -> bool {
    now.since(part.at) < window
}
