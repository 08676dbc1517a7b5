//! What follows an attempt: [`settle`] alone decides it, however the attempt ended.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::outcome::Outcome;
use crate::policy::TypePolicy;
use crate::run::{DeferReason, Late, PutBack, RunResult};
use crate::served::NeverServed;
use crate::{ErrorKind, Failure, Run, RunId, Timestamp};

/// What follows an attempt. Each is one write to the run's record; the other steps follow from the record.
#[derive(Debug, Clone)]
pub enum Settlement {
    /// The run has ended successfully.
    Complete(RunResult),
    /// Another attempt at `at`.
    Retry {
        /// When.
        at: Timestamp,
        /// Why.
        failure: Failure,
    },
    /// The run has ended with a failure; its job goes to the dead letters.
    Dead(Failure),
    /// The same, but its attempt did not start, because it could do so only when it is too late: it is as if the
    /// attempt had never begun.
    NotStarted(Failure),
    /// The job is tried again at `at`; no attempt is used up.
    Defer {
        /// When.
        at: Timestamp,
        /// Why.
        reason: DeferReason,
        /// Why the attempt is requeued, if it had started; otherwise it is as if it had not begun.
        put_back: Option<PutBack>,
    },
    /// The attempt goes on elsewhere, and ends by a call of the API or as its time is over.
    Detach(Box<Late>),
    /// The job goes back to its lane for any node with capacity; the attempt is not used up.
    Release,
    /// The job could start, but lacks something that all jobs of its kind wait for, such as handler capacity: it waits
    /// elsewhere, out of the way of the jobs behind it, until it returns. It uses up no attempt.
    Park {
        /// The moment from which its rank counts.
        since: Timestamp,
        /// What it waits for, if that is published as a deferral; `None`: the wait has no event.
        reason: Option<DeferReason>,
    },
    /// The job waits for its time.
    Schedule(Timestamp),
    /// The job was not started in time.
    Expire,
    /// The run is cancelled.
    Cancel,
    /// The same, because other runs of its concurrency key take precedence; the failure names them.
    MakeWay(Failure),
    /// This other run has its idempotency key.
    Duplicate(RunId),
}

/// What an attempt is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Its run, whose last attempt it is.
    pub run: &'a Run,
    /// How jobs of its type are treated.
    pub policy: &'a TypePolicy,
    /// The delays between attempts.
    pub backoff: &'a Backoff,
    /// When the whole run must have ended.
    pub deadline: Option<Timestamp>,
    /// It is certain that no handler of the type was ever online.
    pub never_served: Option<&'a NeverServed>,
}

impl Terms<'_> {
    fn in_a_row(&self, reason: DeferReason) -> u32 {
        self.run.deferred_for(reason).map_or(0, |deferral| deferral.count)
    }

    /// Since when the job has been deferred for lack of a handler.
    fn unserved_since(&self) -> Option<Timestamp> {
        self.run.deferred_for(DeferReason::NoHandlerOnline).map(|deferral| deferral.since)
    }

    /// Whether an attempt that found no handler at `now` fails, and does not only wait.
    pub fn has_waited_for_handler(&self, now: Timestamp) -> bool {
        now.since(self.unserved_since().unwrap_or(now)) >= self.policy.no_handler_grace
    }
}

/// The longest wait between two checks for a remote handler.
const NO_HANDLER_MAX: Duration = Duration::from_secs(5);

/// The first and the longest pause before handlers without capacity are asked again.
const BUSY: Duration = Duration::from_secs(1);
const BUSY_MAX: Duration = Duration::from_secs(30);

/// The wait of a job whose start took so long that it was not allowed any more, before it is asked about again.
const NOT_STARTED: Duration = Duration::from_millis(500);

