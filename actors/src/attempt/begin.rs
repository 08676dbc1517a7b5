//! How an attempt begins: by the fast path, or by a claim on the run's record.
//!
//! `not_begun` says what follows where the record says that this delivery begins nothing, `unreadable` what becomes of
//! a job that cannot be read. Each way gives the attempt that begins, or the [`Disposition`] of its delivery, which is
//! carried out here and nowhere else.

use std::sync::Arc;

use longshore_backbone::Error;
use longshore_backbone::cancels::CONFIRM_TIMEOUT;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::header;
use longshore_domain::clearance::{JobFacts, clear};
use longshore_domain::protocol::Verdict;
use longshore_domain::publication::Published;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Run, fast_path};

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::keys::{self, Denied, line, order};
use crate::attempt::ports::Ports;
use crate::attempt::running::{AttemptState, RunningAttempt};
use crate::commit::chain;
use crate::commit::follow_up::has_other_id;
use crate::ports::{Rules as _, Server as _};
use crate::runtime::fail_point;
use crate::runtime::log_run::log_run;

mod disposition;
mod not_begun;
mod unreadable;

use disposition::Disposition;
use not_begun::not_begun;
use unreadable::{UNPROVEN, unreadable};

/// Begins the attempt that a delivery asks for. `None`: there is nothing to do, or a commit is on its way to the
/// committer.
///
/// Only the fast path is part of this future; the other ways are boxed, so that the future of a worker's message, which
/// is allocated for every job, stays small.
pub(crate) async fn begin<P: Ports>(ports: &P, mut assignment: Box<Assignment>) -> Option<RunningAttempt> {
    let begun = match std::mem::replace(&mut assignment.start, Start::Claim) {
        Start::Unread { mark } if takes_fast_path(ports, &assignment, mark) => {
            let run = Box::new(fresh(ports, &assignment));
            start(ports, &assignment, AttemptState::new(run, 0, Published::nothing(), false), 1, false)
        }
        Start::Unread { .. } | Start::Claim | Start::Detached => Box::pin(claim(ports, &mut assignment)).await,
        Start::HeldLocally(run, revision) => Box::pin(again_held_locally(ports, &assignment, run, revision)).await,
        Start::Invalid(reason) => Box::pin(unreadable(ports, &mut assignment, reason)).await,
    };
    match begun {
        Ok(attempt_state) => {
            // The next job with its key or id may look.
            assignment.place = None;
            Some(RunningAttempt::new(assignment, attempt_state))
        }
        Err(disposition) => {
            Box::pin(disposition.carry_out(ports, assignment)).await;
            None
        }
    }
}

fn takes_fast_path<P: Ports>(ports: &P, assignment: &Assignment, mark: u64) -> bool {
    let job = &assignment.job;
    ports.server().is_fast_path_open(&fast_path::Candidate {
        arrival: &assignment.arrival,
        options: job.options.as_deref(),
        mark,
        buffered_for: ports.instant().saturating_duration_since(assignment.leased_from),
        confirmed_within: CONFIRM_TIMEOUT,
        is_cancelled: ports.recently_cancelled().has(job),
        has_place: line::of(ports.policies(), job).is_some() || order::of(ports.policies(), job).is_some(),
    })
}

/// A short retry that this node held locally: claimed on the revision that the node wrote itself.
async fn again_held_locally<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    run: Box<Run>,
    revision: u64,
) -> Result<AttemptState, Disposition> {
    let attempt = run.next_attempt();
    let published = ports.server().published_when_held(&run);
    let attempt_state = AttemptState::new(run, revision, published, true);
    if assignment.entry.as_ref().is_some_and(|entry| entry.stop.is_cancelled()) {
        // While it waited here, or its handler was faster to hear of it than this node.
        return Err(Disposition::Settle(Box::new(attempt_state), Settlement::Cancel));
    }
    let attempt_state = start(ports, assignment, attempt_state, attempt, true)?;
    // Cancelled, or taken up elsewhere: that node answers for the run; this message is judged when it comes again.
    write_claim(ports, assignment, attempt_state).await?.map_err(|_| Disposition::Return)
}

