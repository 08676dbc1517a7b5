//! Checks the promises from outside: the ledger sees every write to a record, every published event and every call of a
//! handler, and names the first broken promise.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use longshore_domain::events::{self, Event, EventKind};
use longshore_domain::limit::RateLimit;
use longshore_domain::run::{DeferReason, EndLog};
use longshore_domain::{ErrorKind, Run, RunId, RunState, SmolStr, State, Timestamp};

use crate::attempt::conclude::SHORT_RETRY;
use crate::limits::concurrency::SlotPermit;
use crate::tests::simulation::handler::millis;

/// Identifies an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventId {
    kind: EventKind,
    round: u32,
    attempt: u32,
    nth: u32,
    /// The event is about an attempt that was started.
    of_attempt: bool,
}

impl EventId {
    pub(crate) fn of(event: &Event<'_>) -> Self {
        let Event { run, kind, attempt, nth, of, .. } = *event;
        Self { kind, round: run.round, attempt, nth, of_attempt: of.is_some() }
    }
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.round, self.attempt, self.kind)?;
        if self.nth > 1 { write!(f, "/{}", self.nth) } else { Ok(()) }
    }
}

/// What the texts of an event would differ in, if its repeats differed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body {
    /// Of which run it is: one may go on under another id, and an id may be another run's, of a lane that was made
    /// again.
    run: (RunId, Timestamp),
    at: Timestamp,
    node: SmolStr,
    reason: Option<DeferReason>,
    run_at: Option<Timestamp>,
    retry_at: Option<Timestamp>,
}

impl Body {
    pub(crate) fn of(event: &Event<'_>, publisher: &str) -> Self {
        let retry_at = event.of.filter(|_| event.kind == EventKind::Failed).and_then(|of| of.retry_at);
        let node = event.node().cloned().unwrap_or_else(|| publisher.into());
        // A client may give the run another time meanwhile, which no event says: it reschedules it, or submits it once
        // more.
        let run_at = event.run_at().filter(|_| event.kind != EventKind::Scheduled);
        let run = (event.run.run_id.clone(), event.run.origin);
        Self { run, at: event.at, node, reason: event.reason, run_at, retry_at }
    }
}

/// The ledger's knowledge of one run.
#[derive(Debug, Default)]
struct Page {
    /// Everything that any decided version of its record implies, in order.
    implied: Vec<EventId>,
    /// What differs in their ids: readers keep one event per id.
    ids: Vec<(EventKind, u32, (u32, u32))>,
    /// The event log, repeats left out.
    logged: Vec<EventId>,
    /// What each said that was logged.
    bodies: Vec<(EventId, Body)>,
    /// The events that were published live, with repeats.
    live: Vec<EventId>,
    pub(crate) calls: u32,
    /// A record said that it runs.
    has_run: bool,
    /// When one last said that, or that it has ended.
    went_on_at: i64,
    /// The first time that it was scheduled for: each submission with a delay counts the delay from its own time.
    due: Option<Timestamp>,
    /// A publish with the same id or key took up a delayed submission's pre-created record, or its key, before a client
    /// was answered: it does not matter whether the `scheduled` event is published.
    note_taken_up: bool,
    /// It was cancelled while a node held its short retry: no message of that wait proves what the log has.
    cancelled_in_short_retry: bool,
    /// Two nodes attend to its dead letter, or it continues under another id: its events are published live again. Or
    /// it was rescheduled: then two of its messages may come at once, and if a node has just stored that its bare job
    /// waits, that is in the log, but nobody publishes it live.
    live_again: bool,
    /// A frozen node ended it when nobody was about to do so any more.
    ended_late: bool,
    /// Its last record, if another run, of a lane that was created again, has its id now.
    overwritten: Option<Rc<Run>>,
    /// The final check is done, and it is no duplicate of another one.
    closed: bool,
}

