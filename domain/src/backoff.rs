//! How long to wait before the next attempt.
//!
//! `base × factorⁿ`, at most `max`, where n counts the failures before this one; or a written-out list, whose last
//! entry serves for all further attempts. Jitter keeps a herd that failed together from coming back together (see
//! M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015, for `full`).

use std::time::Duration;

use crate::duration::MAX_DURATION;

/// How a delay is spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Jitter {
    /// Evenly within ± this share of the delay, 0 to 1.
    Proportional(f64),
    /// Evenly between the delay and this much more.
    Additive(Duration),
    /// Evenly between nothing and the delay.
    Full,
    /// Exactly the delay.
    None,
}

/// The delays between the attempts of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Backoff {
    /// `base × factorⁿ`, at most `max` before jitter.
    Exponential {
        /// Delay after the first failure.
        base: Duration,
        /// Growth per failure, 1 or more.
        factor: f64,
        /// Bound on the delay before jitter.
        max: Duration,
        /// How the delay is spread.
        jitter: Jitter,
    },
    /// One delay per failure; the last one serves for all that follow.
    Delays(Vec<Duration>),
}

impl Backoff {
    /// The delay after attempt `failed` (1 is the first) failed; `chance` is evenly distributed in 0 ≤ chance < 1.
    pub fn delay(&self, failed: u32, chance: f64) -> Duration {
        let before = failed.saturating_sub(1);
        match self {
            Self::Exponential { base, factor, max, jitter } => {
                let grown = base.as_secs_f64() * factor.powi(i32::try_from(before).unwrap_or(i32::MAX));
                jitter.spread(grown.min(max.as_secs_f64()), chance)
            }
            Self::Delays(delays) => delays.get(before as usize).or(delays.last()).copied().unwrap_or_default(),
        }
    }
}

impl Default for Backoff {
    /// 1 s × 3ⁿ up to 10 min, ± 25 %: with 12 attempts about an hour in all.
    fn default() -> Self {
        Self::Exponential {
            base: Duration::from_secs(1),
            factor: 3.0,
            max: Duration::from_secs(600),
            jitter: Jitter::Proportional(0.25),
        }
    }
}

impl Jitter {
    fn spread(self, seconds: f64, chance: f64) -> Duration {
        let spread = match self {
            Self::Proportional(share) => seconds * (1.0 - share + 2.0 * share * chance),
            Self::Additive(most) => seconds + most.as_secs_f64() * chance,
            Self::Full => seconds * chance,
            Self::None => seconds,
        };
        Duration::try_from_secs_f64(spread).unwrap_or(MAX_DURATION).min(MAX_DURATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn exponential(base: u64, factor: f64, max: u64, jitter: Jitter) -> Backoff {
        Backoff::Exponential { base: ms(base), factor, max: ms(max), jitter }
    }

    #[test]
    fn the_usual_presets_come_out_as_their_users_know_them() {
        let middle =
            |backoff: &Backoff, n| (1..=n).map(|failed| backoff.delay(failed, 0.5).as_millis()).collect::<Vec<_>>();
        let quick = exponential(250, 2.0, 60_000, Jitter::Proportional(0.25));
        assert_eq!(middle(&quick, 4), [250, 500, 1_000, 2_000]);
        let additive = exponential(5_000, 2.0, 3_600_000, Jitter::Additive(ms(2_000)));
        assert_eq!(middle(&additive, 3), [6_000, 11_000, 21_000]);
        let list = Backoff::Delays([1, 5, 25, 125].map(Duration::from_secs).to_vec());
        assert_eq!(middle(&list, 5), [1_000, 5_000, 25_000, 125_000, 125_000]);
        let half = exponential(500, 2.0, 10_000, Jitter::Proportional(0.25));
        assert_eq!(middle(&half, 6), [500, 1_000, 2_000, 4_000, 8_000, 10_000]);
    }

    #[test]
    fn the_default_lasts_about_an_hour() {
        let total: Duration = (1..12).map(|failed| Backoff::default().delay(failed, 0.5)).sum();
        assert!((ms(3_000_000)..ms(4_200_000)).contains(&total), "{total:?}");
    }

    proptest! {
        #[test]
        fn a_delay_keeps_to_its_jitters_bounds(
            base in 1u64..100_000, factor in 1.0f64..10.0, max in 1u64..10_000_000, failed in 1u32..1_000,
            chance in 0.0f64..1.0, kind in 0usize..4,
        ) {
            let jitter = [Jitter::Proportional(0.25), Jitter::Additive(ms(2_000)), Jitter::Full, Jitter::None][kind];
            let plain = exponential(base, factor, max, Jitter::None).delay(failed, 0.0).as_secs_f64();
            let delay = exponential(base, factor, max, jitter).delay(failed, chance).as_secs_f64();
            let (least, most) = [(0.75 * plain, 1.25 * plain), (plain, plain + 2.0), (0.0, plain), (plain, plain)][kind];
            prop_assert!(delay >= least - 1e-6 && delay <= most + 1e-6, "{least} ≤ {delay} ≤ {most}");
        }
    }
}