/// Judges `outcome` at `now`; `chance` is evenly distributed in 0 ≤ chance < 1.
pub fn settle(outcome: Outcome, terms: Terms<'_>, now: Timestamp, chance: f64) -> Settlement {
    match outcome {
        Outcome::Completed(result) => Settlement::Complete(result),
        Outcome::Failed { failure, retry_after } => fail(failure, retry_after, terms, now, chance),
        Outcome::Snoozed(_) if terms.in_a_row(DeferReason::Snoozed) >= terms.policy.max_snoozes => {
            let message = format!("its handler snoozed the job more than {} times in a row", terms.policy.max_snoozes);
            fail(Failure::new(ErrorKind::Retryable, message), None, terms, now, chance)
        }
        Outcome::Snoozed(wait) => {
            let put_back = Some(PutBack::Snoozed);
            defer(now.plus(wait), DeferReason::Snoozed, put_back, terms)
        }
        Outcome::Detached { token, lasts } => Settlement::Detach(Box::new(Late::new(token, lasts, terms.deadline))),
        Outcome::Busy { started } => {
            let pause = (BUSY * (1 << terms.in_a_row(DeferReason::Busy).min(5))).min(BUSY_MAX);
            let put_back = started.then_some(PutBack::Busy);
            defer(now.plus(spread(pause, chance)), DeferReason::Busy, put_back, terms)
        }
        Outcome::NoHandler => {
            if terms.has_waited_for_handler(now) {
                return without_handler(terms, now, chance);
            }
            let count = terms.in_a_row(DeferReason::NoHandlerOnline);
            let wait = Duration::from_millis(250 << count.min(5)).min(NO_HANDLER_MAX);
            let wait = spread(wait, chance).min(terms.policy.no_handler_grace);
            defer(now.plus(wait), DeferReason::NoHandlerOnline, None, terms)
        }
        Outcome::OverLimit(reason) => defer(now.plus(NOT_STARTED), reason, None, terms),
        Outcome::Paused => defer(now.plus(NOT_STARTED), DeferReason::Paused, None, terms),
        Outcome::Released => Settlement::Release,
        Outcome::Cancelled => Settlement::Cancel,
    }
}

/// Makes a wait up to a quarter longer or shorter, so that jobs that were turned away together do not come back
/// together.
fn spread(wait: Duration, chance: f64) -> Duration {
    wait.mul_f64(0.75 + 0.5 * chance)
}

/// Waits until `at`, unless the whole run must have ended by then. What is not put back has not started.
fn defer(at: Timestamp, reason: DeferReason, put_back: Option<PutBack>, terms: Terms<'_>) -> Settlement {
    if terms.deadline.is_some_and(|deadline| at >= deadline) {
        let message = format!("the run's deadline comes before the end of its wait ({})", reason.as_str());
        let failure = Failure::new(ErrorKind::Timeout, message);
        return if put_back.is_some() { Settlement::Dead(failure) } else { Settlement::NotStarted(failure) };
    }
    Settlement::Defer { at, reason, put_back }
}

/// No handler came within the grace. If none ever was online, most likely the type or a subject is misspelt, and more
/// attempts do not mend that: the run is dead once it was tried for long enough. Until then its attempts are those of
/// any other run, but for one that comes as this time is over.
fn without_handler(terms: Terms<'_>, now: Timestamp, chance: f64) -> Settlement {
    let failed = |message| Failure::new(ErrorKind::NoHandler, message);
    let Some(never) = terms.never_served else {
        let grace = crate::DurationText(terms.policy.no_handler_grace);
        return fail(failed(format!("no handler was online for {grace}")), None, terms, now, chance);
    };
    let Some(grace) = terms.policy.never_served_grace else {
        return fail(failed(never.to_string()), None, terms, now, chance);
    };
    // Jobs that wait behind thousands of their type, or were published before any node was there, are looked at late:
    // for the first the node's own looks count, for the second no time before.
    let first_attempt = terms.run.attempts_of_round().map(|attempt| attempt.started_at).next();
    let tried = first_attempt.into_iter().chain(terms.unserved_since()).fold(never.missing_since, Timestamp::min);
    let until = tried.max(terms.run.waits_since()).plus(grace);
    if until <= now {
        return Settlement::Dead(failed(never.to_string()));
    }
    match fail(failed(never.to_string()), None, terms, now, chance) {
        Settlement::Retry { at, failure } => {
            let message = format!("{}; if none comes, the run is dead after {until}", failure.message);
            Settlement::Retry { at: at.min(until), failure: failed(message) }
        }
        dead => dead,
    }
}

