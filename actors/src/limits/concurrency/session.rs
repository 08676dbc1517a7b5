//! The session under which this node has its slots: until when it lasts, and how many attempts rest on it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longshore_domain::SmolStr;
use tokio_util::sync::CancellationToken;

use crate::runtime::clock::instant;

/// One session. It begins to last with its first confirmed write, and once it was lost it stays so.
#[derive(Debug)]
pub(crate) struct OwnSession {
    /// Its name in the records.
    pub(crate) id: SmolStr,
    made: Instant,
    /// How long after `made` it ends, in milliseconds, as far as was confirmed; 0: nothing was.
    lasts_for: AtomicU64,
    lost: CancellationToken,
    /// Attempts whose handlers are in this node.
    here: AtomicUsize,
}

impl OwnSession {
    /// A session that is stored nowhere yet.
    pub(crate) fn new() -> Self {
        Self {
            id: SmolStr::new(uuid::Uuid::now_v7().simple().to_string()),
            made: instant(),
            lasts_for: AtomicU64::new(0),
            lost: CancellationToken::new(),
            here: AtomicUsize::new(0),
        }
    }

    /// A write sent at `sent` was confirmed.
    pub(crate) fn confirmed(&self, sent: Instant, lease: Duration) {
        let lasts = (sent + lease).saturating_duration_since(self.made).as_millis();
        self.lasts_for.fetch_max(u64::try_from(lasts).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    pub(super) fn end(&self) -> Instant {
        self.made + Duration::from_millis(self.lasts_for.load(Ordering::Acquire))
    }

    /// Whether slots of it may be used at `now`.
    pub(crate) fn lasts(&self, now: Instant) -> bool {
        now < self.end() && !self.lost.is_cancelled()
    }

    /// Waits until it does not last any more.
    pub(crate) async fn lost(&self) {
        while self.lasts(instant()) {
            let _ = tokio::time::timeout_at(self.end().into(), self.lost.cancelled()).await;
        }
    }

    /// It is lost, whatever was confirmed.
    pub(crate) fn lose(&self) {
        self.lost.cancel();
    }

    /// An attempt rests on it, by a handler in this node or `elsewhere`.
    pub(crate) fn lends(&self, elsewhere: bool) {
        self.here.fetch_add(usize::from(!elsewhere), Ordering::AcqRel);
    }

    /// Such an attempt is over.
    pub(crate) fn returns(&self, elsewhere: bool) {
        self.here.fetch_sub(usize::from(!elsewhere), Ordering::AcqRel);
    }

    /// Whether no handler in this node rests on it.
    pub(crate) fn is_idle_here(&self) -> bool {
        self.here.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_lasts_from_its_first_confirmation_until_it_is_lost() {
        let (session, lease) = (OwnSession::new(), Duration::from_secs(30));
        let now = Instant::now();
        assert!(!session.lasts(now));
        session.lost().await;
        session.confirmed(now, lease);
        session.confirmed(now.checked_sub(Duration::from_secs(5)).unwrap(), lease);
        assert!(session.lasts(now + lease / 2) && !session.lasts(now + lease));
        session.lose();
        session.lost().await;
        assert!(!session.lasts(now));
    }

    #[test]
    fn it_knows_of_the_handlers_in_this_node() {
        let session = OwnSession::new();
        session.lends(true);
        assert!(session.is_idle_here());
        session.lends(false);
        assert!(!session.is_idle_here());
        session.returns(false);
        assert!(session.is_idle_here());
    }
}
