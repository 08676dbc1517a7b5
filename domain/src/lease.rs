//! The lease clock of one delivery.
//!
//! A lease runs from the *sending* of the last renewal that was confirmed, because the server certainly counts from
//! that moment or a later one. It is renewed after a third of its length, so two renewals may fail before it is lost.
//! The clock is the node's own and monotonic: a node that was frozen finds its leases lost when it wakes. A lost lease
//! stays lost: the server confirms a renewal from any node, even one that lay in a frozen node's socket until another
//! node had the job.

use std::time::{Duration, Instant};

/// When the lease of one running job has to be renewed, and when it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    confirmed: Instant,
    asked: Instant,
}

impl Lease {
    /// A lease that the server counts from `from` or later.
    pub fn new(from: Instant) -> Self {
        Self { confirmed: from, asked: from }
    }

    /// Whether a renewal should be sent: a third of `length` has passed since the last one was confirmed, and a ninth
    /// since one was last asked for.
    pub fn is_due(&self, now: Instant, length: Duration) -> bool {
        now.duration_since(self.confirmed) >= length / 3 && now.duration_since(self.asked) >= length / 9
    }

    /// A renewal is sent at `now`.
    pub fn ask(&mut self, now: Instant) {
        self.asked = now;
    }

    /// The node reads at `now` the server's confirmation of the renewal that it sent at `asked`.
    pub fn confirm(&mut self, asked: Instant, now: Instant, length: Duration) {
        if !self.is_lost(now, length) {
            self.confirmed = self.confirmed.max(asked);
        }
    }

    /// Whether another node may have the job by now.
    pub fn is_lost(&self, now: Instant, length: Duration) -> bool {
        now >= self.ends_at(length)
    }

    /// When it is lost, if no more renewal is confirmed.
    pub fn ends_at(&self, length: Duration) -> Instant {
        self.confirmed + length
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]
mod tests {
    use super::*;

    #[test]
    fn a_late_confirmation_counts_from_when_the_renewal_was_sent() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let length = Duration::from_secs(30);
        let mut lease = Lease::new(at(0));
        assert!(!lease.is_due(at(9), length) && lease.is_due(at(10), length));
        lease.ask(at(10));
        assert!(!lease.is_due(at(11), length) && lease.is_due(at(14), length));
        lease.confirm(at(10), at(14), length);
        assert!(!lease.is_lost(at(39), length) && lease.is_lost(at(40), length));
        lease.ask(at(38));
        lease.confirm(at(38), at(41), length);
        assert!(lease.is_lost(at(41), length), "read too late");
    }
}
