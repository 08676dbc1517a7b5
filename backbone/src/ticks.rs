//! When loops wake that do something again and again: all at the same moments, so that a process that has nothing to
//! do wakes once for all of them. What they ask of the servers then goes out together, too.

use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::Interval;

/// From where the moments are counted.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Ticks for a loop, the first at once, the next ones `every` (not zero) at the moments of all loops. So a loop's first
/// two are nearer or farther, by half of it at most, as are those after one that it took late: they never come in a
/// burst.
pub fn ticks(every: Duration) -> Ticks {
    Ticks { every, interval: tokio::time::interval(every) }
}

/// Waits for about `every` (not zero), and for half of it at least, up to a moment of all loops.
pub async fn pause(every: Duration) {
    tokio::time::sleep(until_next(BEGAN.elapsed(), every)).await;
}

/// See [`ticks`].
#[derive(Debug)]
pub struct Ticks {
    every: Duration,
    interval: Interval,
}

impl Ticks {
    /// Waits for the next one. Nothing is lost if this is dropped meanwhile.
    pub async fn tick(&mut self) {
        std::future::poll_fn(|context| self.poll(context)).await;
    }

    /// The same, for a loop that polls.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.interval.poll_tick(context).map(|_| self.reset())
    }

    /// Puts the next one off, as if one had come now.
    pub fn reset(&mut self) {
        self.interval.reset_after(until_next(BEGAN.elapsed(), self.every));
    }
}

/// How long it is from `at` to the multiple of `every` that is nearest to `every` from then.
fn until_next(at: Duration, every: Duration) -> Duration {
    let past = Duration::from_nanos((at.as_nanos() % every.as_nanos()).try_into().unwrap_or(u64::MAX));
    if past > every / 2 { every * 2 - past } else { every - past }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_meet_at_the_multiples() {
        let second = Duration::from_secs(1);
        for (at, wait) in [(7_000, 1_000), (7_001, 999), (7_500, 500), (7_501, 1_499), (7_999, 1_001)] {
            assert_eq!(until_next(Duration::from_millis(at), second), Duration::from_millis(wait), "{at}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_comes_at_once_and_late_ones_do_not_come_in_a_burst() {
        let (every, at) = (Duration::from_millis(100), tokio::time::Instant::now());
        let mut ticks = ticks(every);
        ticks.tick().await;
        assert_eq!(at.elapsed(), Duration::ZERO);
        tokio::time::advance(every * 10).await;
        ticks.tick().await;
        let late = tokio::time::Instant::now();
        ticks.tick().await;
        assert!(late.elapsed() >= every / 2, "{:?}", late.elapsed());
    }
}
