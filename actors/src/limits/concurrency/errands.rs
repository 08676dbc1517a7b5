//! What the slot-keeper asks of the cluster: reads and writes of records and sessions, each in a task of its own. The
//! keeper says which; what became of one goes into the table of slots, and back to the keeper.
//!
//! The records and the time are asked of [`SlotPorts`]: the simulation drives this, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::concurrency::{SlotRecords, Wish, Written};
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{Ask, ConcurrencyId, SlotRecord};
use longshore_domain::{SmolStr, Timestamp, format_smolstr};

use crate::limits::concurrency::Slots;
use crate::limits::concurrency::session::OwnSession;
use crate::limits::concurrency::steps::SlotTask;
use crate::metrics::{Metrics, Restored};
use crate::ports::passed_on::passed_on;
use crate::runtime::clock::{instant, now};

/// Limits in one message to the other nodes.
const IN_A_WISH: usize = 256;
/// How long the next try waits after the server did not answer.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The same where what is stored is not what nodes write: it does not go away soon.
const UNREADABLE_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// A renewal of the session waits for its answer for the lease divided by this.
const ANSWERS_IN_A_LEASE: u32 = 8;
/// The longest pause before a record is read again because another write came first.
const PAUSE: Duration = Duration::from_millis(3);

/// The cluster's records of slots. Each method is the method of [`SlotRecords`] that has its name, where nothing else
/// is said.
pub(crate) trait SlotPorts {
    async fn read(&self, id: &ConcurrencyId) -> Result<(SlotRecord, u64), Error>;
    async fn write(&self, id: &ConcurrencyId, record: &SlotRecord, expected: u64) -> Result<Written, Error>;
    async fn session(&self, session: &str) -> Result<Option<(Session, u64)>, Error>;
    async fn write_session(&self, of: &str, session: &Session, expected: u64) -> Result<Written, Error>;
    async fn wish(&self, wish: &Wish);
    async fn pause(&self, wait: Duration);
    /// What comes of this, if it does within `wait`.
    async fn within<T>(&self, wait: Duration, of: impl Future<Output = T>) -> Option<T>;
    /// Evenly 0 ≤ x < 1.
    fn chance(&self) -> f64;
}

impl SlotPorts for SlotRecords {
    passed_on! { self =>
        async fn read(&self, id: &ConcurrencyId) -> Result<(SlotRecord, u64), Error>;
        async fn write(&self, id: &ConcurrencyId, record: &SlotRecord, expected: u64) -> Result<Written, Error>;
        async fn session(&self, session: &str) -> Result<Option<(Session, u64)>, Error>;
        async fn write_session(&self, of: &str, session: &Session, expected: u64) -> Result<Written, Error>;
        async fn wish(&self, wish: &Wish);
    }

    async fn pause(&self, wait: Duration) {
        tokio::time::sleep(wait).await;
    }

    async fn within<T>(&self, wait: Duration, of: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(wait, of).await.ok()
    }

    fn chance(&self) -> f64 {
        rand::random()
    }
}

#[derive(Clone)]
pub(crate) struct SlotKeeperPart<R = SlotRecords> {
    pub(crate) records: R,
    pub(crate) node: SmolStr,
    pub(crate) lease: Duration,
    pub(crate) slots: Arc<Slots>,
    pub(crate) metrics: Arc<Metrics>,
}

pub(crate) enum Errand {
    Limit(ConcurrencyId, SlotTask),
    /// Announce to the other nodes that this one lacks slots of these limits.
    Announce(Vec<ConcurrencyId>),
    /// Renew the node's session, whose record has this revision.
    Renew(SmolStr, u64),
    /// Look at another session.
    Watch(SmolStr),
    /// End a former session of this process.
    EndFormer(Arc<OwnSession>),
    /// The node ends: end its session, if that is stored.
    Leave(Option<Arc<OwnSession>>),
}

pub(crate) enum Done {
    /// The limit can be looked at again.
    Limit(ConcurrencyId),
    /// This session was written, at that moment.
    Session(SmolStr, Instant, Renewed),
    Watched(SmolStr),
    /// The node may end.
    Left,
    Nothing,
}

/// What became of a write of this node's session.
pub(crate) enum Renewed {
    /// Its revision now.
    Confirmed(u64),
    /// It was based on another revision than this one, which is stored.
    Behind(u64),
    Over,
    Unclear,
}

impl<R: SlotPorts> SlotKeeperPart<R> {
    pub(crate) async fn carry_out(&self, errand: Errand) -> Done {
        match errand {
            Errand::Limit(id, step) => {
                match step {
                    SlotTask::Read => self.read(&id).await,
                    SlotTask::Write(ask, base, revision, max) => {
                        let next = self.slots.after(&base, &ask, max);
                        self.write(&id, &ask, next, revision).await
                    }
                }
                return Done::Limit(id);
            }
            Errand::Renew(of, revision) => {
                let (sent, renewed) = self.renew(&of, revision).await;
                return Done::Session(of, sent, renewed);
            }
            Errand::Watch(session) => {
                self.watch(&session).await;
                return Done::Watched(session);
            }
            Errand::Announce(limits) => self.announce(&limits).await,
            Errand::EndFormer(session) => {
                while !self.end_own(&session.id).await {
                    self.records.pause(AGAIN_AFTER).await;
                }
            }
            Errand::Leave(stored) => {
                // A handler in this node that is still at work has the rest of the lease.
                if let Some(session) = stored.filter(|session| session.is_idle_here()) {
                    session.lose();
                    self.end_own(&session.id).await;
                }
                return Done::Left;
            }
        }
        Done::Nothing
    }