/// Reads the record, claims what this delivery may claim, and judges again whenever another write was faster.
async fn claim<P: Ports>(ports: &P, assignment: &mut Assignment) -> Result<AttemptState, Disposition> {
    if ports.book().has(&assignment.arrival.holding.message) {
        // This very node is working on it: the server forgot that it had delivered it. Renewals go on as before.
        return Err(Disposition::Abandon);
    }
    assignment.come_to_place().await;
    assignment.arrival.has_aged = ports.now().since(assignment.arrival.holding.message.at) >= ports.lease();
    let mut found = match may_claim_on(ports, assignment).await {
        Some(found) => Some(found),
        None => ports.server().read_record(&assignment.job.tenant, &assignment.job.run_id).await?,
    };
    if found.is_none()
        && let Some(reason) = join(ports, assignment).await?
    {
        return unreadable(ports, assignment, reason).await;
    }
    loop {
        let verdict = ports.server().on_arrival(found.as_ref().map(|found| &found.run), &assignment.arrival);
        let base = match (verdict, found.take()) {
            (Verdict::Begin { round, attempt }, found) => on(ports, assignment, found, round, attempt),
            (Verdict::BeginAgain { round, attempt }, Some(found)) => {
                // The claim drops a start that was released from the record, so the log must have its events before.
                if ports.publish(&found.run, ports.server().published_at_redelivery(&found.run)).await.is_err() {
                    return Err(Disposition::Return);
                }
                on(ports, assignment, Some(found), round, attempt)
            }
            // The id is that of an earlier run, which has ended. A job without a key overwrites that run. A job with a
            // key goes on under another id (below) and keeps it, as its claim names it: the earlier run may be
            // replayed, and under that run's id the job would be a duplicate of itself.
            (Verdict::BeginAnew, Some(found))
                if keys::key_of(ports, &assignment.job).is_none()
                    && !has_other_id(ports.server(), &found.run, &assignment.arrival).await =>
            {
                Base { expected: found.revision, ..on(ports, assignment, None, 1, 1) }
            }
            (Verdict::Occupied | Verdict::BeginAnew, Some(_)) => {
                let [_, _, free] = assignment.ids();
                assignment.rename(free);
                return Box::pin(claim(ports, assignment)).await;
            }
            (Verdict::StaleRecord, _) => {
                ports.metrics().stale_reads.inc();
                let about = assignment.about();
                log_run!(warn, about, "the record is older than the job that came: read too early; it comes again");
                return Err(Disposition::Abandon);
            }
            (Verdict::Unproven, _) => return unreadable(ports, assignment, UNPROVEN.to_owned()).await,
            (verdict, Some(found)) => return not_begun(ports, assignment, found, verdict).await,
            (_, None) => unreachable!("without a record the verdict is to begin, or that it is not proven"),
        };
        match claim_on(ports, assignment, base).await? {
            Ok(attempt_state) => return Ok(attempt_state),
            Err(stored) => found = stored.map(|found| *found),
        }
    }
}

/// The record that a replica has, if the job may be claimed on it. A client's own publish mostly has none, so that only
/// its leader could say so.
async fn may_claim_on<P: Ports>(ports: &P, Assignment { job, arrival, .. }: &Assignment) -> Option<Found> {
    arrival.seal.as_ref()?;
    let found = ports.server().read_replica(&job.tenant, &job.run_id).await?;
    Some(found).filter(|found| ports.server().may_claim_on_replica(&found.run, arrival))
}

/// A job of a client's own publish joins its batch before anything of its run is stored, if its chain is sound. Returns
/// why it may not be run. A job that its batch refuses ends as no member of it, also if such a batch is created later.
async fn join<P: Ports>(ports: &P, assignment: &mut Assignment) -> Result<Option<String>, Error> {
    if assignment.arrival.seal.is_none()
        && let Some(reason) = chain::undeclared(ports, &assignment.job).await?
    {
        return Ok(Some(reason));
    }
    let Some(batch) = assignment.joins() else { return Ok(None) };
    let Err(reason) = ports.server().join_batch(&assignment.job, batch).await? else { return Ok(None) };
    if let Some(options) = &mut Arc::make_mut(&mut assignment.job).options {
        options.batch = None;
    }
    Ok(Some(format!("header Longshore-Batch-Id: {reason}")))
}

struct Base {
    run: Box<Run>,
    expected: u64,
    published: Published,
    attempt: u32,
    fell_due: bool,
}

