//! How long records of completed runs are kept as their room fills.

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

#[cfg(test)]
mod tests {
    use super::*;

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
