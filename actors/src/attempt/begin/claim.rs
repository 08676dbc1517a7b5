//! The claim by which an attempt begins: the run's record as it will be, the keys that it needs, and the write.

use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::rarely::Rarely;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::header;
use longshore_domain::backoff::{Backoff, Jitter};
use longshore_domain::clearance::{JobFacts, clear};
use longshore_domain::publication::Published;
use longshore_domain::run::whole_millis;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Run};

use crate::attempt::assignment::Assignment;
use crate::attempt::conclude;
use crate::attempt::keys::{self, AtBegin, line};
use crate::attempt::ports::Ports;
use crate::attempt::running::{AttemptState, RunningAttempt};
use crate::ports::{Rules as _, Server as _};
use crate::runtime::fail_point;
use crate::runtime::log_run::log_run;

/// The first and the longest wait of a job whose record no server could be asked for.
const UNANSWERED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The same where the record cannot be read.
const UNREADABLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Each job in hand may be put off while its record's bucket has no leader.
static PUT_OFF: Rarely = Rarely::once_in(Duration::from_secs(1));

#[expect(clippy::large_enum_variant, reason = "made and taken apart at once, for every job")]
pub(crate) enum Begun {
    /// The handler may be called.
    Work(RunningAttempt),
    /// There is nothing to do, or the commit is on its way to the committer.
    Over,
}

/// Whether the job may start now; if not, the settlement that follows.
pub(super) fn cleared<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    run: &Run,
    fell_due: bool,
) -> Result<(), Settlement> {
    let waiting = JobFacts {
        options: assignment.job.options.as_deref(),
        enqueued_at: run.enqueued_at.unwrap_or(assignment.since),
        fell_due,
        started_before: run.has_started(),
        needs: ports.needs(&assignment.job),
    };
    let clearance = clear(waiting, ports.now());
    if let Some(reason) = clearance.gives_up() {
        ports.gave_up(run, reason);
    }
    let instead = clearance.refusal().or_else(|| left_out(assignment)).or_else(|| {
        let park = assignment.park.as_ref()?;
        Some(Settlement::Park { since: park.forward.unwrap_or(assignment.since), reason: park.reason })
    });
    instead.map_or(Ok(()), Err)
}

/// The job's payload is gone: the server takes no message of its size any more.
fn left_out(assignment: &Assignment) -> Option<Settlement> {
    let bytes = header::read_job(assignment.headers()?).ok()?.moved?.left_out?;
    let message = format!(
        "payload: it had {bytes} bytes, more than this NATS server's max_payload lets through since; it was left out"
    );
    Some(Settlement::Dead(Failure::new(ErrorKind::Invalid, message)))
}

/// Sets the start of an attempt in its state; nothing is written yet.
pub(super) fn started<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    mut attempt_state: AttemptState,
    attempt: u32,
) -> AttemptState {
    let run = &mut attempt_state.run;
    attempt_state.published = ports.server().published_at_start(attempt_state.published, run, attempt);
    run.begin(attempt, ports.node(), ports.now());
    run.held_by = Some(assignment.arrival.holding.clone());
    attempt_state
}

/// Another write of the record was first: the assignment, and the record that is stored now.
pub(super) type AnothersClaim = (Box<Assignment>, Option<Found>);

/// Claims the attempt; if another write was first, returns the assignment and the record that is stored now.
pub(super) async fn claim_on<P: Ports>(
    ports: &P,
    assignment: Box<Assignment>,
    base: Base,
) -> Result<Begun, AnothersClaim> {
    let Base { run, expected, published, attempt, fell_due } = base;
    let mut attempt_state = AttemptState::new(run, expected, published, true);
    if let Some(outcome) = attempt_state.run.end_late() {
        // Its start was counted, and the wait before it traced, when it was detached.
        (attempt_state.is_counted, attempt_state.deferred) = (true, None);
        conclude::judge(ports, assignment, attempt_state, outcome).await;
        return Ok(Begun::Over);
    }
    let clearance = cleared(ports, &assignment, &attempt_state.run, fell_due);
    let refused = match clearance {
        Err(settlement @ (Settlement::Expire | Settlement::Dead(_))) => {
            if let Err(error) = keys::finish_take_over(ports, &assignment.job, &attempt_state.run).await {
                return Ok(put_off(ports, assignment, &error).await);
            }
            Some(settlement)
        }
        other => match claim_keys(ports, &assignment, &mut attempt_state, other.as_ref().err()).await {
            Ok(AtBegin::Owned) => other.err(),
            Ok(AtBegin::Refused(settlement)) => Some(settlement),
            Ok(AtBegin::Overtaken(found)) => return Err((assignment, found.map(|found| *found))),
            Err(error) => return Ok(put_off(ports, assignment, &error).await),
        },
    };
    if let Some(settlement) = refused {
        conclude::carry_out(ports, assignment, attempt_state, settlement).await;
        return Ok(Begun::Over);
    }
    let attempt_state = started(ports, &assignment, attempt_state, attempt);
    write_claim(ports, assignment, attempt_state).await
}

