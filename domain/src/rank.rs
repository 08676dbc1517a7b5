//! Decides in which order waiting jobs start.
//!
//! `rank = since + (priority − 1) × aging`, the smallest first, where `since` is when the job was enqueued or, if it
//! was delayed or retried, when it became due. With aging `a`, only jobs that came at most `(p − q) × a` after a job of
//! priority `p` overtake it, where `q` is their own, more urgent priority. So no job waits behind one that came more
//! than `(p − 1) × a` later, and a p1 overtakes a p9 that came up to `8 × a` before it. An aging of 0 means strict
//! priorities: see [`Rank::new`].

use std::time::Duration;

use crate::{Priority, Timestamp};

/// A position in the order; the smaller rank starts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(i64, i64);

impl Rank {
    /// The rank of a job that has waited since `since`. If `aging` is 0, priorities are strict: time decides only
    /// within one priority.
    pub fn new(since: Timestamp, priority: Priority, aging: Duration) -> Self {
        let steps = i64::from(priority.number() - 1);
        if aging.is_zero() {
            return Self(steps, since.millis());
        }
        let step = i64::try_from(aging.as_millis()).unwrap_or(i64::MAX);
        Self(since.millis().saturating_add(steps.saturating_mul(step)), steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rank(since: i64, priority: u64, aging: u64) -> Rank {
        Rank::new(Timestamp::from_millis(since), Priority::new(priority).unwrap(), Duration::from_millis(aging))
    }

    proptest! {
        #[test]
        fn no_job_waits_behind_one_that_came_later_than_the_bound(
            since in 0i64..1_000_000, p in 1u64..=9, q in 1u64..=9, aging in 1u64..100_000, over in 1i64..1_000,
        ) {
            let bound = i64::try_from((p - 1) * aging).unwrap();
            prop_assert!(rank(since, p, aging) < rank(since + bound + over, q, aging));
        }

        #[test]
        fn without_aging_priority_is_strict(a in 0i64..1_000_000, b in 0i64..1_000_000, p in 1u64..=8) {
            prop_assert!(rank(a, p, 0) < rank(b, p + 1, 0));
        }
    }
}
