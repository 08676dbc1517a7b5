//! Sessions: a node has its slots under one, and renews it. Whether another node's session is over is judged here.
//!
//! No clock of one node is compared with another's: the node counts its own lease from the sending of its last
//! confirmed renewal ([`crate::lease`]), and a node that watches counts a whole lease from when it saw the last
//! renewal, by its own clock.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use super::record::Block;
use crate::Timestamp;

/// Two monotonic clocks differ in their rate by less than one part in so many.
const DRIFT: u32 = 50;

/// A session is watched for so long after a job wanted its slots: parked jobs ask now and then, and what was seen of it
/// until then counts.
const WATCHED_FOR: Duration = Duration::from_secs(10);

/// What is stored of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The name of its node.
    pub node: SmolStr,
    /// How long it lasts without a renewal, in milliseconds.
    pub lease_ms: u64,
    /// When it ended, if it has. An ended session stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl Session {
    /// When the slots of one of its blocks come back if it is not renewed after `renewed_at`, when it was stored.
    pub fn holds_until(&self, block: &Block, renewed_at: Timestamp) -> Timestamp {
        let lease = Duration::from_millis(self.lease_ms);
        let ends_at = self.ended_at.unwrap_or_else(|| renewed_at.plus(lease + lease / DRIFT));
        ends_at.plus(Duration::from_millis(block.holds_for_ms))
    }
}

/// What a node knows of another's session.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// The last version found: its revision, when the node had found it, and the session's lease.
    seen: Option<(u64, Instant, Duration)>,
    wanted_at: Option<Instant>,
    ended_at: Option<Timestamp>,
}

impl Watch {
    /// A job here wants slots of the session.
    pub fn wanted(&mut self, now: Instant) {
        self.wanted_at = Some(now);
    }

    /// Whether a job wanted them a moment ago.
    pub fn is_wanted(&self, now: Instant) -> bool {
        self.wanted_at.is_some_and(|at| now.saturating_duration_since(at) <= WATCHED_FOR)
    }

    /// The session's record was read, and the node learned of that at `now`. `None`: there is none, and as a session is
    /// stored before any slot is taken for it, there will be none.
    pub fn found(&mut self, found: Option<(&Session, u64)>, now: Instant) {
        let (revision, lease) = match found {
            Some((Session { ended_at: Some(at), .. }, _)) => {
                self.ended_at = Some(*at);
                return;
            }
            Some((session, revision)) => (revision, Duration::from_millis(session.lease_ms)),
            None => (0, Duration::ZERO),
        };
        if self.seen.is_none_or(|(seen, ..)| seen != revision) {
            self.seen = Some((revision, now, lease));
        }
    }

    /// The revision at which the session may be ended now, by compare-and-set; `None`: its node may still use its
    /// slots.
    pub fn may_end(&self, now: Instant) -> Option<u64> {
        let (revision, since, lease) = self.seen.filter(|_| self.ended_at.is_none())?;
        (now.saturating_duration_since(since) >= lease + lease / DRIFT).then_some(revision)
    }

    /// It was ended, by this node.
    pub fn ended(&mut self, at: Timestamp) {
        self.ended_at = Some(at);
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Whether no attempt that was begun with a slot of this block is at work any more.
    pub fn is_over(&self, block: &Block, now: Timestamp) -> bool {
        self.ended_at.is_some_and(|at| now >= at.plus(Duration::from_millis(block.holds_for_ms)))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an Instant has no other origin")]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_only_after_a_whole_lease_without_renewal() {
        let (start, mut watch) = (Instant::now(), Watch::default());
        let at = |second| start + Duration::from_secs(second);
        let session = Session { node: "n".into(), lease_ms: 10_000, ended_at: None };
        assert_eq!(watch.may_end(at(0)), None, "nothing is known of it");
        watch.found(Some((&session, 7)), at(0));
        assert_eq!(watch.may_end(at(10)), None, "clocks differ a little");
        watch.found(Some((&session, 8)), at(10));
        watch.found(Some((&session, 8)), at(19));
        assert_eq!((watch.may_end(at(19)), watch.may_end(at(21))), (None, Some(8)));
        watch.ended(Timestamp::from_millis(1_000));
        assert_eq!(watch.may_end(at(99)), None);
        let block = Block { slots: 1, holds_for_ms: 500 };
        let over = |millis| watch.is_over(&block, Timestamp::from_millis(millis));
        assert!(!over(1_499) && over(1_500));
        let renewed = Timestamp::from_millis(20_000);
        assert_eq!(session.holds_until(&block, renewed), Timestamp::from_millis(20_000 + 10_200 + 500));
        let ended = Session { ended_at: Some(Timestamp::from_millis(1_000)), ..session };
        assert_eq!(ended.holds_until(&block, renewed), Timestamp::from_millis(1_500));
    }

    #[test]
    fn one_that_is_not_there_is_ended_at_once_unless_it_appears() {
        let (now, mut watch) = (Instant::now(), Watch::default());
        watch.found(None, now);
        assert_eq!(watch.may_end(now), Some(0));
        let session = Session { node: "n".into(), lease_ms: 10_000, ended_at: None };
        watch.found(Some((&session, 3)), now);
        assert_eq!(watch.may_end(now), None);
        let ended = Session { ended_at: Some(Timestamp::from_millis(5)), ..session };
        watch.found(Some((&ended, 4)), now);
        assert!(watch.has_ended());
    }
}
