//! The slot-keeper: the part that gets slots of concurrency limits from the cluster, gives them back, and keeps this
//! node's session. It also ends the sessions of nodes that have fallen silent, if their slots are wanted here. What is
//! known stands in [`Slots`], which outlives it; the rules are in `domain/src/concurrency`.
//!
//! It passes no job. Bounds: [`AT_ONCE`] reads and writes, one per limit, and one of each session.
//! A death costs nothing but time: writes on their way count as unclear, and are written again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::concurrency::{News, SlotRecords, Wish, Written};
use longshore_domain::concurrency::session::Session;
use longshore_domain::concurrency::{Ask, ConcurrencyId, Record};
use longshore_domain::lease::Lease;
use longshore_domain::{SmolStr, Timestamp, format_smolstr};
use ractor::RpcReplyPort;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::address::Mailbox;
use crate::concurrency::Slots;
use crate::concurrency::session::OwnSession;
use crate::concurrency::steps::Step;
use crate::metrics::{Metrics, Restored};
use crate::shared::now;
use crate::supervision::{LoopEnd, SUBSCRIPTION_ENDED};

/// How often slots that are not used are looked for, and the session's lease, while any limit is known.
const TICK: Duration = Duration::from_millis(20);
/// How often jobs that wait are asked about again, and other nodes notified which slots are lacking here.
const WISH_EVERY: Duration = Duration::from_millis(300);
/// Limits that are read or written at once.
const AT_ONCE: usize = 64;
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

/// What is sent to the keeper.
pub(crate) enum Message {
    /// The node ends: give back what is not used, end the session, then answer.
    Leave(RpcReplyPort<()>),
}

/// What the keeper is given.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) records: SlotRecords,
    pub(crate) node: SmolStr,
    pub(crate) lease: Duration,
    pub(crate) slots: Arc<Slots>,
    pub(crate) metrics: Arc<Metrics>,
}

/// What became of a write of this node's session.
enum Renewed {
    /// Its revision now.
    Confirmed(u64),
    /// It was based on another revision than this one, which is stored.
    Behind(u64),
    /// It is over.
    Over,
    /// That is not known.
    Unclear,
}

/// A task that has ended.
enum Done {
    /// The limit can be looked at again.
    Limit(ConcurrencyId),
    /// This session was written, at that moment.
    Session(SmolStr, Instant, Renewed),
    /// Another node's session was looked at.
    Watched(SmolStr),
    /// A former session of this node was ended, or could not be.
    Former,
}

struct Keeper {
    part: Part,
    tasks: JoinSet<Done>,
    busy: HashSet<ConcurrencyId>,
    watching: HashSet<SmolStr>,
    session: Kept,
    /// Sessions that were lost: they are ended once no handler in this node rests on them.
    former: Vec<Arc<OwnSession>>,
    /// The limits whose lack of slots was announced to other nodes.
    announced: HashSet<ConcurrencyId>,
    leaving: Vec<RpcReplyPort<()>>,
}

/// What the keeper knows of the node's session.
#[derive(Default)]
struct Kept {
    revision: u64,
    lease: Option<Lease>,
    is_written: bool,
}

