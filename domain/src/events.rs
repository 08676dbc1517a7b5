//! The events that a record implies.
//!
//! A run's events are derived from its record, never stored beside it: a node that carries a decision out, for the
//! first time or after a crash, publishes the same events with the same ids. Within a round, new events are only added
//! at the end, so the events published before are a prefix of the events to publish now. Only decisions are published:
//! the start of an attempt that is merely claimed may still be taken back.

use std::fmt;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::run::{Attempt, DeferReason, Deferral, PutBack, State, Wait};
use crate::{ErrorKind, Run, RunState, Timestamp};

crate::named! {
    /// What an event reports. Its name is a token of the event's subject.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum EventKind {
        /// The run waits for its time.
        Scheduled = "scheduled",
        /// The run waits for a worker; one event per round.
        Enqueued = "enqueued",
        /// An attempt started.
        Started = "started",
        /// Its handler reported its progress.
        Progress = "progress",
        /// Its handler wrote a line into its log.
        Log = "log",
        /// Its handler finished a step of its work.
        StepCompleted = "step_completed",
        /// The job was not started, or its handler returned it.
        Deferred = "deferred",
        /// A node that shuts down released an attempt.
        Released = "released",
        /// An attempt failed.
        Failed = "failed",
        /// The run ended successfully.
        Completed = "completed",
        /// The run ended with a failure; its dead letter follows.
        Dlq = "dlq",
        /// The run was cancelled.
        Cancelled = "cancelled",
        /// The run was not started in time.
        Expired = "expired",
        /// Another run has its idempotency key.
        Duplicate = "duplicate",
        /// A dead run begins another round.
        Replayed = "replayed",
        /// A dead letter was discarded.
        Discarded = "discarded",
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One event of a run.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// The run.
    pub run: &'a Run,
    /// What it reports.
    pub kind: EventKind,
    /// The number of the attempt; 0 if the event is not about an attempt.
    pub attempt: u32,
    /// Distinguishes events that may happen several times to one attempt: its starts, its deferrals. 1 for the first.
    pub nth: u32,
    /// When it happened.
    pub at: Timestamp,
    /// The attempt it is about.
    pub of: Option<&'a Attempt>,
    /// Why a job was deferred, or made way for others.
    pub reason: Option<DeferReason>,
}

impl Event<'_> {
    /// The event's id: it stays the same when the event is published again.
    pub fn id(&self) -> String {
        let (run, kind) = (self.run, self.kind);
        let (attempt, nth) = self.numbers();
        let nth = if nth > 1 { format!("/{nth}") } else { String::new() };
        format!("{}/{}/{}/{attempt}/{kind}{nth}", run.tenant, run.run_id, run.round)
    }

    /// The node that it names: the one that ran the attempt, or decided what the event reports. It is the same when
    /// another node publishes the event again; `None` before a record is written, of what the publishing node decided.
    pub fn node(&self) -> Option<&SmolStr> {
        if let Some(attempt) = self.of {
            return Some(&attempt.node);
        }
        match self.kind {
            EventKind::Deferred => self.run.deferral.as_ref()?.node.as_ref(),
            EventKind::Cancelled | EventKind::Expired | EventKind::Duplicate | EventKind::Discarded => {
                self.run.ended_by.as_ref()
            }
            // A discarded run says who discarded it, no longer who found it dead.
            _ => self.run.accepted_by.as_ref(),
        }
    }

    /// Until when the run waits, of an event that says so. An end leaves a deferral's as it was.
    pub fn run_at(&self) -> Option<Timestamp> {
        let waits_until = || match self.run.state.wait() {
            Some(Wait::Until(at)) => Some(at),
            // A parked job has no time: it is taken back as soon as it can start.
            Some(Wait::Parked { .. }) | None => None,
        };
        match self.kind {
            EventKind::Scheduled => waits_until(),
            EventKind::Deferred => {
                let stored = match self.of {
                    Some(Attempt { detached: Some(detached), .. }) => Some(detached.until),
                    Some(attempt) => attempt.retry_at,
                    None => self.run.deferral.as_ref().and_then(|deferral| deferral.run_at),
                };
                // Records of earlier versions have it in the state alone.
                stored.or_else(waits_until)
            }
            _ => None,
        }
    }

    /// The attempt and the ordinal in its id.
    pub fn numbers(&self) -> (u32, u32) {
        // Deferrals of jobs are counted per round, deferrals by a handler per attempt: their ids must not collide.
        let attempt = if self.kind == EventKind::Deferred && self.of.is_none() { 0 } else { self.attempt };
        (attempt, self.nth)
    }
}

