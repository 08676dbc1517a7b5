//! Idempotency keys: decides whether a run still has its key.
//!
//! A claim is an index: it says which run took a key, and for how long its scope keeps it. Whether that run still has
//! the key is never written there: the run's record says so, once it has started or ended. So no node has to give a key
//! back, and no node can die before it did: one that wants the key reads the claim, then the record of its run, and
//! takes the key by a compare-and-set on the claim that was read. The rules:
//!
//! * A run starts only after a write of the claim in its name, made while its record says that it has not ended. A job
//!   that gives its key back early writes its record before its claim; each later round writes the claim again.
//! * So a taker that read the record before that write loses the compare-and-set, and one that read it after finds the
//!   run as it is: no two runs of one key are within the scope at once.
//! * Without a record the run has ended long ago: no run of such a key is claimed before its record is stored.

use std::time::Duration;

use crate::job::Unique;
use crate::run::State;
use crate::{Run, RunId, RunState, Timestamp};

/// The ends that free a key before its window is over. A discarded run was dead before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReleaseOn {
    /// The run failed for good.
    pub dead: bool,
    /// The run was cancelled.
    pub cancelled: bool,
    /// The run did not start in time.
    pub expired: bool,
}

impl ReleaseOn {
    fn frees(self, state: RunState) -> bool {
        match state {
            RunState::Dead | RunState::Discarded => self.dead,
            RunState::Cancelled => self.cancelled,
            RunState::Expired => self.expired,
            _ => false,
        }
    }
}

/// What the record of a run says about the key that the run claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyVerdict {
    /// The run has the key.
    Held,
    /// Another run may take it.
    Free,
    /// The run made way for this one, which has the key or is about to take it.
    PassedTo(RunId),
}

/// Judges whether the run that a claim of the scope `unique` names still has the key; `found` is its record.
pub fn on_claim(found: Option<&Run>, unique: Unique, release_on: ReleaseOn) -> KeyVerdict {
    let Some(run) = found else {
        // Only a completed run's record may go before its window is over.
        return if unique == Unique::Window { KeyVerdict::Held } else { KeyVerdict::Free };
    };
    if let Some(other) = run.state.duplicate_of() {
        return KeyVerdict::PassedTo(other.clone());
    }
    let is_free = match unique {
        Unique::Window => false,
        Unique::Queued => run.has_started() || run.state.is_terminal(),
        Unique::Active => run.state.is_terminal(),
    };
    if is_free || release_on.frees(run.state.name()) { KeyVerdict::Free } else { KeyVerdict::Held }
}

/// Whether a run of this scope writes its record before it claims its key, so that its claim implies a record.
pub fn is_recorded_first(unique: Unique) -> bool {
    unique != Unique::Window
}

/// Whether a dead run may be without its key, so that its next round must claim it first: its end has freed it, its
/// window may be over, or the run ended before it claimed it.
pub fn is_claimed_again(run: &Run, unique: Unique, release_on: ReleaseOn, now: Timestamp) -> bool {
    let may_be_over = |millis| now.since(run.origin) >= Duration::from_millis(millis);
    unique != Unique::Window || release_on.dead || run.key_claimed_ms.is_none_or(may_be_over)
}

/// Whether a run makes way for one that replaces it.
///
/// Each run makes way for a later one only, in an order that all runs have, so that of several that replace at once all
/// nodes mean the same one to stay. The time of a submission is its node's; [`replacing_since`] sees to it that it is
/// later than what it replaces.
pub fn makes_way(run: &Run, since: Timestamp, by: &RunId) -> bool {
    is_replaceable(run) && (run.origin, &run.run_id) < (since, by)
}

/// Whether a run comes after the one that counts from `since`, in the order in which runs make way.
pub fn is_later(run: &Run, since: Timestamp, than: &RunId) -> bool {
    (run.origin, &run.run_id) > (since, than)
}

/// The time that a submission counts from which replaces the run `before`: now, or just after that run if this node's
/// clock is behind.
pub fn replacing_since(before: &Run, now: Timestamp) -> Timestamp {
    now.max(before.origin.plus(Duration::from_millis(1)))
}

/// Whether it is not known yet if this run has its key, and it may still take it.
pub fn is_undecided(run: &Run) -> bool {
    is_replaceable(run) && run.held_by.is_none() && run.key_claimed_ms.is_none()
}