fn fail(failure: Failure, after: Option<Duration>, terms: Terms<'_>, now: Timestamp, chance: f64) -> Settlement {
    let for_good = matches!(failure.kind, ErrorKind::Permanent | ErrorKind::Invalid | ErrorKind::Cancelled);
    if for_good || terms.run.attempt >= terms.run.max_attempts {
        return Settlement::Dead(failure);
    }
    let at = now.plus(after.unwrap_or_else(|| terms.backoff.delay(terms.run.attempt, chance)));
    if terms.deadline.is_some_and(|deadline| at >= deadline) {
        let message =
            format!("the run's deadline comes before its next attempt; the last one said: {}", failure.message);
        return Settlement::Dead(Failure::new(ErrorKind::Timeout, message));
    }
    Settlement::Retry { at, failure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Deferral;

    const NOW: i64 = 1_000_000;

    /// What a test changes.
    struct Judged {
        run: Run,
        deadline: Option<Timestamp>,
    }

    fn deferred(reason: DeferReason, since: i64, count: u32) -> Option<Deferral> {
        let since = Timestamp::from_millis(since);
        Some(Deferral { reason, since, at: since, count, nth: count, run_at: None, node: None })
    }

    fn judge(outcome: Outcome, attempt: u32, change: impl FnOnce(&mut Judged)) -> String {
        let backoff = Backoff::Delays(vec![Duration::from_secs(2)]);
        let policy = TypePolicy { max_snoozes: 3, ..TypePolicy::default() };
        let mut judged = Judged { run: Run { attempt, ..run() }, deadline: None };
        change(&mut judged);
        let Judged { run, deadline } = &judged;
        let terms = Terms { run, policy: &policy, backoff: &backoff, deadline: *deadline, never_served: None };
        match settle(outcome, terms, Timestamp::from_millis(NOW), 0.5) {
            Settlement::Retry { at, failure } => format!("retry +{} {:?}", at.millis() - NOW, failure.kind),
            Settlement::Dead(failure) => format!("dead {:?}", failure.kind),
            Settlement::NotStarted(failure) => format!("not started {:?}", failure.kind),
            Settlement::Defer { at, reason, put_back } => {
                format!("defer +{} {reason:?} {put_back:?}", at.millis() - NOW)
            }
            Settlement::Complete(_) => "complete".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    fn failed(kind: ErrorKind) -> Outcome {
        Outcome::Failed { failure: Failure::new(kind, "x"), retry_after: None }
    }

    #[test]
    fn the_decision_table() {
        let later = Outcome::Failed {
            failure: Failure::new(ErrorKind::Retryable, "x"),
            retry_after: Some(Duration::from_secs(30)),
        };
        let soon = |judged: &mut Judged| judged.deadline = Some(Timestamp::from_millis(NOW + 1_999));
        let waited = |millis| {
            move |judged: &mut Judged| judged.run.deferral = deferred(DeferReason::NoHandlerOnline, NOW - millis, 9)
        };
        assert_eq!(judge(Outcome::Completed(RunResult::None), 1, |_| ()), "complete");
        assert_eq!(judge(failed(ErrorKind::Retryable), 1, |_| ()), "retry +2000 Retryable");
        assert_eq!(judge(failed(ErrorKind::LeaseExpired), 2, |_| ()), "retry +2000 LeaseExpired");
        assert_eq!(judge(later, 1, |_| ()), "retry +30000 Retryable");
        assert_eq!(judge(failed(ErrorKind::Panic), 3, |_| ()), "dead Panic");
        assert_eq!(judge(failed(ErrorKind::Permanent), 1, |_| ()), "dead Permanent");
        assert_eq!(judge(failed(ErrorKind::Retryable), 1, soon), "dead Timeout");
        assert_eq!(judge(Outcome::Snoozed(Duration::from_secs(5)), 3, |_| ()), "defer +5000 Snoozed Some(Snoozed)");
        let snoozed =
            |times| move |judged: &mut Judged| judged.run.deferral = deferred(DeferReason::Snoozed, NOW, times);
        assert_eq!(judge(Outcome::Snoozed(Duration::from_secs(5)), 1, snoozed(2)), "defer +5000 Snoozed Some(Snoozed)");
        assert_eq!(judge(Outcome::Snoozed(Duration::from_secs(5)), 1, snoozed(3)), "retry +2000 Retryable");
        let busy = |times| {
            move |judged: &mut Judged| {
                (judged.run.deferral, judged.run.attempt) = (deferred(DeferReason::Busy, NOW, times), 3);
            }
        };
        let pauses = [(0, 1), (1, 2), (4, 16), (5, 30), (1_000_000, 30)];
        for (times, pause) in pauses {
            assert_eq!(judge(Outcome::Busy { started: false }, 1, busy(times)), format!("defer +{pause}000 Busy None"));
        }
        assert_eq!(judge(Outcome::Busy { started: true }, 1, busy(1)), "defer +2000 Busy Some(Busy)");
        assert_eq!(judge(Outcome::NoHandler, 1, |_| ()), "defer +250 NoHandlerOnline None");
        assert_eq!(judge(Outcome::NoHandler, 1, waited(59_999)), "defer +5000 NoHandlerOnline None");
        assert_eq!(judge(Outcome::NoHandler, 1, waited(60_000)), "retry +2000 NoHandler");
        assert_eq!(
            judge(Outcome::Snoozed(Duration::from_secs(5)), 1, soon),
            "dead Timeout",
            "it could not start again"
        );
        let at_once = |judged: &mut Judged| judged.deadline = Some(Timestamp::from_millis(NOW + 100));
        assert_eq!(judge(Outcome::Busy { started: true }, 1, at_once), "dead Timeout");
        let over_limit = Outcome::OverLimit(DeferReason::RateLimited);
        for outcome in [Outcome::NoHandler, Outcome::Busy { started: false }, over_limit, Outcome::Paused] {
            assert_eq!(judge(outcome, 1, at_once), "not started Timeout");
        }
        assert_eq!(judge(Outcome::Released, 3, |_| ()), "release");
        assert_eq!(judge(Outcome::Cancelled, 3, |_| ()), "cancel");
    }

    /// What follows when an attempt found no handler for a minute; the job was due, first tried and its handler missed
    /// by this node for so many seconds, and `grace` is how long a type may be tried that was never served.
    fn unserved(
        due: i64,
        first: i64,
        missing: i64,
        grace: Option<u64>,
        change: impl FnOnce(&mut Run, &mut Option<NeverServed>),
    ) -> String {
        let ago = |seconds: i64| Timestamp::from_millis(NOW - seconds * 1_000);
        let never = NeverServed {
            job_type: crate::JobType::parse("rendr").unwrap(),
            missing_since: ago(missing),
            nearest: None,
            subjects: ["l.work.acme.rendr", "l.work.*.rendr"].map(str::to_owned),
        };
        let backoff = Backoff::Delays(vec![Duration::from_secs(600)]);
        let policy = TypePolicy { never_served_grace: grace.map(Duration::from_secs), ..TypePolicy::default() };
        let mut run = Run { enqueued_at: Some(ago(due)), ..run() };
        run.begin(1, &"n".into(), ago(first));
        run.deferral = deferred(DeferReason::NoHandlerOnline, NOW - 60_000, 9);
        let mut never = Some(never);
        change(&mut run, &mut never);
        let terms =
            Terms { run: &run, policy: &policy, backoff: &backoff, deadline: None, never_served: never.as_ref() };
        match settle(Outcome::NoHandler, terms, Timestamp::from_millis(NOW), 0.5) {
            Settlement::Retry { at, failure } => format!("retry +{} {}", (at.millis() - NOW) / 1_000, failure.message),
            Settlement::Dead(failure) => format!("dead {:?} {}", failure.kind, failure.message),
            other => format!("{other:?}"),
        }
    }

    fn run() -> Run {
        let job = crate::Job {
            tenant: crate::Tenant::parse("acme").unwrap(),
            queue: crate::Queue::main(),
            priority: crate::Priority::DEFAULT,
            job_type: crate::JobType::parse("rendr").unwrap(),
            run_id: RunId::parse("r").unwrap(),
            options: None,
        };
        Run::new(&job, 3, Timestamp::from_millis(NOW))
    }

    #[test]
    fn a_type_that_was_never_served_is_tried_for_its_own_grace_and_then_dead() {
        let never = "no handler of `rendr` was ever online; its handlers subscribe to l.work.acme.rendr, or for all \
                     tenants to l.work.*.rendr";
        let whole = |said: String| said.split("; if none comes").next().unwrap().to_owned();
        assert_eq!(unserved(900, 900, 900, Some(900), |_, _| ()), format!("dead NoHandler {never}"));
        let soon = unserved(899, 899, 899, Some(900), |_, _| ());
        assert_eq!(whole(soon.clone()), format!("retry +1 {never}"), "no attempt waits beyond the end of the grace");
        let until = Timestamp::from_millis(NOW + 1_000);
        assert!(soon.ends_with(&format!("; if none comes, the run is dead after {until}")), "{soon}");
        assert_eq!(whole(unserved(60, 60, 60, Some(900), |_, _| ())), format!("retry +600 {never}"));
        // Of thousands of jobs the last is tried late; a job that was published days before any node was there is not.
        assert!(unserved(2_000, 60, 900, Some(900), |_, _| ()).starts_with("dead"), "this node has looked for long");
        assert!(unserved(2_000, 900, 60, Some(900), |_, _| ()).starts_with("dead"), "other nodes have");
        assert!(unserved(2_000, 60, 60, Some(900), |_, _| ()).starts_with("retry"), "none has");
        assert!(
            unserved(60, 60, 2_000, Some(900), |_, _| ()).starts_with("retry"),
            "the job is new, and a replayed one is"
        );
        assert_eq!(unserved(9_000, 9_000, 9_000, None, |_, _| ()), format!("retry +600 {never}"), "off");
        let last = unserved(60, 60, 60, Some(900), |run, _| run.attempt = 3);
        assert_eq!(last, format!("dead NoHandler {never}"), "its attempts are used up");
        let served = unserved(9_000, 9_000, 9_000, Some(900), |_, never| *never = None);
        assert_eq!(served, "retry +600 no handler was online for 1m");
        let first_look = |run: &mut Run, _: &mut Option<NeverServed>| run.deferral = None;
        assert!(unserved(9_000, 9_000, 9_000, Some(900), first_look).starts_with("Defer"), "the next one may find one");
    }
}
