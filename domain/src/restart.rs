//! Restart intensity: a supervisor gives up after more than `most` deaths within `within`. The rule is OTP's
//! (`supervisor`, "Maximum Restart Intensity").

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The deaths that still count.
#[derive(Debug)]
pub struct Restarts {
    most: usize,
    within: Duration,
    deaths: VecDeque<Instant>,
}

impl Restarts {
    /// At most `most` deaths within `within`.
    pub fn new(most: usize, within: Duration) -> Self {
        Self { most, within, deaths: VecDeque::new() }
    }

    /// Counts a death at `now`. Says whether the supervisor starts the child again; if not, it ends itself, and its own
    /// supervisor decides next.
    pub fn after_death(&mut self, now: Instant) -> bool {
        self.deaths.retain(|&death| now.duration_since(death) <= self.within);
        self.deaths.push_back(now);
        self.deaths.len() <= self.most
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]
mod tests {
    use super::*;

    #[test]
    fn deaths_outside_the_window_are_forgotten() {
        let start = Instant::now();
        let mut restarts = Restarts::new(2, Duration::from_secs(5));
        let mut at = |second| restarts.after_death(start + Duration::from_secs(second));
        assert_eq!([at(0), at(1), at(7), at(8), at(9)], [true, true, true, true, false]);
    }
}
