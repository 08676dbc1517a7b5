//! The slot-keeper: the part that gets slots of concurrency limits from the cluster, gives them back, and keeps this
//! node's session. It also ends the sessions of nodes that have fallen silent, if their slots are wanted here. What is
//! known stands in [`Slots`], which outlives it; the rules are in `domain/src/concurrency`.
//!
//! It passes no job. Bounds: [`AT_ONCE`] reads and writes, one per limit, and one of each session.
//! A death costs nothing but time: writes on their way count as unclear, and are written again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_domain::SmolStr;
use longshore_domain::concurrency::ConcurrencyId;
use longshore_domain::lease::Lease;
use ractor::RpcReplyPort;
use tokio::task::JoinSet;

use crate::limits::concurrency::Slots;
use crate::limits::concurrency::errands::{Done, Errand, Renewed, SlotKeeperPart};
use crate::limits::concurrency::session::OwnSession;
use crate::runtime::address::Mailbox;
use crate::runtime::clock::instant;
use crate::runtime::supervision::{LoopEnd, SUBSCRIPTION_ENDED, ticks};

/// How often slots that are not used are looked for, and the session's lease, while any limit is known.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// How often jobs that wait are asked about again, and other nodes notified which slots are lacking here.
pub(crate) const WISH_EVERY: Duration = Duration::from_millis(300);
/// Limits that are read or written at once.
const AT_ONCE: usize = 64;

pub(crate) enum SlotKeeperMessage {
    /// The node ends: give back what is not used, end the session, then answer.
    Leave(RpcReplyPort<()>),
}

/// What the keeper knows beside the table of slots. It decides what is to be asked of the cluster; the errands ask.
pub(crate) struct Keeper {
    slots: Arc<Slots>,
    lease: Duration,
    errands: Vec<Errand>,
    busy: HashSet<ConcurrencyId>,
    watching: HashSet<SmolStr>,
    session: KnownSession,
    /// Sessions that were lost: they are ended once no handler in this node rests on them.
    former: Vec<Arc<OwnSession>>,
    /// The limits whose lack of slots was announced to other nodes.
    announced: HashSet<ConcurrencyId>,
    /// The node ends, and may once all that is not used was given back.
    is_leaving: bool,
}

#[derive(Default)]
struct KnownSession {
    revision: u64,
    lease: Option<Lease>,
    is_written: bool,
}

/// How often sessions are looked at whose slots are wanted here.
pub(crate) fn watch_every(lease: Duration) -> Duration {
    (lease / 10).clamp(Duration::from_millis(50), Duration::from_secs(1))
}

pub(crate) async fn run(part: SlotKeeperPart, mut mailbox: Mailbox<SlotKeeperMessage>) -> LoopEnd {
    let slots = Arc::clone(&part.slots);
    let mut news = part.records.news().await.map_err(|error| error.with_causes())?;
    let mut questions = part.records.questions(&part.node).await.map_err(|error| error.with_causes())?;
    let mut connected = part.records.connected();
    let (mut tick, mut wish, mut watch) = (ticks(TICK), ticks(WISH_EVERY), ticks(watch_every(part.lease)));
    let mut keeper = Keeper::new(Arc::clone(&slots), part.lease);
    let (mut tasks, mut leaving) = (JoinSet::new(), Vec::new());
    loop {
        let is_used = keeper.is_used();
        tokio::select! {
            SlotKeeperMessage::Leave(reply) = mailbox.next() => {
                keeper.leaves();
                leaving.push(reply);
            }
            () = slots.due.notified() => {}
            Some(done) = tasks.join_next() => match done.map_err(|error| error.to_string())? {
                // Who asked may have given up.
                Done::Left => leaving.drain(..).for_each(|reply: RpcReplyPort<()>| drop(reply.send(()))),
                done => keeper.done(done),
            },
            came = news.next(|id| slots.matters(id)) => slots.heard(came.ok_or(SUBSCRIPTION_ENDED)?),
            question = questions.next() => {
                let question = question.ok_or(SUBSCRIPTION_ENDED)?;
                part.records.answer(question, |asked| slots.runs_of(asked)).await;
            }
            // What was republished meanwhile did not come.
            Ok(()) = connected.changed() => slots.read_again(),
            _ = tick.tick(), if is_used => keeper.tick(),
            _ = wish.tick(), if is_used => keeper.wish_again(),
            _ = watch.tick(), if is_used => keeper.watch(),
        }
        for errand in keeper.look() {
            let part = part.clone();
            tasks.spawn(async move { part.carry_out(errand).await });
        }
    }
}