/// Where a claim starts from: the record that was found, or a new run.
fn on<P: Ports>(ports: &P, assignment: &Assignment, found: Option<Found>, round: u32, attempt: u32) -> Base {
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

/// The record that is stored now, as another write of it was first.
type Overtaken = Option<Box<Found>>;

/// Claims the attempt, unless another write of the record is first.
async fn claim_on<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    base: Base,
) -> Result<Result<AttemptState, Overtaken>, Disposition> {
    let Base { run, expected, published, attempt, fell_due } = base;
    let mut attempt_state = AttemptState::new(run, expected, published, true);
    if let Some(outcome) = attempt_state.run.end_late() {
        // Its start was counted, and the wait before it traced, when it was detached.
        (attempt_state.is_counted, attempt_state.deferred) = (true, None);
        return Err(Disposition::End(attempt_state.into(), outcome));
    }
    let instead = instead(ports, assignment, &attempt_state.run, fell_due);
    if let Some(Settlement::Expire | Settlement::Dead(_)) = instead {
        keys::finish_take_over(ports, &assignment.job, &attempt_state.run).await?;
    } else {
        match keys::come(ports, assignment, &mut attempt_state, instead.as_ref()).await {
            Ok(()) => {}
            Err(Denied::Settled(settlement)) => return Err(Disposition::Settle(attempt_state.into(), settlement)),
            Err(Denied::Overtaken(found)) => return Ok(Err(found)),
            Err(Denied::Unanswered(error)) => return Err(Disposition::PutOff(error)),
        }
    }
    match instead {
        Some(settlement) => Err(Disposition::Settle(attempt_state.into(), settlement)),
        None => write_claim(ports, assignment, started(ports, assignment, attempt_state, attempt)).await,
    }
}

/// Stores the start, unless another write of the record is first.
async fn write_claim<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    mut attempt_state: AttemptState,
) -> Result<Result<AttemptState, Overtaken>, Disposition> {
    ports.sign(&mut attempt_state.run);
    fail_point::pass("before-claim");
    match ports.server().write_record(&attempt_state.run, attempt_state.expected).await {
        Ok(Written::Won(revision)) => {
            fail_point::pass("after-claim");
            if assignment.lease_is_over(ports.instant(), ports.lease()) {
                // The claim took longer than the lease. The node that gets the job next settles the attempt as lost.
                return Err(Disposition::Abandon);
            }
            attempt_state.expected = revision;
            Ok(Ok(attempt_state))
        }
        Ok(Written::Lost(found)) => Ok(Err(found)),
        Err(error) => {
            // What the server refused is not stored: a full bucket refuses one claim after the other.
            if !matches!(error, Error::Refused { .. }) {
                ports.unclear_claims().remember(&attempt_state.run.token);
            }
            Err(Disposition::PutOff(error))
        }
    }
}

/// A run without a stored record.
fn fresh<P: Ports>(ports: &P, assignment: &Assignment) -> Run {
    let mut run = assignment.waiting_run(ports.policies());
    run.origin = assignment.arrival.holding.message.at;
    run.round = assignment.arrival.round;
    run
}

/// The settlement that follows in place of the start, if the job may not start now.
fn instead<P: Ports>(ports: &P, assignment: &Assignment, run: &Run, fell_due: bool) -> Option<Settlement> {
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
    clearance.refusal().or_else(|| left_out(assignment)).or_else(|| {
        let park = assignment.park.as_ref()?;
        Some(Settlement::Park { since: park.forward.unwrap_or(assignment.since), reason: park.reason })
    })
}

/// The job's payload is gone: the server takes no message of its size any more.
fn left_out(assignment: &Assignment) -> Option<Settlement> {
    let bytes = header::read_job(assignment.headers()?).ok()?.moved?.left_out?;
    let message = format!(
        "payload: it had {bytes} bytes, more than this NATS server's max_payload lets through since; it was left out"
    );
    Some(Settlement::Dead(Failure::new(ErrorKind::Invalid, message)))
}

/// Sets the start of an attempt in its state, if the job may start now; nothing is written yet.
fn start<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    attempt_state: AttemptState,
    attempt: u32,
    fell_due: bool,
) -> Result<AttemptState, Disposition> {
    match instead(ports, assignment, &attempt_state.run, fell_due) {
        Some(settlement) => Err(Disposition::Settle(attempt_state.into(), settlement)),
        None => Ok(started(ports, assignment, attempt_state, attempt)),
    }
}

fn started<P: Ports>(
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
