//! How long records of completed runs are kept as their storage fills, and when dead letters are about to be dropped.

use std::time::Duration;

/// Up to this fill, completed records are kept for the configured time.
pub const EASY: f64 = 0.5;
/// From this fill on, they are kept for the shortest time.
pub const TIGHT: f64 = 0.9;

/// How long the record of a run that completes now is kept when its storage is filled to `fill` (1: full). Between
/// [`EASY`] and [`TIGHT`] each step divides the time by the same factor, from `age` down to `least`. If `age` is
/// shorter than `least`, it is `age`.
pub fn kept(fill: f64, age: Duration, least: Duration) -> Duration {
    if fill <= EASY || age <= least {
        return age;
    }
    let way = ((fill - EASY) / (TIGHT - EASY)).min(1.0);
    let factor = least.as_secs_f64().max(0.001) / age.as_secs_f64();
    age.mul_f64(factor.powf(way)).max(least)
}

/// The share of their size limit or maximum age that dead letters use up before a warning.
pub const WARN_FROM: f64 = 0.8;

/// The limit that will soon remove the oldest dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threat {
    /// Their storage is nearly full.
    Room,
    /// They reach their maximum age.
    Age,
}

impl Threat {
    /// The name of the system event that warns of it.
    #[must_use]
    pub fn event(self) -> &'static str {
        match self {
            Self::Room => "dlq_filling",
            Self::Age => "dlq_expiring",
        }
    }
}

/// The threat to dead letters that fill their storage to `fill` (1: full). `oldest` is the age of the oldest one; they
/// are kept for `max_age` (zero: for ever). The storage is checked first: it gives less notice.
pub fn threat(fill: f64, oldest: Option<Duration>, max_age: Duration) -> Option<Threat> {
    if fill >= WARN_FROM {
        return Some(Threat::Room);
    }
    oldest.filter(|oldest| !max_age.is_zero() && *oldest >= max_age.mul_f64(WARN_FROM)).map(|_| Threat::Age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letters_are_warned_of_before_they_go() {
        let hour = |hours: u64| Duration::from_secs(3_600 * hours);
        assert_eq!(threat(0.79, Some(hour(7)), hour(10)), None);
        assert_eq!(threat(0.79, Some(hour(8)), hour(10)), Some(Threat::Age));
        assert_eq!(threat(0.8, Some(hour(9)), hour(10)), Some(Threat::Room));
        assert_eq!(threat(0.0, None, hour(10)), None);
        assert_eq!(threat(0.0, Some(hour(1_000)), Duration::ZERO), None, "kept for ever");
    }

    #[test]
    fn the_fuller_the_shorter() {
        let (day, minute) = (Duration::from_secs(86_400), Duration::from_secs(60));
        let at = |fill| kept(fill, day, minute).as_secs();
        assert_eq!([at(0.0), at(0.5), at(0.9), at(1.5)], [86_400, 86_400, 60, 60]);
        let middle = at(0.7);
        assert!((2_270..2_280).contains(&middle), "the geometric mean: {middle}");
        assert_eq!(kept(0.9, minute, day), minute);
    }
}
