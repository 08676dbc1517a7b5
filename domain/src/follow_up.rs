//! Plans the steps that a written record calls for, and so carries a decision out.
//!
//! The steps run in this order, and each waits until the one before is confirmed: the node writes the record, publishes
//! its events ([`publication`](crate::publication)), writes the follow-up, and acknowledges or returns the delivery
//! last. Any node that reads the record again makes the same plan from it, so a node may die between any two steps.

use crate::run::{State, Wait};
use crate::{Run, Timestamp};

/// The message that the run's next step needs. The node writes it only after the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowUp {
    /// A schedule: the job comes again at this time.
    Schedule(Timestamp),
    /// The job is parked until it can start; its rank counts from this time.
    Park(Timestamp),
    /// A dead letter: it keeps the job for people.
    DeadLetter,
    /// The job of the run that follows in its chain.
    Then,
}

/// Plans what follows from `run` as it was written.
pub fn plan(run: &Run) -> Option<FollowUp> {
    match &run.state {
        // An erased job does not come back.
        State::Dead { .. } if run.erased_at.is_none() => Some(FollowUp::DeadLetter),
        state if state.is_terminal() => run.child().map(|_| FollowUp::Then),
        state => state.wait().map(|wait| match wait {
            Wait::Until(at) => FollowUp::Schedule(at),
            Wait::Parked { since } => FollowUp::Park(since),
        }),
    }
}

/// Whether the node returns the delivery that led to this record to the server: the run waits, and only this message
/// continues it. Any other it acknowledges: the run has ended, or its next message is durable.
pub fn returns_delivery(run: &Run) -> bool {
    matches!(run.state, State::Enqueued { wait: None })
}

/// Whether the follow-up of `run` leads to a message that needs a seal, and the record does not have one yet.
pub fn needs_seal(run: &Run) -> bool {
    run.state.wait().is_some() && run.seal.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{DeferReason, PutBack, RunResult};
    use crate::settlement::Settlement;
    use crate::{ErrorKind, Failure, Job, JobType, RunId};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// Settles a run whose first attempt runs or, unless `runs`, one that waits.
    fn after(settlement: Settlement, runs: bool) -> Run {
        let mut run = Run::new(&Job::example(), 3, at(1));
        if runs {
            run.begin(1, &"n".into(), at(2));
        }
        run.settle(settlement, at(3));
        run
    }

    #[test]
    fn the_decision_table() {
        let failure = || Failure::new(ErrorKind::Retryable, "x");
        let defer = |put_back| Settlement::Defer { at: at(9), reason: DeferReason::Busy, put_back };
        let of = RunId::parse("other").unwrap();
        let scheduled = (Some(FollowUp::Schedule(at(9))), false);
        let parked = (Some(FollowUp::Park(at(9))), false);
        let dead_letter = (Some(FollowUp::DeadLetter), false);
        let acknowledged = (None, false);
        let returned = (None, true);
        let table = [
            (Settlement::Complete(RunResult::None), true, acknowledged),
            (Settlement::Retry { at: at(9), failure: failure() }, true, scheduled),
            (Settlement::Dead(failure()), true, dead_letter),
            (Settlement::Dead(failure()), false, dead_letter),
            (defer(None), true, scheduled),
            (defer(Some(PutBack::Busy)), true, scheduled),
            (Settlement::Release, true, returned),
            (Settlement::Schedule(at(9)), false, scheduled),
            (Settlement::Park { since: at(9), reason: None }, false, parked),
            (Settlement::Park { since: at(9), reason: Some(DeferReason::RateLimited) }, false, parked),
            (Settlement::Expire, false, acknowledged),
            (Settlement::Cancel, true, acknowledged),
            (Settlement::Cancel, false, acknowledged),
            (Settlement::Duplicate(of), false, acknowledged),
        ];
        for (settlement, runs, expected) in table {
            let run = after(settlement.clone(), runs);
            assert_eq!((plan(&run), returns_delivery(&run)), expected, "{settlement:?}");
            assert_eq!(needs_seal(&run), [scheduled, parked].contains(&expected), "{settlement:?}");
        }
    }

    #[test]
    fn another_job_follows_only_a_run_that_has_completed() {
        let chained = |settlement| Run { then: JobType::parse("next").ok(), ..after(settlement, true) };
        let failure = Failure::new(ErrorKind::Permanent, "x");
        let follow_up = |settlement| plan(&chained(settlement));
        assert_eq!(follow_up(Settlement::Complete(RunResult::None)), Some(FollowUp::Then));
        assert_eq!(follow_up(Settlement::Dead(failure)), Some(FollowUp::DeadLetter));
        assert_eq!((follow_up(Settlement::Cancel), follow_up(Settlement::Expire)), (None, None));
    }

    #[test]
    fn what_was_erased_becomes_no_dead_letter() {
        let mut run = after(Settlement::Dead(Failure::new(ErrorKind::Permanent, "x")), true);
        run.erase(at(5));
        assert_eq!((plan(&run), returns_delivery(&run)), (None, false));
    }

    #[test]
    fn a_cancelled_run_is_not_scheduled_though_its_record_keeps_the_time() {
        let mut run = after(Settlement::Schedule(at(9)), false);
        run.settle(Settlement::Cancel, at(5));
        assert_eq!((run.state.wait(), plan(&run)), (Some(Wait::Until(at(9))), None));
    }

    #[test]
    fn one_seal_is_enough() {
        let run = after(Settlement::Schedule(at(9)), false);
        assert!(!needs_seal(&Run { seal: "5ea1".into(), ..run }));
    }
}