impl Keeper {
    pub(crate) fn new(slots: Arc<Slots>, lease: Duration) -> Self {
        // A former keeper's writes are of the session that stands in the table: it is renewed from what is stored.
        slots.writes_are_unclear();
        Self {
            slots,
            lease,
            errands: Vec::new(),
            busy: HashSet::new(),
            watching: HashSet::new(),
            session: KnownSession::default(),
            former: Vec::new(),
            announced: HashSet::new(),
            is_leaving: false,
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.session.lease.is_some() || !self.former.is_empty() || self.slots.knows_any()
    }

    pub(crate) fn done(&mut self, done: Done) {
        match done {
            Done::Limit(id) => drop(self.busy.remove(&id)),
            Done::Watched(session) => drop(self.watching.remove(&session)),
            Done::Session(of, sent, renewed) => self.renewed(&of, sent, &renewed),
            Done::Left | Done::Nothing => {}
        }
    }

    /// Looks at the limits for which it is time, and at the session.
    pub(crate) fn tick(&mut self) {
        self.slots.check_again();
        self.keep_session();
    }

    /// What is to be asked now: the records of the limits that are due are among it.
    pub(crate) fn look(&mut self) -> Vec<Errand> {
        let (steps, lacking) = self.slots.next_steps(AT_ONCE.saturating_sub(self.busy.len()), &self.busy);
        if !steps.is_empty() {
            self.keep_session();
        }
        for (id, step) in steps {
            self.busy.insert(id.clone());
            self.errands.push(Errand::Limit(id, step));
        }
        let new = lacking.into_iter().filter(|id| self.announced.insert(id.clone())).collect();
        self.announce(new);
        self.leave_if_done();
        std::mem::take(&mut self.errands)
    }

    /// Announces to the other nodes again which slots are lacking, and has the jobs that wait here ask again: a wish
    /// that none repeats is given up.
    pub(crate) fn wish_again(&mut self) {
        let lacking = self.slots.lacking();
        self.announced = lacking.iter().cloned().collect();
        self.announce(lacking);
        self.slots.ask_jobs_again();
    }

    fn announce(&mut self, limits: Vec<ConcurrencyId>) {
        if !limits.is_empty() {
            self.errands.push(Errand::Announce(limits));
        }
    }

    /// Loses the session if its lease is over, and renews it when that is due.
    fn keep_session(&mut self) {
        let (now, lease) = (instant(), self.lease);
        let session = self.slots.session();
        if self.session.lease.is_some_and(|kept| kept.is_lost(now, lease)) {
            tracing::warn!("lost its slots: they were not renewed for {lease:?}");
            self.begin_again();
            return;
        }
        self.end_former();
        if self.session.is_written || self.session.lease.is_some_and(|kept| !kept.is_due(now, lease)) {
            return;
        }
        if let Some(kept) = &mut self.session.lease {
            kept.ask(now);
        }
        self.session.is_written = true;
        self.errands.push(Errand::Renew(session.id.clone(), self.session.revision));
    }

    fn renewed(&mut self, of: &SmolStr, sent: Instant, renewed: &Renewed) {
        let (session, lease) = (self.slots.session(), self.lease);
        if session.id != *of {
            return;
        }
        self.session.is_written = false;
        match renewed {
            Renewed::Confirmed(revision) => {
                let is_first = self.session.lease.is_none();
                self.session.revision = *revision;
                self.session.lease.get_or_insert_with(|| Lease::new(sent)).confirm(sent, instant(), lease);
                session.confirmed(sent, lease);
                if is_first {
                    self.slots.check_again();
                    self.slots.ask_jobs_again();
                }
            }
            Renewed::Behind(revision) => self.session.revision = *revision,
            Renewed::Over => {
                tracing::warn!("lost its slots: another node has ended this node's session");
                self.begin_again();
            }
            Renewed::Unclear => {}
        }
    }

    /// The session is lost: the node goes on under another.
    fn begin_again(&mut self) {
        self.session = KnownSession::default();
        self.former.push(self.slots.begin_again());
        self.end_former();
    }

    /// Ends former sessions on which no handler in this node rests any more, so that no node waits for their leases.
    fn end_former(&mut self) {
        let idle = self.former.extract_if(.., |session| session.is_idle_here());
        self.errands.extend(idle.map(Errand::EndFormer));
    }

    /// Looks at the sessions whose slots are wanted here.
    pub(crate) fn watch(&mut self) {
        for session in self.slots.watched() {
            // What rests on a former session of this process may still take a step.
            let is_own = self.former.iter().any(|former| former.id == session);
            if !is_own && self.watching.insert(session.clone()) {
                self.errands.push(Errand::Watch(session));
            }
        }
    }

    fn leaves(&mut self) {
        self.slots.leave();
        self.is_leaving = true;
    }

    fn leave_if_done(&mut self) {
        if self.is_leaving && self.slots.has_left() {
            self.is_leaving = false;
            self.errands.push(Errand::Leave((self.session.revision > 0).then(|| self.slots.session())));
        }
    }
}
