//! What becomes of a delivery that begins no attempt: the one place where such a delivery ends.

use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::rarely::Rarely;
use longshore_domain::backoff::{Backoff, Jitter};
use longshore_domain::outcome::Outcome;
use longshore_domain::settlement::Settlement;

use crate::attempt::assignment::Assignment;
use crate::attempt::conclude;
use crate::attempt::ports::Ports;
use crate::attempt::running::AttemptState;
use crate::commit::{AfterCommit, Commit};
use crate::ports::Server as _;
use crate::runtime::log_run::log_run;

/// The first and the longest wait of a job whose record no server could be asked for.
const UNANSWERED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The same where the record cannot be read.
const UNREADABLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Each job in hand may be put off while its record's bucket has no leader.
static PUT_OFF: Rarely = Rarely::once_in(Duration::from_secs(1));

/// What becomes of a delivery that begins no attempt.
pub(super) enum Disposition {
    /// Another delivery of the job, or another node, answers for it; or its lease is over.
    Abandon,
    /// The job has nothing more to do.
    Acknowledge,
    /// The job comes again at once, and keeps its place.
    Return,
    /// The job comes again after this time.
    ReturnAfter(Duration),
    /// The record could not be read or written just now.
    PutOff(Error),
    /// What was decided of the run before is carried out again.
    Again(Box<Commit>),
    /// This is decided of the run, which does not start.
    Settle(Box<AttemptState>, Settlement),
    /// The attempt ended so, here or elsewhere.
    End(Box<AttemptState>, Outcome),
}

impl From<Error> for Disposition {
    fn from(error: Error) -> Self {
        Self::PutOff(error)
    }
}

impl Disposition {
    pub(super) async fn carry_out<P: Ports>(self, ports: &P, mut assignment: Box<Assignment>) {
        // The next job with its key or id looks once this is on its way.
        let _place = assignment.place.take();
        match self {
            Self::Abandon => assignment.ack_token.abandon(),
            Self::Acknowledge => ports.server().ack(assignment.ack_token).await,
            Self::Return => assignment.return_or_abandon(ports.instant(), ports.lease()),
            Self::ReturnAfter(wait) => ports.server().nak_after(assignment.ack_token, wait).await,
            Self::PutOff(error) => put_off(ports, *assignment, &error).await,
            Self::Again(mut commit) => {
                commit.after = AfterCommit::Ack(assignment.ack_token);
                ports.commit(commit).await;
            }
            Self::Settle(attempt_state, settlement) => {
                conclude::carry_out(ports, assignment, *attempt_state, settlement).await;
            }
            Self::End(attempt_state, outcome) => conclude::judge(ports, assignment, *attempt_state, outcome).await,
        }
    }
}

/// The job comes again after a wait that grows with each delivery.
///
/// A record that is there and cannot be read does not become readable by itself. It cannot be known whether its run has
/// ended, so its job is neither started nor given up: it waits until a person cancels the run or removes the record, or
/// until a node of a newer version gets it, which may have written it.
async fn put_off<P: Ports>(ports: &P, assignment: Assignment, error: &Error) {
    let is_unreadable = error.unreadable_at().is_some();
    if !is_unreadable && let Some(times) = PUT_OFF.happened("", Instant::now()) {
        log_run!(warn, assignment.about(), times, "returned to its lane: {}", error.with_causes());
    }
    if assignment.lease_is_over(ports.instant(), ports.lease()) {
        return assignment.ack_token.abandon();
    }
    let (base, max) = if is_unreadable { UNREADABLE } else { UNANSWERED };
    let waits = Backoff::Exponential { base, factor: 2.0, max, jitter: Jitter::Proportional(0.25) };
    let deliveries = u32::try_from(assignment.arrival.holding.delivery).unwrap_or(u32::MAX);
    ports.server().nak_after(assignment.ack_token, waits.delay(deliveries, ports.chance())).await;
}
