//! Circuit breakers: jobs of a type whose service keeps failing are not started for a while.
//!
//! A breaker is one record for the whole cluster ([`record::Breaker`]), changed by compare-and-set in
//! [`record::BreakerStep`]s. Each node counts the outcomes of its own attempts ([`tally::Tally`]) and adds them to the
//! record from time to time; [`view::View`] is what a node knows of a breaker, and decides whether a job may start
//! there. Nothing here reads a clock or writes anything.
//!
//! **Failures in a row** are counted over all nodes. A node adds its outcomes in the order in which they came, several
//! at a time; the order between nodes is that in which the record took them. A success that the record took after some
//! failures begins the count anew.
//!
//! **Periods.** Each change of state begins a period, and an outcome counts only in the period in which its attempt
//! began: attempts that were on their way when the breaker opened say nothing about the service's recovery.

pub mod record;
pub mod tally;
pub mod view;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::ErrorKind;
use crate::outcome::Outcome;

/// How a breaker behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it, 1 or more.
    pub failures: u32,
    /// The share of failures within the window that opens it as well, above 0 and at most 1; `None`: only failures in
    /// a row count.
    pub ratio: Option<f64>,
    /// The window of the share.
    pub window: Duration,
    /// With fewer outcomes than this in the window, the share says nothing.
    pub min_calls: u32,
    /// How long it stays open the first time. Each failed probe doubles this.
    pub cool_down: Duration,
    /// How long it stays open at most, before jitter.
    pub max_cool_down: Duration,
    /// How many probes there are at once, and how many must succeed to close it; 1 or more.
    pub probes: u32,
    /// Permanent errors count as failures; otherwise they count as nothing.
    pub count_permanent: bool,
    /// Each limit key has a breaker of its own.
    pub per_key: bool,
}

/// A cool-down is lengthened by at most this share, so that breakers that opened together do not probe together. It is
/// never shortened: the settings bound how often a failing service is called.
const JITTER: f64 = 0.1;

impl BreakerPolicy {
    /// How long the breaker stays open if it opens for the `times`th time without having closed; `chance` is evenly
    /// distributed in 0 ≤ chance < 1.
    pub fn cool_down(&self, times: u32, chance: f64) -> Duration {
        let doubled = 2f64.powi(i32::try_from(times.saturating_sub(1)).unwrap_or(i32::MAX).min(64));
        let grown = (self.cool_down.as_secs_f64() * doubled).min(self.max_cool_down.as_secs_f64());
        let longest = crate::duration::MAX_DURATION;
        Duration::try_from_secs_f64(grown * (1.0 + JITTER * chance)).unwrap_or(longest).min(longest)
    }
}

impl Default for BreakerPolicy {
    /// 5 failures in a row, 30 s doubling up to 5 min, one probe.
    fn default() -> Self {
        Self {
            failures: 5,
            ratio: None,
            window: Duration::from_secs(60),
            min_calls: 20,
            cool_down: Duration::from_secs(30),
            max_cool_down: Duration::from_secs(300),
            probes: 1,
            count_permanent: false,
            per_key: false,
        }
    }
}

/// What an attempt's end says about the service behind its handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// It works.
    Success,
    /// It fails.
    Failure,
    /// Nothing.
    Neutral,
}

impl Signal {
    /// What an outcome says. A permanent error is the job's fault, not the service's, unless `count_permanent`.
    pub fn of(outcome: &Outcome, count_permanent: bool) -> Self {
        match outcome {
            Outcome::Completed(_) => Self::Success,
            Outcome::Failed { failure, .. } => match failure.kind {
                ErrorKind::Retryable | ErrorKind::Timeout | ErrorKind::LeaseExpired | ErrorKind::Panic => Self::Failure,
                ErrorKind::Permanent if count_permanent => Self::Failure,
                ErrorKind::Permanent | ErrorKind::NoHandler | ErrorKind::Invalid | ErrorKind::Cancelled => {
                    Self::Neutral
                }
            },
            Outcome::Snoozed(_)
            | Outcome::Detached { .. }
            | Outcome::Busy { .. }
            | Outcome::OverLimit(_)
            | Outcome::Paused
            | Outcome::NoHandler
            | Outcome::Released
            | Outcome::Cancelled => Self::Neutral,
        }
    }
}