/// A running handler.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: u64,
    pub(crate) plan: usize,
    pub(crate) node: usize,
    /// The ack token of its delivery.
    pub(crate) ack_token: Option<u64>,
    /// Its attempt is stored.
    pub(crate) claimed: bool,
    /// Its node believes that it holds the lease until then.
    pub(crate) leased_until: i64,
    /// Its concurrency key, and the slots that it rests on.
    pub(crate) slots: Option<(u32, Arc<SlotPermit>)>,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    pages: Vec<Page>,
    pub(crate) calls: Vec<Call>,
    /// When handlers were called, in a world with a rate limit.
    starts: Vec<i64>,
    /// Keys, and their runs whose handler was called.
    of_keys: Vec<(usize, usize)>,
    broken: Option<String>,
}

impl Ledger {
    pub(crate) fn new(runs: usize) -> Self {
        Self {
            pages: (0..runs).map(|_| Page::default()).collect(),
            calls: Vec::new(),
            starts: Vec::new(),
            of_keys: Vec::new(),
            broken: None,
        }
    }

    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    pub(crate) fn accuse_all(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    pub(crate) fn accuse(&mut self, plan: usize, what: impl Into<String>) {
        self.broken.get_or_insert_with(|| format!("run {plan}: {}", what.into()));
    }

    /// When a record last said that it runs, or that it has ended.
    pub(crate) fn went_on_at(&self, plan: usize) -> i64 {
        self.pages[plan].went_on_at
    }

    /// Whether a record said at any time that it runs.
    pub(crate) fn has_run(&self, plan: usize) -> bool {
        self.pages[plan].has_run
    }

    pub(crate) fn calls_of(&self, plan: usize) -> u32 {
        self.pages[plan].calls
    }

    /// How many handlers run for a node.
    pub(crate) fn calls_on(&self, node: usize) -> usize {
        self.calls.iter().filter(|call| call.node == node).count()
    }

    /// A record was written.
    pub(crate) fn written(&mut self, plan: usize, before: Option<&Run>, after: &Run, now: Timestamp) {
        let before = before.filter(|before| before.origin == after.origin);
        let due = self.pages[plan].due;
        if let Some(wrong) = before.and_then(|before| wrong_step(before, after, due, now)) {
            self.accuse(plan, wrong);
        }
        let is_note = |run: &Run| run.state == RunState::Scheduled && !run.published && run.held_by.is_none();
        if before.is_some_and(is_note) && (after.held_by.is_some() || after.state == RunState::Duplicate) {
            self.pages[plan].note_taken_up = true;
        }
        let is_short = |run: &Run| {
            let ended = run.attempts.last().and_then(|last| last.ended_at);
            let at = if run.state == RunState::Retrying { run.state.run_at() } else { None };
            at.zip(ended).is_some_and(|(at, ended)| at.since(ended) < SHORT_RETRY)
        };
        self.pages[plan].cancelled_in_short_retry |= after.state == RunState::Cancelled && before.is_some_and(is_short);
        if let State::Scheduled { at } = after.state {
            self.note_due(plan, at);
        }
        if after.attempt > after.max_attempts {
            self.accuse(plan, format!("attempt {} of {}", after.attempt, after.max_attempts));
        }
        if after.state == RunState::Running || after.state.is_terminal() {
            self.pages[plan].went_on_at = now.millis();
        }
        if after.state == RunState::Running {
            self.pages[plan].has_run = true;
            return;
        }
        if before.is_some_and(|before| before.state == RunState::Running) && has_lost_lease(after) {
            let holds = |call: &Call| call.plan == plan && call.claimed && call.leased_until > now.millis();
            if self.calls.iter().any(holds) {
                self.accuse(plan, "its lease was judged lost while its holder had it");
            }
        }
        let page = &mut self.pages[plan];
        let mut met = None;
        for event in events::of_round(after) {
            let id = EventId::of(&event);
            if !page.implied.contains(&id) {
                let key = (id.kind, id.round, event.numbers());
                met = page.ids.contains(&key).then(|| event.id()).or(met);
                page.implied.push(id);
                page.ids.push(key);
            }
        }
        if let Some(id) = met {
            self.accuse(plan, format!("two events have the id {id}"));
        }
    }

    /// A client asked that it should not start before this time.
    pub(crate) fn note_due(&mut self, plan: usize, at: Timestamp) {
        let due = &mut self.pages[plan].due;
        *due = Some(due.map_or(at, |due| due.min(at)));
    }

    /// Two nodes attend to the run's dead letter, or the run continues under another id.
    pub(crate) fn may_be_live_again(&mut self, plan: usize) {
        self.pages[plan].live_again = true;
    }

    /// Another run now has the id of this run, whose lane is gone.
    pub(crate) fn overwritten(&mut self, plan: usize, run: &Rc<Run>) {
        if !run.state.is_terminal() {
            self.accuse(plan, "overwritten by another run of its id before it ended");
        }
        self.pages[plan].overwritten = Some(Rc::clone(run));
    }

    /// The last record of a run that was overwritten.
    pub(crate) fn last_of(&self, plan: usize) -> Option<Rc<Run>> {
        self.pages[plan].overwritten.clone()
    }

    /// An event was published live.
    pub(crate) fn live(&mut self, plan: usize, event: EventId) {
        self.pages[plan].live.push(event);
    }

    /// An event reached the log; `last` was the last attempt of its run when it was written. The log has every event of
    /// the attempts before that one: its claim proves it, so none of them is published again.
    /// Without a fault nothing is published again, except of a run whose key another submission takes meanwhile.
    pub(crate) fn logged(&mut self, plan: usize, (id, body): (EventId, Body), last: u32, calm: bool) {
        let page = &mut self.pages[plan];
        let is_the_same = |(logged, before): &&(EventId, Body)| *logged == id && before.run == body.run;
        let before = page.bodies.iter().find(is_the_same).map(|(_, before)| before.clone());
        if before.is_none() {
            page.bodies.push((id, body.clone()));
        }
        if !page.logged.contains(&id) {
            page.logged.push(id);
        } else if let Some(before) = before.filter(|before| *before != body) {
            self.accuse(plan, format!("{id} published again, with another body: {before:?}, then {body:?}"));
        } else if (1..last).contains(&id.attempt) {
            self.accuse(plan, format!("{id} published again, though attempt {last} was claimed"));
        } else if calm && id.kind == EventKind::Cancelled && !page.live_again && !page.cancelled_in_short_retry {
            self.accuse(plan, format!("{id} published again without a fault"));
        }
    }

    /// A handler is called. An unclaimed job that a node held when the server was killed may be another node's by then.
    pub(crate) fn called(&mut self, call: Call, is_of_this_server: bool, now: i64) {
        let sure = call.claimed || is_of_this_server;
        let overlaps = |other: &Call| sure && other.plan == call.plan && other.claimed && other.leased_until > now;
        if self.calls.iter().any(overlaps) {
            self.accuse(call.plan, "two attempts at once, while the lease of the first was held");
        }
        self.pages[call.plan].calls += 1;
        self.calls.push(call);
    }

    /// A handler is called. No more are in any span that ends now than the limit allows.
    pub(crate) fn starts(&mut self, plan: usize, limit: &RateLimit, now: i64) {
        self.starts.push(now);
        for (first, from) in self.starts.iter().enumerate() {
            // Both ends count.
            let (started, span) = (self.starts.len() - first, now - from + 1);
            if started as f64 > limit.bound(millis(span)) {
                return self.accuse(plan, format!("{started} jobs were started within {span} ms, beyond their rate"));
            }
        }
    }

    /// A handler takes a step. No more jobs of its key are at work than there are slots: those whose nodes still have
    /// theirs, and this one.
    pub(crate) fn takes_step(&mut self, id: u64, most: usize, now: Instant) {
        let Some(call) = self.calls.iter().find(|call| call.id == id) else { return };
        let Some((key, _)) = &call.slots else { return };
        let has_slot = |other: &Call| {
            other.id == id || other.slots.as_ref().is_some_and(|(of, slots)| of == key && now < slots.lasts_until())
        };
        let at_work = self.calls.iter().filter(|other| has_slot(other)).count();
        if at_work > most {
            self.accuse(call.plan, format!("{at_work} jobs of its key are at work, with {most} slots"));
        }
    }

    /// The lease of the delivery with this ack token was renewed, as its node believes, until then.
    pub(crate) fn renewed(&mut self, ack_token: u64, until: i64) {
        for call in self.calls.iter_mut().filter(|call| call.ack_token == Some(ack_token)) {
            call.leased_until = until;
        }
    }

    /// A handler is called for a run of this key.
    pub(crate) fn called_for_key(&mut self, key: usize, plan: usize) {
        if self.of_keys.iter().any(|(other, called)| *other == key && *called != plan) {
            self.accuse(plan, "another run of its key was called before");
        }
        self.of_keys.push((key, plan));
    }

    pub(crate) fn is_closed(&self, plan: usize) -> bool {
        self.pages[plan].closed
    }

    /// The final check of a run, when nothing is on its way any more.
    pub(crate) fn close(&mut self, plan: usize, run: Option<&Run>, letters: &[u32], calm: bool) {
        self.pages[plan].closed = run.is_none_or(|run| run.state != RunState::Duplicate);
        let Some(run) = run else { return self.accuse(plan, "no record: lost") };
        if !run.state.is_terminal() {
            return self.accuse(plan, format!("lost as {}", run.state.as_str()));
        }
        let expected: &[u32] = if run.state == RunState::Dead { &[run.round] } else { &[] };
        let mut rounds = letters.to_vec();
        rounds.dedup();
        if rounds != expected && self.pages[plan].overwritten.is_none() {
            let what = format!("{} in round {}, dead letters of rounds {letters:?}", run.state.as_str(), run.round);
            self.accuse(plan, what);
        }
        let page = &mut self.pages[plan];
        if page.note_taken_up {
            let counts = |id: &EventId| id.kind != EventKind::Scheduled || id.round > 1;
            page.logged.retain(counts);
            page.implied.retain(counts);
            page.live.retain(counts);
            // The record may be written anew, with the same events.
            page.ids.retain(|(kind, round, _)| *kind != EventKind::Scheduled || *round > 1);
        }
        let page = &self.pages[plan];
        // Cancelled before a client was answered or a message of it was there: if the node died while it published, no
        // other node continues.
        let was_nobodys = run.state == RunState::Cancelled && !run.published && run.held_by.is_none();
        let was_nobodys = was_nobodys && run.round == 1 && !run.seal.is_empty() || page.ended_late;
        // Overwritten by a run of a lane that was created again, before all of its events were published: known, and
        // not part of any promise.
        let is_gone = page.overwritten.is_some();
        if (was_nobodys || is_gone) && page.implied.starts_with(&page.logged) {
            return;
        }
        if page.logged != page.implied {
            let what = format!("logged  {}\n      implied {}", list(&page.logged), list(&page.implied));
            return self.accuse(plan, what);
        }
        // A cancel may overtake the events that the run's node is about to publish: then they are published later or
        // not at all.
        let least = usize::from(run.state != RunState::Cancelled || run.held_by.is_none());
        let times = |event: &EventId| page.live.iter().filter(|other| *other == event).count();
        // Several messages of a run that made way may come at once, and each publishes the end that it finds.
        let most = |event: &EventId| if event.kind == EventKind::Duplicate { usize::MAX } else { 1 };
        let each_once = page.implied.iter().all(|event| (least..=most(event)).contains(&times(event)));
        let is_fine = each_once && page.live.iter().all(|event| page.implied.contains(event));
        // So may a cancel of a run that was begun without a record: then its start was published live, and appears
        // nowhere else.
        let is_lost_start = |event: &EventId| event.kind == EventKind::Started && !page.implied.contains(event);
        let overtaken = run.state == RunState::Cancelled && page.live.iter().any(is_lost_start);
        if calm && !page.live_again && !is_fine && !overtaken {
            let what = format!("live    {}\n      implied {}", list(&page.live), list(&page.implied));
            return self.accuse(plan, what);
        }
        for round in 1..=run.round {
            let ids: Vec<EventId> = page.logged.iter().filter(|id| id.round == round).copied().collect();
            if let Err(wrong) = check_round(&ids, round == run.round, run.state.name()) {
                return self.accuse(plan, format!("round {round}: {wrong}: {}", list(&ids)));
            }
        }
    }
}

impl Ledger {
    /// Its client was not answered and it had no message when a node that had been frozen ended it, as the duplicate of
    /// a run that had its key. By then that run needed no message any more: if the node died as well, nobody goes on.
    pub(crate) fn ended_late(&mut self, plan: usize) {
        self.pages[plan].ended_late = true;
    }