/// Keeps the slots until the process ends.
pub(crate) async fn run(part: Part, mut mailbox: Mailbox<Message>) -> LoopEnd {
    let slots = Arc::clone(&part.slots);
    let mut news = part.records.news().await.map_err(|error| error.with_causes())?;
    let mut questions = part.records.questions(&part.node).await.map_err(|error| error.with_causes())?;
    let mut connected = part.records.connected();
    let (mut tick, mut wish) = (tokio::time::interval(TICK), tokio::time::interval(WISH_EVERY));
    let mut watch = tokio::time::interval((part.lease / 10).clamp(Duration::from_millis(50), Duration::from_secs(1)));
    for interval in [&mut tick, &mut wish, &mut watch] {
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    let mut keeper = Keeper::new(part);
    loop {
        let is_used = keeper.is_used();
        tokio::select! {
            Message::Leave(reply) = mailbox.next() => {
                slots.leave();
                keeper.leaving.push(reply);
            }
            () = slots.due.notified() => {}
            Some(done) = keeper.tasks.join_next() => keeper.done(done.map_err(|error| error.to_string())?),
            came = news.next(|id| slots.matters(id)) => match came.ok_or(SUBSCRIPTION_ENDED)? {
                News::Record(id, record, revision) => slots.learned(&id, record, revision),
                News::Wish(Wish { session, limits }) => slots.wished(&session, &limits),
            },
            question = questions.next() => {
                let question = question.ok_or(SUBSCRIPTION_ENDED)?;
                keeper.part.records.answer(question, |asked| slots.runs_of(asked)).await;
            }
            // What was republished meanwhile did not come.
            Ok(()) = connected.changed() => slots.read_again(),
            _ = tick.tick(), if is_used => {
                slots.check_again();
                keeper.keep_session();
            }
            _ = wish.tick(), if is_used => keeper.wish_again().await,
            _ = watch.tick(), if is_used => keeper.watch(),
        }
        keeper.look().await;
        keeper.leave_if_done();
    }
}

impl Keeper {
    fn new(part: Part) -> Self {
        // A former keeper's writes, if any, are of the session that stands in the table: it is renewed from what is
        // stored.
        part.slots.writes_are_unclear();
        Self {
            part,
            tasks: JoinSet::new(),
            busy: HashSet::new(),
            watching: HashSet::new(),
            session: Kept::default(),
            former: Vec::new(),
            announced: HashSet::new(),
            leaving: Vec::new(),
        }
    }

    /// Whether there is anything to keep.
    fn is_used(&self) -> bool {
        self.session.lease.is_some() || !self.former.is_empty() || self.part.slots.knows_any()
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Limit(id) => drop(self.busy.remove(&id)),
            Done::Watched(session) => drop(self.watching.remove(&session)),
            Done::Session(of, sent, renewed) => self.renewed(&of, sent, &renewed),
            Done::Former => {}
        }
    }

    /// Reads and writes the records of the limits that are due.
    async fn look(&mut self) {
        let slots = Arc::clone(&self.part.slots);
        let (steps, lacking) = slots.next_steps(AT_ONCE.saturating_sub(self.busy.len()), &self.busy);
        if !steps.is_empty() {
            self.keep_session();
        }
        for (id, step) in steps {
            self.busy.insert(id.clone());
            let (records, slots) = (self.part.records.clone(), Arc::clone(&self.part.slots));
            self.tasks.spawn(async move {
                match step {
                    Step::Read => read(&records, &slots, &id).await,
                    Step::Write(ask, base, revision, max) => {
                        write(&records, &slots, &id, (&ask, &base, revision, max)).await;
                    }
                }
                Done::Limit(id)
            });
        }
        let new: Vec<ConcurrencyId> = lacking.into_iter().filter(|id| self.announced.insert(id.clone())).collect();
        self.announce(&new).await;
    }

    /// Announces to the other nodes again which slots are lacking, and has the jobs that wait here ask again: a wish
    /// that none repeats is given up.
    async fn wish_again(&mut self) {
        let lacking = self.part.slots.lacking();
        self.announced = lacking.iter().cloned().collect();
        self.announce(&lacking).await;
        self.part.slots.ask_jobs_again();
    }

    async fn announce(&self, limits: &[ConcurrencyId]) {
        let session = self.part.slots.session().id().clone();
        for limits in limits.chunks(IN_A_WISH) {
            let limits = limits.iter().map(|id| format_smolstr!("{id}")).collect();
            self.part.records.wish(&Wish { session: session.clone(), limits }).await;
        }
    }

    /// Loses the session if its lease is over, and renews it when that is due.
    fn keep_session(&mut self) {
        let (now, lease) = (Instant::now(), self.part.lease);
        let session = self.part.slots.session();
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
        let (part, of, revision) = (self.part.clone(), session.id().clone(), self.session.revision);
        self.tasks.spawn(async move {
            let (sent, renewed) = part.renew(&of, revision).await;
            Done::Session(of, sent, renewed)
        });
    }

    fn renewed(&mut self, of: &SmolStr, sent: Instant, renewed: &Renewed) {
        let (session, lease) = (self.part.slots.session(), self.part.lease);
        if session.id() != of {
            return;
        }
        self.session.is_written = false;
        match renewed {
            Renewed::Confirmed(revision) => {
                let is_first = self.session.lease.is_none();
                self.session.revision = *revision;
                self.session.lease.get_or_insert_with(|| Lease::new(sent)).confirm(sent, Instant::now(), lease);
                session.confirmed(sent, lease);
                if is_first {
                    self.part.slots.check_again();
                    self.part.slots.ask_jobs_again();
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
        self.session = Kept::default();
        self.former.push(self.part.slots.begin_again());
        self.end_former();
    }

    /// Ends former sessions on which no handler in this node rests any more, so that no node waits for their leases.
    fn end_former(&mut self) {
        for session in self.former.extract_if(.., |session| session.is_idle_here()) {
            let part = self.part.clone();
            self.tasks.spawn(async move {
                while !part.end_own(session.id()).await {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Done::Former
            });
        }
    }

    /// Looks at the sessions whose slots are wanted here.
    fn watch(&mut self) {
        for session in self.part.slots.watched() {
            // What rests on a former session of this process may still take a step.
            let is_own = self.former.iter().any(|former| *former.id() == session);
            if is_own || !self.watching.insert(session.clone()) {
                continue;
            }
            let part = self.part.clone();
            self.tasks.spawn(async move {
                part.watch(&session).await;
                Done::Watched(session)
            });
        }
    }

    fn leave_if_done(&mut self) {
        if self.leaving.is_empty() || !self.part.slots.has_left() {
            return;
        }
        let session = self.part.slots.session();
        let replies = std::mem::take(&mut self.leaving);
        let (part, is_stored) = (self.part.clone(), self.session.revision > 0);
        self.tasks.spawn(async move {
            // A handler in this node that is still at work has the rest of the lease.
            if is_stored && session.is_idle_here() {
                session.lose();
                part.end_own(session.id()).await;
            }
            // Who asked may have given up.
            replies.into_iter().for_each(|reply| drop(reply.send(())));
            Done::Former
        });
    }
}

impl Part {
    /// Writes that the session lasts; says when that was sent.
    async fn renew(&self, of: &SmolStr, revision: u64) -> (Instant, Renewed) {
        let sent = Instant::now();
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let session = Session { node: self.node.clone(), lease_ms, ended_at: None };
        let written = self.records.write_session(of, &session, revision);
        // Without an answer it is sent again, several times within the lease: whether it was written shows then.
        match tokio::time::timeout(self.lease / ANSWERS_IN_A_LEASE, written).await {
            Ok(Ok(Written::Won(revision))) => return (sent, Renewed::Confirmed(revision)),
            Ok(Ok(Written::Lost)) => {}
            Ok(Err(error)) => {
                tracing::debug!("its session is not confirmed, trying again: {}", error.with_causes());
                tokio::time::sleep(AGAIN_AFTER).await;
                return (sent, Renewed::Unclear);
            }
            Err(_) => return (sent, Renewed::Unclear),
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
}

async fn read(records: &SlotRecords, slots: &Slots, id: &ConcurrencyId) {
    match records.read(id).await {
        Ok((record, revision)) => slots.learned(id, record, revision),
        Err(error) => put_off(id, &error).await,
    }
}

async fn write(
    records: &SlotRecords,
    slots: &Slots,
    id: &ConcurrencyId,
    (ask, base, revision, max): (&Ask, &Record, u64, u32),
) {
    let next = slots.after(base, ask, max);
    let written = records.write(id, &next, revision).await;
    tracing::trace!(limit = %id, ?ask, revision, ?written, "asked for slots");
    match written {
        Ok(Written::Won(revision)) => slots.won(id, ask, (next, revision)),
        Ok(Written::Lost) => {
            tokio::time::sleep(PAUSE.mul_f64(rand::random())).await;
            slots.lost(id, ask);
        }
        Err(error) => {
            put_off(id, &error).await;
            slots.unclear(id, ask);
        }
    }
}

async fn put_off(id: &ConcurrencyId, error: &Error) {
    tracing::debug!(limit = %id, "no answer about a concurrency limit, trying again: {}", error.with_causes());
    let wait = if error.unreadable_at().is_some() { UNREADABLE_AGAIN_AFTER } else { AGAIN_AFTER };
    tokio::time::sleep(wait).await;
}