/// Whether another run may replace this one: no node has started it, and it was not replayed.
pub fn is_replaceable(run: &Run) -> bool {
    matches!(run.state, State::Scheduled { .. } | State::Enqueued { .. }) && !run.has_started() && run.round == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunResult;
    use crate::settlement::Settlement;
    use crate::{ErrorKind, Failure, Job};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn waiting() -> Run {
        Run::new(&Job::example(), 3, at(1))
    }

    #[test]
    fn of_two_runs_only_the_earlier_makes_way_and_every_two_differ() {
        let named = |name: &str, origin| Run { run_id: RunId::parse(name).unwrap(), origin: at(origin), ..waiting() };
        let runs = [named("b", 1), named("a", 2), named("b", 2), named("a", 3)];
        for (nth, one) in runs.iter().enumerate() {
            for (other_nth, other) in runs.iter().enumerate() {
                let way = makes_way(one, other.origin, &other.run_id);
                assert_eq!(way, nth < other_nth, "{} {}", one.run_id, other.run_id);
                assert_eq!(is_later(one, other.origin, &other.run_id), nth > other_nth);
            }
        }
        let mut started = named("b", 1);
        started.begin(1, &"n".into(), at(2));
        assert!(!makes_way(&started, at(9), &runs[3].run_id));
        assert_eq!(replacing_since(&runs[1], at(9)), at(9));
        assert_eq!(replacing_since(&runs[1], at(1)), at(3), "this node's clock is behind");
    }

    fn after(starts: bool, settlement: Option<Settlement>) -> Run {
        let mut run = waiting();
        if starts {
            run.begin(1, &"n".into(), at(2));
        }
        if let Some(settlement) = settlement {
            run.settle(settlement, at(3));
        }
        run
    }

    #[test]
    fn the_decision_table() {
        use KeyVerdict::{Free, Held};
        let dead = || Settlement::Dead(Failure::new(ErrorKind::Permanent, "x"));
        let retry = Settlement::Retry { at: at(9), failure: Failure::new(ErrorKind::Retryable, "x") };
        let discarded = {
            let mut run = after(true, Some(dead()));
            run.discard(at(4));
            run
        };
        let replayed = {
            let mut run = after(true, Some(dead()));
            run.replay(at(4));
            run
        };
        // The run; whether it has its key under window, queued, active; under window if every end frees it.
        let table = [
            ("waits", Some(waiting()), [Held, Held, Held, Held]),
            ("is scheduled", Some(after(false, Some(Settlement::Schedule(at(9))))), [Held, Held, Held, Held]),
            ("runs", Some(after(true, None)), [Held, Free, Held, Held]),
            ("is retried", Some(after(true, Some(retry))), [Held, Free, Held, Held]),
            ("was put back", Some(after(true, Some(Settlement::Release))), [Held, Free, Held, Held]),
            ("completed", Some(after(true, Some(Settlement::Complete(RunResult::None)))), [Held, Free, Free, Held]),
            ("died", Some(after(true, Some(dead()))), [Held, Free, Free, Free]),
            ("was discarded", Some(discarded), [Held, Free, Free, Free]),
            ("was replayed", Some(replayed), [Held, Held, Held, Held]),
            ("was cancelled", Some(after(false, Some(Settlement::Cancel))), [Held, Free, Free, Free]),
            ("expired", Some(after(false, Some(Settlement::Expire))), [Held, Free, Free, Free]),
            ("has no record", None, [Held, Free, Free, Held]),
        ];
        let all = ReleaseOn { dead: true, cancelled: true, expired: true };
        let none = ReleaseOn::default();
        let asked = [(Unique::Window, none), (Unique::Queued, none), (Unique::Active, none), (Unique::Window, all)];
        for (what, run, expected) in table {
            let judged = asked.map(|(unique, release_on)| on_claim(run.as_ref(), unique, release_on));
            assert_eq!(judged, expected, "a run that {what}");
        }
    }

    #[test]
    fn a_run_that_made_way_says_for_whom() {
        let other = RunId::parse("other").unwrap();
        let run = after(false, Some(Settlement::Duplicate(other.clone())));
        for unique in [Unique::Window, Unique::Queued, Unique::Active] {
            assert_eq!(on_claim(Some(&run), unique, ReleaseOn::default()), KeyVerdict::PassedTo(other.clone()));
        }
    }

    #[test]
    fn only_a_run_that_no_node_has_started_is_replaced() {
        assert!(is_replaceable(&waiting()));
        assert!(is_replaceable(&after(false, Some(Settlement::Schedule(at(9))))));
        assert!(is_replaceable(&after(false, Some(Settlement::Park { since: at(1), reason: None }))));
        assert!(!is_replaceable(&after(true, None)));
        assert!(!is_replaceable(&after(true, Some(Settlement::Release))));
        assert!(!is_replaceable(&after(false, Some(Settlement::Cancel))));
        let mut replayed = after(true, Some(Settlement::Dead(Failure::new(ErrorKind::Permanent, "x"))));
        replayed.replay(at(4));
        assert!(!is_replaceable(&replayed));
    }

    #[test]
    fn what_lost_its_key_claims_it_again() {
        let dead = ReleaseOn { dead: true, ..ReleaseOn::default() };
        let kept = ReleaseOn { cancelled: true, ..ReleaseOn::default() };
        let never_had_it = waiting();
        let has_it = Run { key_claimed_ms: Some(1_000), ..waiting() };
        assert!(!is_claimed_again(&has_it, Unique::Window, kept, at(1_000)));
        assert!(is_claimed_again(&has_it, Unique::Window, kept, at(1_001)), "its window may be over");
        assert!(is_claimed_again(&never_had_it, Unique::Window, kept, at(1)));
        assert!(is_claimed_again(&has_it, Unique::Window, dead, at(1)));
        assert!(is_claimed_again(&has_it, Unique::Queued, ReleaseOn::default(), at(1)));
        assert!(is_recorded_first(Unique::Active) && !is_recorded_first(Unique::Window));
    }
}
