//! How old a delivery may be when a node reads it.
//!
//! A delivery does not say when it was sent, and a node that was frozen finds in its socket everything that was sent
//! meanwhile. The node's own clock does not show how long a delivery lay there, however closely the node watches for
//! gaps: a second freeze may happen while the node reads what the first one left. The order of a connection shows it. A
//! node sends itself a *probe* through the server; everything behind the answer was sent after the probe. So every
//! delivery counts from the sending of the last probe whose answer was read before it. A freeze, or two, or one while
//! nothing was expected, only makes that moment older.
//!
//! Only one probe is out at a time. If more were sent while the server is frozen, the answer to a late one could
//! overtake deliveries that the server had already decided to send.

use std::time::{Duration, Instant};

/// A probe without an answer is given up after this: its connection was lost, or its answer was dropped.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// The longest time between two probes.
const EVERY_MAX: Duration = Duration::from_secs(1);
/// A delivery may count as older than it is by this fraction of its lease.
const PARTS: u32 = 20;

/// The earliest moment at which a delivery that is read now was sent.
#[derive(Debug, Clone)]
pub struct Freshness {
    since: Instant,
    every: Duration,
    number: u64,
    out: Option<Instant>,
}

impl Freshness {
    /// Nothing was subscribed to before `now`, so nothing is older. Deliveries are leased for `lease`.
    pub fn new(now: Instant, lease: Duration) -> Self {
        Self { since: now, every: (lease / PARTS).min(EVERY_MAX), number: 0, out: None }
    }

    /// Every delivery that is read now was sent at this moment or later.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The time between two probes.
    pub fn every(&self) -> Duration {
        self.every
    }

    /// The number of the probe to send `now`, if it is time for one.
    pub fn ask(&mut self, now: Instant) -> Option<u64> {
        let is_due = match self.out {
            Some(sent) => now.duration_since(sent) >= LOST_AFTER,
            None => now.duration_since(self.since) >= self.every,
        };
        if !is_due {
            return None;
        }
        self.number += 1;
        self.out = Some(now);
        Some(self.number)
    }

    /// The answer to a probe is read.
    pub fn answered(&mut self, number: u64) {
        if number == self.number
            && let Some(sent) = self.out.take()
        {
            self.since = sent;
        }
    }

    /// The connection was established again: the probe that was out may be lost, and another is sent at the next check.
    pub fn forget(&mut self) {
        self.out = None;
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const LEASE: Duration = Duration::from_secs(4);

    /// What happens between a node and a server that are joined by a connection which keeps its order.
    #[derive(Debug, Clone)]
    enum Step {
        /// Time passes for both.
        Wait(u64),
        /// The server sends a job, which the node has not read yet.
        Deliver,
        /// The server reads what the node sent.
        Serve,
        /// The node checks, and sends a probe if it is time.
        Tick,
        /// The node reads this many messages.
        Read(usize),
        /// The connection breaks, and all data in it is lost; the node still reads the messages that it has received
        /// already.
        Break,
    }

    #[derive(Debug, Clone, Copy)]
    enum Message {
        Delivery(Instant),
        Answer(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..2_000_u64).prop_map(Step::Wait),
            4 => Just(Step::Deliver),
            3 => Just(Step::Serve),
            4 => Just(Step::Tick),
            4 => (1..4_usize).prop_map(Step::Read),
            1 => Just(Step::Break),
        ]
    }

    proptest! {
        #[test]
        fn nothing_is_taken_for_younger_than_it_is(steps in prop::collection::vec(step(), 1..200)) {
            let mut now = Instant::now();
            let mut freshness = Freshness::new(now, LEASE);
            let (mut to_server, mut to_node) = (VecDeque::new(), VecDeque::new());
            for step in steps {
                match step {
                    Step::Wait(millis) => now += Duration::from_millis(millis),
                    Step::Deliver => to_node.push_back(Message::Delivery(now)),
                    Step::Serve => to_node.extend(to_server.drain(..).map(Message::Answer)),
                    Step::Tick => to_server.extend(freshness.ask(now)),
                    Step::Read(count) => for _ in 0..count {
                        match to_node.pop_front() {
                            Some(Message::Delivery(sent)) => prop_assert!(freshness.since() <= sent),
                            Some(Message::Answer(number)) => freshness.answered(number),
                            None => break,
                        }
                    },
                    Step::Break => {
                        to_server.clear();
                        freshness.forget();
                    }
                }
            }
        }

        #[test]
        fn while_answers_are_quick_nothing_is_taken_for_much_older(waits in prop::collection::vec(1..50_u64, 1..200)) {
            let mut now = Instant::now();
            let mut freshness = Freshness::new(now, LEASE);
            for wait in waits {
                now += Duration::from_millis(wait);
                if let Some(number) = freshness.ask(now) {
                    now += Duration::from_millis(5);
                    freshness.answered(number);
                }
                prop_assert!(now.duration_since(freshness.since()) <= freshness.every() + Duration::from_millis(55));
            }
        }
    }

    #[test]
    fn a_probe_that_is_lost_is_sent_again() {
        let start = Instant::now();
        let mut freshness = Freshness::new(start, LEASE);
        assert_eq!(freshness.ask(start), None);
        assert_eq!(freshness.ask(start + freshness.every()), Some(1));
        assert_eq!(freshness.ask(start + Duration::from_secs(1)), None, "one is out");
        let later = start + freshness.every() + LOST_AFTER;
        assert_eq!(freshness.ask(later), Some(2));
        freshness.answered(1);
        assert_eq!(freshness.since(), start, "the first probe no longer counts");
        freshness.answered(2);
        assert_eq!(freshness.since(), later);
        assert_eq!(freshness.ask(later + freshness.every()), Some(3));
        freshness.forget();
        assert_eq!(freshness.ask(later + freshness.every()), Some(4));
    }
}