/// Events in the order in which they happened. The few events of most runs are stored inline.
pub type Events<'a> = SmallVec<[Event<'a>; 4]>;

/// The events of the run's current round, in the order in which they happened.
pub fn of_round(run: &Run) -> Events<'_> {
    let mut events = Events::new();
    let event = |kind, attempt, at| Event { run, kind, attempt, nth: 1, at, of: None, reason: None };
    let has_ended = matches!(run.state, State::Cancelled { .. } | State::Duplicate { .. });
    let waited_to_the_end = has_ended && run.enqueued_at.is_none();
    if run.state == RunState::Scheduled || waited_to_the_end {
        events.push(event(EventKind::Scheduled, 0, run.origin));
    }
    if let Some(at) = run.enqueued_at.filter(|_| run.round > 1) {
        events.push(event(EventKind::Replayed, 0, at));
    }
    if let Some(at) = run.enqueued_at {
        events.push(event(EventKind::Enqueued, 0, at));
    }
    for attempt in run.attempts_of_round() {
        push_attempt(run, attempt, &mut events);
    }
    // Consecutive deferrals of a job before its start, for one reason, have one event: a later one cannot happen before
    // the first is published. A deferral after the start is among the events of its attempt. Parking counts as a wait:
    // if a version that did not park jobs wrote the deferral of a parked job, the deferral's number is lost.
    let is_numbered = |deferral: &Deferral| deferral.nth > 0 || !run.state.is_parked();
    let waits = |deferral: &Deferral| {
        let of_attempt = run.attempts_of_round().last().is_some_and(|last| {
            let put_back = last.put_back.filter(|_| last.ended_at == Some(deferral.at)).and_then(reason_of);
            put_back.is_some() || last.detached.as_ref().is_some_and(|detached| detached.at == deferral.at)
        });
        deferral.count == 1 && !of_attempt && run.state != RunState::Running && is_numbered(deferral)
    };
    if let Some(deferral) = run.deferral.as_ref().filter(|deferral| waits(deferral)) {
        let nth = if deferral.nth > 0 { deferral.nth } else { run.deferrals };
        let reason = Some(deferral.reason);
        // The history decides, not the state, because an end changes the state: the event must stay as it was.
        let put_back = run.attempts_of_round().last().is_some_and(|last| last.put_back.is_some());
        let attempt = if put_back { run.attempt } else { run.attempt + 1 };
        events.push(Event { run, kind: EventKind::Deferred, attempt, nth, at: deferral.at, of: None, reason });
    }
    let (end, ended_at) = match &run.state {
        State::Completed { ended_at, .. } => (EventKind::Completed, *ended_at),
        State::Dead { ended_at } => (EventKind::Dlq, *ended_at),
        State::Cancelled { ended_at, .. } => (EventKind::Cancelled, *ended_at),
        State::Expired { ended_at } => (EventKind::Expired, *ended_at),
        State::Duplicate { ended_at, .. } => (EventKind::Duplicate, *ended_at),
        State::Discarded { ended_at, .. } => (EventKind::Discarded, *ended_at),
        State::Scheduled { .. } | State::Enqueued { .. } | State::Running | State::Retrying { .. } => return events,
    };
    let of = run.attempts_of_round().last();
    if let State::Discarded { died_at, .. } = run.state {
        events.push(Event { of, ..event(EventKind::Dlq, run.attempt, died_at) });
    }
    let made_way =
        end == EventKind::Cancelled && run.error.as_ref().is_some_and(|error| error.kind == ErrorKind::Cancelled);
    let reason = made_way.then_some(DeferReason::Concurrency);
    events.push(Event { of, reason, ..event(end, run.attempt, ended_at) });
    events
}

/// Whether the run's last deferral has an event of its own: it is published once per reason and wait, not at every
/// check.
pub fn publishes_last_deferral(run: &Run) -> bool {
    let Some(deferral) = &run.deferral else { return false };
    of_round(run).last().is_some_and(|last| last.kind == EventKind::Deferred && last.at == deferral.at)
}

/// Why an attempt was deferred after its start.
fn reason_of(why: PutBack) -> Option<DeferReason> {
    match why {
        PutBack::Snoozed => Some(DeferReason::Snoozed),
        PutBack::Busy => Some(DeferReason::Busy),
        PutBack::Released | PutBack::NotStarted => None,
    }
}

