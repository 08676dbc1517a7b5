//! What the table of slots has for the slot-keeper: what is to be read and written, and what became of it. Nothing here
//! waits, and nothing knows of the network.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use longshore_backbone::concurrency::{News, SlotAnswer, SlotQuestion, Wish};
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{Ask, ConcurrencyId, Holder, SlotRecord};
use longshore_domain::{RunId, SmolStr, Tenant, Timestamp};

use crate::limits::concurrency::session::OwnSession;
use crate::limits::concurrency::{AtWork, Known, Slots};
use crate::runtime::clock::instant;

/// So many sessions that have ended are remembered.
const ENDED: usize = 1_024;

/// A node names so many runs of a limit, and so many in all, that its answer fits into a message.
const RUNS_OF_A_LIMIT: usize = 100;
const RUNS_IN_ALL: usize = 1_000;

/// What the keeper has to do about a limit.
pub(crate) enum SlotTask {
    Read,
    /// Write this on that record, which has this revision; the limit allows so many.
    Write(Ask, SlotRecord, u64, u32),
}

impl Slots {
    pub(super) fn session(&self) -> Arc<OwnSession> {
        Arc::clone(&self.known().session)
    }

    pub(super) fn knows_any(&self) -> bool {
        !self.known().holders.is_empty()
    }

    /// Limits for which it is time are looked at again, and those that are not in use are forgotten. Jobs may still
    /// wait for one of those: a node that stood still gives up its wishes. They ask again, which is a new wish.
    pub(super) fn check_again(&self) {
        let now = instant();
        let mut known = self.known();
        let Known { holders, due, .. } = &mut *known;
        let mut any = false;
        for (id, _) in holders.extract_if(|_, holder| holder.is_over(now)) {
            self.changed(&id);
            any = true;
        }
        due.extend(holders.iter().filter(|(_, holder)| holder.is_due(now)).map(|(id, _)| id.clone()));
        drop(known);
        if any {
            self.news.notify();
        }
    }

    /// What to do about limits that are due, at most `max` and none that is `busy`; and which slots are lacking.
    pub(super) fn next_steps(
        &self,
        max: usize,
        busy: &HashSet<ConcurrencyId>,
    ) -> (Vec<(ConcurrencyId, SlotTask)>, Vec<ConcurrencyId>) {
        let (now, mut steps, mut lacking) = (instant(), Vec::new(), Vec::new());
        let Known { holders, due, session, .. } = &mut *self.known();
        let lasts = session.lasts(now);
        due.retain(|id| {
            let Some(holder) = holders.get_mut(id) else { return false };
            if busy.contains(id) || steps.len() >= max {
                return true;
            }
            if holder.is_to_be_read(now) {
                steps.push((id.clone(), SlotTask::Read));
            } else if !lasts {
                // Nothing is taken before the session is stored.
                return true;
            } else if let Some((ask, base, revision)) = holder.ask(now) {
                steps.push((id.clone(), SlotTask::Write(ask, base, revision, holder.max())));
            } else if holder.lacks(now) {
                lacking.push(id.clone());
            }
            false
        });
        self.backlog.store(due.len(), std::sync::atomic::Ordering::Relaxed);
        (steps, lacking)
    }

