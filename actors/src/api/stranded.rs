//! Whether a run is stranded: nothing is left that could bring it on.
//!
//! A run that waits for a time is, if that time is over and neither its schedule nor a message of it is there. A
//! running run is, if its message is gone, as with a lane that somebody deleted, and no node works on it. Both are said
//! only of a record that has not changed meanwhile. The sweep names such runs, and the API says so to a client that
//! asks for one.

use std::time::Duration;

use longshore_backbone::holders::HolderQuestion;
use longshore_backbone::{Backbone, Error};
use longshore_domain::run::Wait;
use longshore_domain::{Run, State, Timestamp};

use crate::runtime::now;

/// How long a node has to say whether it works on a job.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// What a run that nothing can bring on has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Its schedule: its time is over.
    Schedule,
    /// The message of its attempt: no node works on it.
    Message,
}

/// How long after its time a schedule counts as overdue: an election takes about as long, and a server that has 100,000
/// to fire at once is 4 s late.
pub(crate) fn grace(lease: Duration) -> Duration {
    (lease / 3).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// What a run may have lost, as its record and the time say; the servers know whether it has.
pub(crate) fn suspected(run: &Run, lease: Duration, now: Timestamp) -> Option<Lost> {
    // A lease that nobody renews does not last until then.
    let started_before = now.minus(lease + grace(lease));
    // Its schedule is swept first, and its lane may be long.
    let due_before = now.minus(grace(lease) * 3);
    match &run.state {
        State::Running if run.attempts.last().is_some_and(|last| last.started_at < started_before) => {
            Some(Lost::Message)
        }
        State::Scheduled { at }
        | State::Enqueued { wait: Some(Wait::Until(at)) }
        | State::Retrying { wait: Wait::Until(at) }
            if *at < due_before =>
        {
            Some(Lost::Schedule)
        }
        _ => None,
    }
}

/// What a run has lost that nothing can bring on; `None`: something can, or its time has not come for long enough.
///
/// # Errors
/// A leader did not answer.
pub(crate) async fn of(backbone: &Backbone, run: &Run, revision: u64) -> Result<Option<Lost>, Error> {
    let Some(lost) = suspected(run, backbone.storage().lease, now()) else { return Ok(None) };
    let is_lost = match lost {
        Lost::Message => backbone.has_no_message(run).await? && !is_held(backbone, run).await?,
        Lost::Schedule => !backbone.may_come(run).await?,
    };
    // The record is read last: a node that took the job up meanwhile has written it.
    Ok(if is_lost && backbone.is_unchanged(run, revision).await? { Some(lost) } else { None })
}

/// Whether a node works on it, or may: one that is there and does not answer is perhaps frozen.
async fn is_held(backbone: &Backbone, run: &Run) -> Result<bool, Error> {
    let (Some(node), Some(held_by)) = (&run.node, &run.held_by) else { return Ok(true) };
    let question = HolderQuestion { message: held_by.message.clone(), token: run.token.clone() };
    match backbone.ask_holder(node, &question, ANSWER_WITHIN).await {
        Some(answer) => Ok(answer.holds),
        None => Ok(backbone.nodes().present(now()).await?.iter().any(|there| there.node == **node)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_domain::run::{DeferReason, RunResult};
    use longshore_domain::settlement::Settlement;
    use longshore_domain::{ErrorKind, Failure};

    const LEASE: Duration = Duration::from_secs(30);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn fresh() -> Run {
        let job = crate::tests::job("t", "r");
        Run::new(&job, 3, at(0))
    }

    /// Its attempt began at 100 s.
    fn running() -> Run {
        let mut run = fresh();
        run.begin(1, &"n1".into(), at(100));
        run
    }

    fn settled(mut run: Run, settlement: Settlement) -> Run {
        run.settle(settlement, at(100));
        run
    }

    #[test]
    fn a_run_that_waits_is_suspected_once_its_time_is_over_by_more_than_servers_are_ever_late() {
        let failure = Failure::new(ErrorKind::Retryable, "no");
        let waits = [
            settled(fresh(), Settlement::Schedule(at(200))),
            settled(running(), Settlement::Retry { at: at(200), failure }),
            settled(fresh(), Settlement::Defer { at: at(200), reason: DeferReason::Paused, put_back: None }),
        ];
        for run in waits {
            assert_eq!(suspected(&run, LEASE, at(230)), None, "{:?}", run.state);
            assert_eq!(suspected(&run, LEASE, at(231)), Some(Lost::Schedule), "{:?}", run.state);
        }
    }

    #[test]
    fn a_running_run_is_suspected_once_no_lease_can_have_lasted_so_long() {
        assert_eq!(suspected(&running(), LEASE, at(140)), None);
        assert_eq!(suspected(&running(), LEASE, at(141)), Some(Lost::Message));
    }

    #[test]
    fn a_run_that_waits_for_no_time_and_one_that_has_ended_is_never_suspected() {
        let parked = settled(fresh(), Settlement::Park { since: at(0), reason: None });
        let ended = settled(running(), Settlement::Complete(RunResult::None));
        for run in [fresh(), parked, ended] {
            assert_eq!(suspected(&run, LEASE, at(1_000_000)), None, "{:?}", run.state);
        }
    }

    #[test]
    fn the_grace_follows_the_lease_within_what_an_election_takes() {
        let grace = |seconds| super::grace(Duration::from_secs(seconds)).as_secs();
        assert_eq!([grace(1), grace(15), grace(30), grace(600)], [1, 5, 10, 10]);
    }
}
