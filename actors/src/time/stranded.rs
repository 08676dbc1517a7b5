//! Whether a run is stranded: nothing is left that could bring it on.
//!
//! A run that waits for a time is, if that time is over and neither its schedule nor a message of it is there. A running
//! run is, if its message is gone, as with a lane that somebody deleted, and no node works on it. Both are said only
//! of a record that has not changed meanwhile. The sweep names such runs, and the API tells whoever asks for one.

use std::time::Duration;

use longshore_backbone::holders::HolderQuestion;
use longshore_backbone::{Backbone, Error};
use longshore_domain::run::Wait;
use longshore_domain::{Run, State, Timestamp};

use crate::shared::now;

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

/// How long after its time a schedule counts as overdue: an election takes about as long, and a server that has 100,000 to
/// fire at once is 4 s late.
pub(crate) fn grace(backbone: &Backbone) -> Duration {
    (backbone.storage().lease / 3).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// Before when a run's time must have been for the run to be looked at: its schedule is swept first, and its lane may be
/// long.
pub(crate) fn overdue_before(backbone: &Backbone) -> Timestamp {
    now().minus(grace(backbone) * 3)
}

/// Whether the run's attempt has been running for longer than a lease lasts that nobody renews.
pub(crate) fn is_past_a_lease(backbone: &Backbone, run: &Run) -> bool {
    let before = now().minus(backbone.storage().lease + grace(backbone));
    run.attempts.last().is_some_and(|last| last.started_at < before)
}

/// What a run has lost that nothing can bring on; `None`: something can, or its time has not come for long enough.
///
/// # Errors
/// A leader did not answer.
pub(crate) async fn of(backbone: &Backbone, run: &Run, revision: u64) -> Result<Option<Lost>, Error> {
    let lost = match &run.state {
        State::Running if is_past_a_lease(backbone, run) => Lost::Message,
        State::Scheduled { at }
        | State::Enqueued { wait: Some(Wait::Until(at)) }
        | State::Retrying { wait: Wait::Until(at) }
            if *at < overdue_before(backbone) =>
        {
            Lost::Schedule
        }
        _ => return Ok(None),
    };
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