    pub(super) fn lacking(&self) -> Vec<ConcurrencyId> {
        let now = instant();
        self.known().holders.iter().filter(|(_, holder)| holder.lacks(now)).map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn ask_jobs_again(&self) {
        let now = instant();
        let known = self.known();
        let mut any = false;
        for (id, _) in known.holders.iter().filter(|(_, holder)| holder.wants(now)) {
            self.changed(id);
            any = true;
        }
        drop(known);
        if any {
            self.news.notify();
        }
    }

    pub(crate) fn heard(&self, news: News) {
        match news {
            News::Record(id, record, revision) => self.learned(&id, record, revision),
            News::Wish(Wish { session, limits }) => self.wished(&session, &limits),
        }
    }

    pub(super) fn wished(&self, session: &str, limits: &[SmolStr]) {
        let now = instant();
        let Known { holders, due, session: own, .. } = &mut *self.known();
        if own.id.as_str() == session {
            return;
        }
        for id in limits.iter().filter_map(|limit| ConcurrencyId::read(limit)) {
            if let Some(holder) = holders.get_mut(&id) {
                holder.is_wanted_by(session, now);
                due.insert(id);
            }
        }
    }

    /// What is known of records may be old.
    pub(crate) fn read_again(&self) {
        let Known { holders, due, .. } = &mut *self.known();
        holders.values_mut().for_each(Holder::forget_record);
        due.extend(holders.keys().cloned());
    }

    /// The answers of writes that are on their way will not be read.
    pub(super) fn writes_are_unclear(&self) {
        let Known { holders, due, .. } = &mut *self.known();
        holders.values_mut().for_each(Holder::write_is_unclear);
        due.extend(holders.keys().cloned());
    }

    pub(super) fn lost(&self, id: &ConcurrencyId, ask: &Ask) {
        let known = &mut *self.known();
        if let Some(holder) = known.holders.get_mut(id) {
            holder.lost(ask);
            known.due.insert(id.clone());
        }
    }

    pub(super) fn unclear(&self, id: &ConcurrencyId, ask: &Ask) {
        let known = &mut *self.known();
        if let Some(holder) = known.holders.get_mut(id) {
            holder.unclear(ask);
            known.due.insert(id.clone());
        }
    }

    /// The session is lost: the node goes on under another one, without any slot. Returns the former one.
    pub(super) fn begin_again(&self) -> Arc<OwnSession> {
        let now = instant();
        let Known { holders, due, session, .. } = &mut *self.known();
        session.lose();
        let former = std::mem::replace(session, Arc::new(OwnSession::new()));
        holders.values_mut().for_each(|holder| holder.begin_again(session.id.clone(), now));
        due.extend(holders.keys().cloned());
        holders.keys().for_each(|id| self.changed(id));
        former
    }

    /// The sessions of other nodes whose slots are wanted here, or were a moment ago.
    pub(super) fn watched(&self) -> Vec<SmolStr> {
        let now = instant();
        let Known { holders, watches, .. } = &mut *self.known();
        for session in holders.values().flat_map(|holder| holder.waits_for(now)) {
            watches.entry(session.clone()).or_default().wanted(now);
        }
        let mut ended = 0;
        watches.retain(|_, watch| {
            ended += usize::from(watch.has_ended());
            watch.is_wanted(now) || (watch.has_ended() && ended <= ENDED)
        });
        // Time goes on: attempts of sessions that have ended may be over by now.
        for holder in holders.values_mut().filter(|holder| holder.wants(now)) {
            holder.count_again(|session, block| self.is_over(watches, session, block));
        }
        let to_be_read = watches.iter().filter(|(_, watch)| !watch.has_ended() && watch.is_wanted(now));
        to_be_read.map(|(session, _)| session.clone()).collect()
    }

    /// A session was read. Says on which revision it may be ended.
    pub(super) fn found(&self, session: &SmolStr, found: Option<(&Session, u64)>) -> Option<u64> {
        let (now, mut known) = (instant(), self.known());
        let watch = known.watches.entry(session.clone()).or_default();
        watch.found(found, now);
        watch.may_end(now)
    }

    /// A session has ended: the limits of which it has slots are looked at again.
    pub(super) fn ended(&self, session: &SmolStr, at: Timestamp) {
        let Known { holders, due, watches, .. } = &mut *self.known();
        watches.entry(session.clone()).or_default().ended(at);
        for (id, holder) in holders.iter_mut().filter(|(_, holder)| holder.lists(session)) {
            holder.count_again(|session, block| self.is_over(watches, session, block));
            due.insert(id.clone());
            self.changed(id);
        }
    }

    /// Which runs work with slots of these limits under the node's session.
    pub(super) fn runs_of(&self, asked: SlotQuestion) -> SlotAnswer {
        let known = self.known();
        let session = known.session.id.clone();
        let (mut runs, mut left) = (BTreeMap::new(), RUNS_IN_ALL);
        for limit in asked.limits {
            let Some(id) = ConcurrencyId::read(&limit) else { continue };
            let has_it = |at_work: &&AtWork| at_work.session == session && at_work.ids.contains(&id);
            let of_limit = known.at_work.values().filter(has_it).take(RUNS_OF_A_LIMIT.min(left));
            let of_limit: Vec<(Tenant, RunId)> = of_limit.map(|at_work| at_work.run.clone()).collect();
            left -= of_limit.len();
            runs.insert(limit, of_limit);
        }
        SlotAnswer { session, runs }
    }

    pub(super) fn leave(&self) {
        let Known { holders, due, .. } = &mut *self.known();
        holders.values_mut().for_each(Holder::leave);
        due.extend(holders.keys().cloned());
    }

    /// Whether all that is not used was given back.
    pub(super) fn has_left(&self) -> bool {
        self.known().holders.values().all(Holder::has_left)
    }
}