    /// A person gave the run another time.
    pub(crate) fn was_rescheduled(&mut self, plan: usize) {
        self.pages[plan].live_again = true;
    }
}

/// Whether its last attempt ended as a lost lease.
pub(crate) fn has_lost_lease(run: &Run) -> bool {
    let error = run.attempts.last().and_then(|attempt| attempt.error.as_ref());
    error.is_some_and(|error| error.kind == ErrorKind::LeaseExpired)
}

/// Finds a step that no write may make, whichever node wins it. `due` is the first time for which a client's submission
/// was to wait.
fn wrong_step(before: &Run, after: &Run, due: Option<Timestamp>, now: Timestamp) -> Option<String> {
    let step = || {
        let show = |run: &Run| format!("{} {}/{}", run.state.as_str(), run.round, run.attempt);
        format!("{} became {}", show(before), show(after))
    };
    let replayed = after.round == before.round + 1 && before.state == RunState::Dead && after.attempt == 0;
    if replayed {
        return None;
    }
    let discarded = before.state == RunState::Dead && after.state == RunState::Discarded;
    let noted = before.state.end_log() == EndLog::ByCanceller && after.state.end_log() == EndLog::Done;
    // The same end, which is kept anew while something is left to do.
    let kept = || {
        let end = |run: &Run| format!("{:?}", Run { token: SmolStr::default(), held_by: None, ..run.clone() });
        end(before) == end(after)
    };
    if after.round != before.round || (before.state.is_terminal() && !discarded && !noted && !kept()) {
        return Some(step());
    }
    if after.attempt > before.attempt + 1 || after.attempt + 1 < before.attempt {
        return Some(step());
    }
    let claimed = after.state == RunState::Running && before.state != RunState::Running;
    let scheduled = before.state == RunState::Scheduled;
    match before.state.run_at().map(|at| if scheduled { due.unwrap_or(at).min(at) } else { at }) {
        Some(at) if claimed && at > now => Some(format!("claimed {} ms too early", at.millis() - now.millis())),
        _ => None,
    }
}

/// Events as a broken promise names them.
fn list(events: &[EventId]) -> String {
    events.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Checks one round as its reader sees it.
fn check_round(ids: &[EventId], last: bool, state: RunState) -> Result<(), &'static str> {
    use EventKind::{Cancelled, Completed, Deferred, Discarded, Dlq, Duplicate, Enqueued, Expired};
    use EventKind::{Failed, Log, Progress, Released, Replayed, Scheduled, Started, StepCompleted};
    let mut open: Option<(u32, u32)> = None;
    let mut attempt = 0;
    let mut ended = false;
    let mut waits = false;
    for event in ids {
        if ended && event.kind != Discarded {
            return Err("published after its end");
        }
        match event.kind {
            Scheduled | Replayed => {}
            Enqueued => waits = true,
            Started => {
                if open.is_some() || !waits || event.attempt < attempt || event.attempt > attempt + 1 {
                    return Err("an attempt out of order");
                }
                attempt = event.attempt;
                open = Some((event.attempt, event.nth));
            }
            Failed | Released => {
                if open.take() != Some((event.attempt, event.nth)) {
                    return Err("an attempt ended that was not started");
                }
            }
            Deferred if event.of_attempt => {
                if open.take() != Some((event.attempt, event.nth)) {
                    return Err("an attempt requeued that was not started");
                }
            }
            Deferred => {
                if open.is_some() || !waits {
                    return Err("deferred while it ran");
                }
            }
            // An unreadable job has this event alone.
            Dlq if ids.first() == Some(event) => ended = true,
            // It made way for another run with its key while it waited for its time.
            Duplicate if !waits && open.is_none() => ended = true,
            Completed | Dlq | Expired | Duplicate => {
                if !waits || open.is_some() != (event.kind == Completed) {
                    return Err("an end that does not follow");
                }
                ended = true;
            }
            Cancelled => ended = true,
            Discarded if ended && last && state == RunState::Discarded => {}
            Discarded | Log | Progress | StepCompleted => return Err("out of place"),
        }
    }
    if ended { Ok(()) } else { Err("no end") }
}