    async fn announce(&self, limits: &[ConcurrencyId]) {
        let session = self.slots.session().id.clone();
        for limits in limits.chunks(IN_A_WISH) {
            let limits = limits.iter().map(|id| format_smolstr!("{id}")).collect();
            self.records.wish(&Wish { session: session.clone(), limits }).await;
        }
    }

    /// Writes that the session lasts; says when that was sent.
    async fn renew(&self, of: &SmolStr, revision: u64) -> (Instant, Renewed) {
        let sent = instant();
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let session = Session { node: self.node.clone(), lease_ms, ended_at: None };
        let written = self.records.write_session(of, &session, revision);
        // Without an answer it is sent again, several times within the lease: whether it was written shows then.
        match self.records.within(self.lease / ANSWERS_IN_A_LEASE, written).await {
            Some(Ok(Written::Won(revision))) => return (sent, Renewed::Confirmed(revision)),
            Some(Ok(Written::Lost)) => {}
            Some(Err(error)) => {
                tracing::debug!("its session is not confirmed, trying again: {}", error.with_causes());
                self.records.pause(AGAIN_AFTER).await;
                return (sent, Renewed::Unclear);
            }
            None => return (sent, Renewed::Unclear),
        }
        let renewed = match self.records.session(of).await {
            // A renewal whose answer was lost.
            Ok(Some((Session { ended_at: None, .. }, revision))) => Renewed::Behind(revision),
            Ok(None) if revision == 0 => Renewed::Unclear,
            Ok(Some(_) | None) => Renewed::Over,
            Err(_) => Renewed::Unclear,
        };
        (sent, renewed)
    }

    /// Writes that a session has ended; says whether that is certain.
    async fn end(&self, of: &SmolStr, revision: u64) -> bool {
        // What is no longer stored has been over for longer than any slot is kept.
        let ended_at = if revision == 0 { Timestamp::default() } else { now() };
        let session = Session { node: self.node.clone(), lease_ms: 0, ended_at: Some(ended_at) };
        let written = self.records.write_session(of, &session, revision).await;
        let has_ended = matches!(written, Ok(Written::Won(_)));
        if has_ended {
            self.slots.ended(of, ended_at);
        }
        has_ended
    }

    /// Ends a session of this process on which nothing here rests any more, whatever became of its last renewal; says
    /// whether that is certain.
    async fn end_own(&self, of: &SmolStr) -> bool {
        match self.records.session(of).await {
            Ok(Some((Session { ended_at: Some(at), .. }, _))) => {
                self.slots.ended(of, at);
                true
            }
            Ok(Some((_, revision))) => self.end(of, revision).await,
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Looks at another session, and ends it if its node can no longer use its slots: it has not renewed it for a
    /// lease, or it is this node, which was started again, as no two nodes have one name.
    async fn watch(&self, session: &SmolStr) {
        let found = match self.records.session(session).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%session, "a session cannot be read, trying again: {}", error.with_causes());
                return;
            }
        };
        let may_end = self.slots.found(session, found.as_ref().map(|(session, revision)| (session, *revision)));
        let is_back = |(found, _): &&(Session, u64)| found.node == self.node && found.ended_at.is_none();
        if let Some((_, revision)) = found.as_ref().filter(is_back) {
            if self.end(session, *revision).await {
                tracing::info!(%session, "the slots that this node had before it was started again come back");
            }
        } else if let Some(revision) = may_end
            && self.end(session, revision).await
        {
            self.metrics.restored(Restored::Slots, 1);
            let node = found.map(|(session, _)| session.node);
            tracing::warn!(%session, node = node.as_deref(), "a node was silent for its lease: its slots come back");
        }
    }

    async fn read(&self, id: &ConcurrencyId) {
        match self.records.read(id).await {
            Ok((record, revision)) => self.slots.learned(id, record, revision),
            Err(error) => self.put_off(id, &error).await,
        }
    }

    async fn write(&self, id: &ConcurrencyId, ask: &Ask, next: SlotRecord, revision: u64) {
        let written = self.records.write(id, &next, revision).await;
        tracing::trace!(limit = %id, ?ask, revision, ?written, "asked for slots");
        match written {
            Ok(Written::Won(revision)) => self.slots.won(id, ask, next, revision),
            Ok(Written::Lost) => {
                self.records.pause(PAUSE.mul_f64(self.records.chance())).await;
                self.slots.lost(id, ask);
            }
            Err(error) => {
                self.put_off(id, &error).await;
                self.slots.unclear(id, ask);
            }
        }
    }

    async fn put_off(&self, id: &ConcurrencyId, error: &Error) {
        tracing::debug!(limit = %id, "no answer about a concurrency limit, trying again: {}", error.with_causes());
        let wait = if error.unreadable_at().is_some() { UNREADABLE_AGAIN_AFTER } else { AGAIN_AFTER };
        self.records.pause(wait).await;
    }
}
