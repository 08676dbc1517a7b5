//! How long records of completed runs are kept as their room fills, and when dead letters are about to go.

use std::time::Duration;

/// Up to here completed records are kept for as long as is set.
pub const EASY: f64 = 0.5;
/// From here on they are kept for the least time there is.
pub const TIGHT: f64 = 0.9;

/// How long the record of a run that completes now is kept when its room is filled to `fill` (1: full). Between
/// [`EASY`] and [`TIGHT`] each step divides the time alike, from `age` down to `least`; `age` if that is shorter.
#[must_use]
pub fn kept(fill: f64, age: Duration, least: Duration) -> Duration {
    if fill <= EASY || age <= least {
        return age;
    }
    let way = ((fill - EASY) / (TIGHT - EASY)).min(1.0);
    let factor = least.as_secs_f64().max(0.001) / age.as_secs_f64();
    age.mul_f64(factor.powf(way)).max(least)
}

/// Of the room or the age that dead letters may have, so much is used up before a warning.
pub const WARN_FROM: f64 = 0.8;

/// What will soon take the oldest dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threat {
    /// There is no room for many more.
    Room,
    /// They reach the age up to which they are kept.
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

/// What threatens dead letters that fill their room to `fill` (1: full), the oldest of which is `oldest` old, where they
/// are kept for `max_age` (zero: for ever). Room comes first: it gives less notice.
#[must_use]
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