/// Makes sure that the job's idempotency key is its own, that it is let in at the line of its concurrency key, and that
/// it is its turn in the order of that.
async fn claim_keys<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    attempt_state: &mut AttemptState,
    instead: Option<&Settlement>,
) -> Result<AtBegin, Error> {
    match keys::claim_at_begin(ports, assignment, attempt_state, instead).await? {
        AtBegin::Owned => line::come(ports, assignment, attempt_state, instead).await,
        other => Ok(other),
    }
}

/// Stores the start; if another write was first, returns the assignment and the record that is stored now.
pub(super) async fn write_claim<P: Ports>(
    ports: &P,
    assignment: Box<Assignment>,
    mut attempt_state: AttemptState,
) -> Result<Begun, AnothersClaim> {
    ports.sign(&mut attempt_state.run);
    fail_point::pass("before-claim");
    match ports.server().write_record(&attempt_state.run, attempt_state.expected).await {
        Ok(Written::Won(revision)) => {
            fail_point::pass("after-claim");
            if assignment.lease_is_over(ports.instant(), ports.lease()) {
                // The claim took longer than the lease. The node that gets the job next settles the attempt as lost.
                assignment.ack_token.abandon();
                return Ok(Begun::Over);
            }
            attempt_state.expected = revision;
            Ok(Begun::Work(RunningAttempt::new(assignment, attempt_state)))
        }
        Ok(Written::Lost(found)) => Err((assignment, found.map(|found| *found))),
        Err(error) => {
            ports.unclear_claims().add(&attempt_state.run.token);
            Ok(put_off(ports, assignment, &error).await)
        }
    }
}

pub(super) struct Base {
    pub(super) run: Box<Run>,
    pub(super) expected: u64,
    pub(super) published: Published,
    pub(super) attempt: u32,
    pub(super) fell_due: bool,
}

/// Where a claim starts from: the record that was found, or a new run.
pub(super) fn on<P: Ports>(ports: &P, assignment: &Assignment, found: Option<Found>, round: u32, attempt: u32) -> Base {
    let Some(Found { run, revision }) = found else {
        let mut run = Box::new(fresh(ports, assignment));
        run.round = round;
        let fell_due = assignment.arrival.moved;
        return Base { run, expected: 0, published: Published::nothing(), attempt, fell_due };
    };
    let mut run = Box::new(run);
    let published = ports.server().published_at_arrival(&run);
    run.fall_due(assignment.since);
    let fell_due = assignment.arrival.moved || run.has_started();
    Base { run, expected: revision, published, attempt, fell_due }
}

/// A run without a stored record.
pub(super) fn fresh<P: Ports>(ports: &P, assignment: &Assignment) -> Run {
    let mut run = Run::new(&assignment.job, ports.max_attempts(&assignment.job), assignment.since);
    run.search = ports.policies().searched(&assignment.job.job_type, &assignment.payload.body);
    run.origin = assignment.arrival.holding.message.at;
    run.round = assignment.arrival.round;
    run.trace_id = assignment.payload.trace_id();
    run.keep_ms = run.keep_ms.or_else(|| ports.policy(&assignment.job).keep.map(whole_millis));
    run
}

/// The record could not be read or written just now: the job comes again after a wait that grows with each delivery.
///
/// A record that is there and cannot be read does not become readable by itself. It cannot be known whether its run has
/// ended, so its job is neither started nor given up: it waits until a person cancels the run or removes the record, or
/// until a node of a newer version gets it, which may have written it.
pub(super) async fn put_off<P: Ports>(ports: &P, assignment: Box<Assignment>, error: &Error) -> Begun {
    let is_unreadable = error.unreadable_at().is_some();
    if !is_unreadable && let Some(times) = PUT_OFF.happened("", Instant::now()) {
        log_run!(warn, assignment.about(), times, "returned to its lane: {}", error.with_causes());
    }
    if assignment.lease_is_over(ports.instant(), ports.lease()) {
        assignment.ack_token.abandon();
        return Begun::Over;
    }
    let (base, max) = if is_unreadable { UNREADABLE } else { UNANSWERED };
    let waits = Backoff::Exponential { base, factor: 2.0, max, jitter: Jitter::Proportional(0.25) };
    let deliveries = u32::try_from(assignment.arrival.holding.delivery).unwrap_or(u32::MAX);
    ports.server().nak_after(assignment.ack_token, waits.delay(deliveries, ports.chance())).await;
    Begun::Over
}