fn push_attempt<'a>(run: &'a Run, attempt: &'a Attempt, events: &mut Events<'a>) {
    let mut push = |kind, at, reason| {
        events.push(Event { run, kind, attempt: attempt.attempt, nth: attempt.start, at, of: Some(attempt), reason });
    };
    if attempt.put_back == Some(PutBack::NotStarted) {
        return;
    }
    push(EventKind::Started, attempt.started_at, None);
    if let Some(detached) = &attempt.detached {
        push(EventKind::Deferred, detached.at, Some(DeferReason::Detached));
    }
    let Some(ended_at) = attempt.ended_at else { return };
    match attempt.put_back {
        Some(PutBack::Released) => push(EventKind::Released, ended_at, None),
        Some(why @ (PutBack::Snoozed | PutBack::Busy)) => push(EventKind::Deferred, ended_at, reason_of(why)),
        // A cancelled attempt did not fail: the run's own end reports it.
        None if attempt.error.as_ref().is_some_and(|error| error.kind != ErrorKind::Cancelled) => {
            push(EventKind::Failed, ended_at, None);
        }
        Some(PutBack::NotStarted) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settlement::Settlement;
    use crate::{Failure, Job};

    fn published(run: &Run) -> Vec<String> {
        of_round(run).iter().map(|event| event.id().split_once('/').unwrap().1.to_owned()).collect()
    }

    fn run(max_attempts: u32) -> Run {
        Run::new(&Job::example(), max_attempts, Timestamp::from_millis(1))
    }

    #[test]
    fn consecutive_deferrals_for_one_reason_are_published_once() {
        let at = Timestamp::from_millis;
        let mut run = run(2);
        let mut look = |reason, put_back, now: i64| {
            run.begin(run.next_attempt(), &"n".into(), at(now));
            run.settle(Settlement::Defer { at: at(now + 50), reason, put_back }, at(now));
            let publishes = published(&run).last().is_some_and(|last| last.contains("deferred"));
            assert_eq!(publishes_last_deferral(&run), publishes, "{:?}", published(&run));
            published(&run).iter().skip(1).map(|event| event[4..].to_owned()).collect::<Vec<_>>().join(" ")
        };
        use DeferReason::{Busy, NoHandlerOnline, Snoozed};
        assert_eq!(look(NoHandlerOnline, None, 10), "0/deferred");
        assert_eq!(look(NoHandlerOnline, None, 20), "", "published before");
        assert_eq!(look(Busy, None, 30), "0/deferred/3", "another reason");
        assert_eq!(look(Busy, None, 40), "");
        assert_eq!(look(Busy, Some(PutBack::Busy), 50), "1/started 1/deferred", "it had started");
        assert_eq!(look(Busy, None, 60), "");
        assert_eq!(look(Snoozed, Some(PutBack::Snoozed), 70), "1/started/3 1/deferred/3");
        assert_eq!(look(Snoozed, Some(PutBack::Snoozed), 80), "1/started/4 1/deferred/4");
        assert_eq!((run.attempt, run.deferrals), (1, 8), "no attempt is used up");
    }

    #[test]
    fn an_end_in_place_of_a_start_has_no_start() {
        let at = Timestamp::from_millis;
        let late = || Settlement::NotStarted(Failure::new(ErrorKind::Timeout, "late"));
        let ended = |mut run: Run| {
            run.begin(run.next_attempt(), &"n".into(), at(10));
            run.settle(late(), at(11));
            let error = run.error.as_ref().unwrap().kind;
            (published(&run).join(" "), run.attempt, run.started_at.map(Timestamp::millis), run.attempts.len(), error)
        };
        let waits = |mut run: Run| {
            let reason = DeferReason::NoHandlerOnline;
            run.settle(Settlement::Defer { at: at(9), reason, put_back: None }, at(8));
            run
        };
        let new = "r/1/0/enqueued r/1/0/dlq".to_owned();
        assert_eq!(ended(run(3)), (new.clone(), 0, None, 0, ErrorKind::Timeout));
        assert_eq!(ended(waits(run(3))), (new, 0, None, 0, ErrorKind::Timeout), "its deferral was published before");
        let mut failed = run(3);
        failed.begin(1, &"n".into(), at(2));
        let mut replayed = failed.clone();
        let failure = Failure::new(ErrorKind::Retryable, "x");
        failed.settle(Settlement::Retry { at: at(9), failure: failure.clone() }, at(3));
        let first = "r/1/0/enqueued r/1/1/started r/1/1/failed r/1/1/dlq".to_owned();
        assert_eq!(ended(failed), (first, 1, Some(2), 1, ErrorKind::Timeout));
        replayed.settle(Settlement::Dead(failure), at(3));
        replayed.replay(at(4));
        let again = "r/2/0/replayed r/2/0/enqueued r/2/0/dlq".to_owned();
        assert_eq!(ended(replayed), (again, 0, None, 1, ErrorKind::Timeout));
        let mut busy = run(3);
        busy.begin(1, &"n".into(), at(2));
        let reason = DeferReason::Busy;
        busy.settle(Settlement::Defer { at: at(9), reason, put_back: Some(PutBack::Busy) }, at(3));
        assert_eq!(ended(busy), ("r/1/0/enqueued r/1/1/dlq".to_owned(), 1, Some(2), 1, ErrorKind::Timeout));
    }

    #[test]
    fn events_of_a_round_are_only_added_at_the_end() {
        let at = Timestamp::from_millis;
        let node = "n".into();
        let mut run = run(2);
        let mut before = published(&run);
        let mut grows = |run: &Run| {
            let now = published(run);
            assert!(now.starts_with(&before), "{before:?} is not a prefix of {now:?}");
            before = now;
        };
        run.begin(1, &node, at(2));
        grows(&run);
        run.settle(Settlement::Release, at(3));
        grows(&run);
        let released = published(&run);
        assert_eq!(released, ["r/1/0/enqueued", "r/1/1/started", "r/1/1/released"]);

        run.begin(1, &node, at(4));
        assert_eq!(published(&run), ["r/1/0/enqueued", "r/1/1/started/2"]);
        before = published(&run);
        let mut grows = |run: &Run| {
            let now = published(run);
            assert!(now.starts_with(&before), "{before:?} is not a prefix of {now:?}");
            before = now;
        };
        let failure = Failure::new(ErrorKind::Retryable, "x");
        run.settle(Settlement::Retry { at: at(9), failure: failure.clone() }, at(5));
        grows(&run);
        run.begin(2, &node, at(9));
        grows(&run);
        run.settle(Settlement::Dead(failure), at(10));
        grows(&run);
        let end = ["r/1/0/enqueued", "r/1/1/started/2", "r/1/1/failed/2", "r/1/2/started", "r/1/2/failed", "r/1/2/dlq"];
        assert_eq!(published(&run), end);
    }

    #[test]
    fn whichever_node_publishes_an_event_it_says_the_same() {
        let at = Timestamp::from_millis;
        let said = |run: &Run| -> Vec<String> {
            let each = of_round(run).into_iter().map(|event| {
                let node = event.node().map_or("-", |node| node.as_str());
                let until = event.run_at().map_or(String::new(), |until| format!(" until {}", until.millis()));
                format!("{} at {} by {node}{until}", event.kind, event.at.millis())
            });
            each.collect()
        };
        let mut run = run(3);
        assert_eq!(said(&run), ["enqueued at 1 by -"], "no record says who accepted it");
        let reason = DeferReason::RateLimited;
        run.settle(Settlement::Defer { at: at(60), reason, put_back: None }, at(5));
        run.sign(&"a".into(), "1".into());
        let mut so_far = vec!["enqueued at 1 by a".to_owned(), "deferred at 5 by a until 60".to_owned()];
        assert_eq!(said(&run), so_far);
        let mut expired = run.clone();
        expired.settle(Settlement::Expire, at(70));
        expired.sign(&"b".into(), "2".into());
        so_far.push("expired at 70 by b".to_owned());
        assert_eq!(said(&expired), so_far, "its end leaves what was published before as it was");
        expired.sign(&"c".into(), "3".into());
        assert_eq!(said(&expired), so_far, "so does a later version of the record");

        run.begin(1, &"b".into(), at(61));
        let put_back = Some(PutBack::Snoozed);
        run.settle(Settlement::Defer { at: at(90), reason: DeferReason::Snoozed, put_back }, at(62));
        run.settle(Settlement::Defer { at: at(99), reason: DeferReason::Busy, put_back: None }, at(91));
        run.sign(&"c".into(), "4".into());
        assert_eq!(said(&run)[..3], ["enqueued at 1 by a", "started at 61 by b", "deferred at 62 by b until 90"]);
        assert_eq!(said(&run)[3..], ["deferred at 91 by c until 99"]);

        let failure = Failure::new(ErrorKind::Timeout, "late");
        run.settle(Settlement::NotStarted(failure), at(100));
        run.sign(&"c".into(), "5".into());
        let dead = said(&run);
        run.discard(at(200));
        run.sign(&"d".into(), "6".into());
        assert_eq!(said(&run)[..dead.len()], dead, "its death stays when it was");
        run.replay(at(300));
        run.sign(&"e".into(), "7".into());
        assert_eq!(said(&run), ["replayed at 300 by e", "enqueued at 300 by e"]);
    }
}
