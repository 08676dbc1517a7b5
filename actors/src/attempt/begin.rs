//! How an attempt begins: by the fast path, or by a claim on the run's record.

use std::sync::Arc;

use longshore_backbone::Error;
use longshore_backbone::records::{Found, Written};
use longshore_domain::clearance::{Waiting, clear};
use longshore_domain::follow_up;
use longshore_domain::protocol::{self, Arrival, Holder, Verdict};
use longshore_domain::publication::Published;
use longshore_domain::run::{State, whole_millis};
use longshore_domain::settlement::{Outcome, Settlement};
use longshore_domain::{ErrorKind, Failure, Job, Run, RunId};

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::cancelled::CONFIRM_TIMEOUT;
use crate::attempt::conclude;
use crate::attempt::holders;
use crate::attempt::keys::{self, AtBegin};
use crate::attempt::running::{AttemptState, RunningAttempt};
use crate::attempt::{line, order};
use crate::commit::follow_up::has_other_id;
use crate::commit::{AfterCommit, Commit};
use crate::fail_point;
use crate::ports::{Ports, Rules as _, Server as _};
use crate::shared::log_run::{About, log_run};

/// How often per lease a job whose holder is silent is delivered again.
const LOOKS_PER_LEASE: u32 = 4;

/// The result of beginning.
#[expect(clippy::large_enum_variant, reason = "made and taken apart at once, for every job")]
pub(crate) enum Begun {
    /// The handler may be called.
    Work(RunningAttempt),
    /// There is nothing to do, or the commit is on its way to the committer.
    Over,
}

/// Begins the attempt that a delivery asks for.
///
/// Only the fast path is part of this future; the other ways are boxed, so that the future of a worker's message, which
/// is allocated for every job, stays small.
pub(crate) async fn begin<P: Ports>(ports: &P, mut assignment: Box<Assignment>) -> Begun {
    match std::mem::replace(&mut assignment.start, Start::Claim) {
        // A node that cancels waits only so long for this one to confirm: a job that was buffered for longer is
        // claimed.
        Start::FastPath
            if ports.recently_cancelled().has(&assignment.job)
                || is_buffered_for_long(ports, &assignment)
                || line::of(ports, &assignment.job).is_some()
                || order::of(ports.policies(), &assignment.job).is_some() =>
        {
            Box::pin(claim(ports, assignment)).await
        }
        Start::FastPath => fast_path(ports, assignment).await,
        Start::Claim => Box::pin(claim(ports, assignment)).await,
        Start::HeldLocally(run, revision) => Box::pin(again_held_locally(ports, assignment, run, revision)).await,
        Start::Invalid(reason) => Box::pin(unreadable(ports, assignment, reason)).await,
    }
}

/// Whether a node that cancels the run would no longer wait for this one.
fn is_buffered_for_long<P: Ports>(ports: &P, assignment: &Assignment) -> bool {
    ports.instant().saturating_duration_since(assignment.leased_from) > CONFIRM_TIMEOUT
}

/// A job that cannot be read, or whose claims about itself no record proves, becomes a dead letter. It gets the id it
/// names if that id has no record, else the id derived from its position in the lane. A job that claims to be sent by a
/// node never gets the id that it names. It may have become a dead letter before, in a node that died meanwhile.
async fn unreadable<P: Ports>(ports: &P, mut assignment: Box<Assignment>, reason: String) -> Begun {
    let is_forged = assignment.arrival.seal.is_some();
    assignment.arrival = as_bare(assignment.arrival);
    for run_id in ids_of(&assignment).into_iter().skip(usize::from(is_forged)) {
        rename(&mut assignment, run_id);
        let job = &assignment.job;
        let found = match ports.server().read_record(&job.tenant, &job.run_id).await {
            Ok(found) => found,
            Err(error) => return put_off(ports, assignment, &error),
        };
        let verdict = ports.server().on_arrival(found.as_ref().map(|found| &found.run), &assignment.arrival);
        let attempt_state = match (verdict, found) {
            (_, None) => refused(ports, &assignment, 0),
            (Verdict::BeginAnew, Some(found))
                if !has_other_id(ports.server(), &found.run, &assignment.arrival).await =>
            {
                refused(ports, &assignment, found.revision)
            }
            // A node that could read it put it back: one of another version, or before the limit on its size was lower.
            (Verdict::BeginAgain { .. }, Some(Found { run, revision })) => {
                let published = ports.server().published_at_redelivery(&run);
                AttemptState::new(Box::new(run), revision, published, true)
            }
            (verdict, Some(found)) if is_of(&found.run, &assignment) => {
                return not_begun(ports, assignment, found, verdict).await;
            }
            _ => continue,
        };
        let failure = Failure::new(ErrorKind::Invalid, reason);
        log_run!(warn, assignment.about(), "invalid job: {}", failure.message);
        conclude::carry_out(ports, assignment, attempt_state, Settlement::Dead { failure }).await;
        return Begun::Over;
    }
    log_run!(error, assignment.about(), "an invalid job finds no id of its own; it comes again");
    assignment.ack_token.abandon();
    Begun::Over
}

/// The state of a job that is refused, whose run has no record yet. It has only one event, that of its dead letter.
fn refused<P: Ports>(ports: &P, assignment: &Assignment, expected: u64) -> AttemptState {
    let run = Box::new(Run { enqueued_at: None, ..fresh(ports, assignment) });
    AttemptState::new(run, expected, Published::nothing(), false)
}

/// The arrival of a client's own publish, whatever its headers say.
fn as_bare(arrival: Arrival) -> Arrival {
    Arrival { round: 1, attempt: 1, deferrals: 0, due_at: None, moved: false, seal: None, ..arrival }
}

/// The ids that a job may run under, the first that is free: the id it names; the id derived from its position in the
/// lane; and, if a stream that is gone had that position before, the derived id with the time the job was stored.
fn ids_of(assignment: &Assignment) -> [RunId; 3] {
    let (job, message) = (&assignment.job, &assignment.arrival.holding.message);
    let derived = RunId::derived(&job.queue, job.priority, message.sequence);
    let timed = RunId::derived_at(&derived, message.at);
    [job.run_id.clone(), derived, timed]
}

/// The job runs under this id.
pub(crate) fn rename(assignment: &mut Assignment, run_id: RunId) {
    if assignment.job.run_id != run_id {
        assignment.arrival.has_derived_id = run_id.as_derived().is_some();
        assignment.job = Arc::new(Job { run_id, ..(*assignment.job).clone() });
    }
}

/// Whether a run is the job's own.
fn is_of(run: &Run, assignment: &Assignment) -> bool {
    let Assignment { job, arrival, .. } = assignment;
    let derived = RunId::derived(&job.queue, job.priority, arrival.holding.message.sequence);
    protocol::is_of(run, arrival, &derived)
}

/// A run without a stored record.
fn fresh<P: Ports>(ports: &P, assignment: &Assignment) -> Run {
    let mut run = Run::new(&assignment.job, ports.max_attempts(&assignment.job), assignment.since);
    run.origin = assignment.arrival.holding.message.at;
    run.round = assignment.arrival.round;
    run.trace_id = assignment.payload.trace_id();
    run.keep_ms = run.keep_ms.or_else(|| ports.policy(&assignment.job).keep.map(whole_millis));
    run
}

async fn fast_path<P: Ports>(ports: &P, assignment: Box<Assignment>) -> Begun {
    let run = Box::new(fresh(ports, &assignment));
    let attempt_state = AttemptState::new(run, 0, Published::nothing(), false);
    match cleared(ports, &assignment, &attempt_state.run, false) {
        Ok(()) => {
            let attempt_state = started(ports, &assignment, attempt_state, 1);
            Begun::Work(RunningAttempt::new(assignment, attempt_state))
        }
        Err(settlement) => {
            Box::pin(conclude::carry_out(ports, assignment, attempt_state, settlement)).await;
            Begun::Over
        }
    }
}

/// Whether the job may start now; if not, the settlement that follows.
fn cleared<P: Ports>(ports: &P, assignment: &Assignment, run: &Run, fell_due: bool) -> Result<(), Settlement> {
    let waiting = Waiting {
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
    match clearance.refusal() {
        Some(settlement) => Err(settlement),
        None => match &assignment.park {
            Some(park) => {
                Err(Settlement::Park { since: park.forward().unwrap_or(assignment.since), reason: park.reason() })
            }
            None => Ok(()),
        },
    }
}

/// Sets the start of an attempt in its state; nothing is written yet.
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

/// Reads the record, claims what this delivery may claim, and judges again whenever another write was faster.
async fn claim<P: Ports>(ports: &P, mut assignment: Box<Assignment>) -> Begun {
    if ports.book().has(&assignment.arrival.holding.message) {
        // This very node is working on it: the server forgot that it had delivered it. Renewals go on as before.
        assignment.ack_token.abandon();
        return Begun::Over;
    }
    let stored_at = assignment.arrival.holding.message.at;
    assignment.arrival.has_aged = ports.now().since(stored_at) >= ports.lease();
    let job = &assignment.job;
    let mut found = match ports.server().read_record(&job.tenant, &job.run_id).await {
        Ok(found) => found,
        Err(error) => return put_off(ports, assignment, &error),
    };
    loop {
        let verdict = ports.server().on_arrival(found.as_ref().map(|found| &found.run), &assignment.arrival);
        let base = match (verdict, found.take()) {
            (Verdict::Begin { round, attempt }, found) => on(ports, &assignment, found, round, attempt),
            (Verdict::BeginAgain { round, attempt }, Some(found)) => {
                // The claim drops a start that was released from the record, so the log must have its events before.
                if ports.publish(&found.run, ports.server().published_at_redelivery(&found.run)).await.is_err() {
                    return return_or_abandon(ports, assignment);
                }
                on(ports, &assignment, Some(found), round, attempt)
            }
            // A job with a key keeps one id, which its claim names: under the other one, of which the earlier run may be
            // replayed, it would be the duplicate of itself.
            (Verdict::BeginAnew, Some(found))
                if keys::key_of(ports, &assignment.job).is_none()
                    && !has_other_id(ports.server(), &found.run, &assignment.arrival).await =>
            {
                let base = on(ports, &assignment, None, 1, 1);
                Base { expected: found.revision, ..base }
            }
            (Verdict::Occupied | Verdict::BeginAnew, Some(_)) => {
                let [_, _, free] = ids_of(&assignment);
                rename(&mut assignment, free);
                return Box::pin(claim(ports, assignment)).await;
            }
            (Verdict::StaleRecord, _) => {
                ports.metrics().stale_reads.inc();
                let about = assignment.about();
                log_run!(warn, about, "the record is older than the job that came: read too early; it comes again");
                assignment.ack_token.abandon();
                return Begun::Over;
            }
            (Verdict::Unproven, _) => return Box::pin(unreadable(ports, assignment, UNPROVEN.to_owned())).await,
            (verdict, Some(found)) => return not_begun(ports, assignment, found, verdict).await,
            (_, None) => unreachable!("without a record the verdict is to begin, or that it is not proven"),
        };
        let lost = match claim_on(ports, assignment, base).await {
            Ok(begun) => return begun,
            Err(lost) => lost,
        };
        (assignment, found) = lost;
    }
}

/// Why a job that carries a node's headers, but no proof of them, is refused.
const UNPROVEN: &str =
    "headers: say which round and attempt of a run the job is, as only nodes may, and no record proves it";

type AnothersClaim = (Box<Assignment>, Option<Found>);

/// Claims the attempt; if another write was first, returns the assignment to the caller with the record that is stored
/// now.
async fn claim_on<P: Ports>(ports: &P, assignment: Box<Assignment>, base: Base) -> Result<Begun, AnothersClaim> {
    let Base { run, expected, published, attempt, fell_due } = base;
    let mut attempt_state = AttemptState::new(run, expected, published, true);
    let clearance = cleared(ports, &assignment, &attempt_state.run, fell_due);
    let refused = match clearance {
        Err(settlement @ (Settlement::Expire | Settlement::Dead { .. })) => {
            if let Err(error) = keys::finish_take_over(ports, &assignment.job, &attempt_state.run).await {
                return Ok(put_off(ports, assignment, &error));
            }
            Some(settlement)
        }
        other => match claim_keys(ports, &assignment, &mut attempt_state, other.as_ref().err()).await {
            Ok(AtBegin::Owned) => other.err(),
            Ok(AtBegin::Refused(settlement)) => Some(settlement),
            Ok(AtBegin::Overtaken(found)) => return Err((assignment, found.map(|found| *found))),
            Err(error) => return Ok(put_off(ports, assignment, &error)),
        },
    };
    if let Some(settlement) = refused {
        conclude::carry_out(ports, assignment, attempt_state, settlement).await;
        return Ok(Begun::Over);
    }
    let attempt_state = started(ports, &assignment, attempt_state, attempt);
    write_claim(ports, assignment, attempt_state).await
}

/// Makes sure that the job's idempotency key is its own, that it is let in at the line of its concurrency key, and that it
/// is its turn in the order of that.
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

/// Stores the start of an attempt; if another write was first, returns the assignment to the caller with the record
/// that is stored now.
async fn write_claim<P: Ports>(
    ports: &P,
    assignment: Box<Assignment>,
    mut attempt_state: AttemptState,
) -> Result<Begun, AnothersClaim> {
    attempt_state.run.token = ports.token();
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
            Ok(put_off(ports, assignment, &error))
        }
    }
}

/// The state on which a claim is made.
struct Base {
    run: Box<Run>,
    expected: u64,
    published: Published,
    attempt: u32,
    fell_due: bool,
}

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

/// The record says that this delivery must not begin an attempt.
async fn not_begun<P: Ports>(ports: &P, assignment: Box<Assignment>, found: Found, verdict: Verdict) -> Begun {
    let Found { run, revision } = found;
    let run = Box::new(run);
    match verdict {
        Verdict::Drop => ports.server().ack(assignment.ack_token).await,
        Verdict::HeldElsewhere => return held_elsewhere(ports, assignment, run, revision).await,
        Verdict::TakeOver => take_over(ports, assignment, run, revision).await,
        Verdict::CarryOut | Verdict::PublishEnd => {
            // It may have been cancelled, or have made way, just after a node had taken a key over for it.
            if (verdict == Verdict::PublishEnd || run.state.duplicate_of().is_some())
                && let Err(error) = keys::finish_take_over(ports, &assignment.job, &run).await
            {
                return put_off(ports, assignment, &error);
            }
            // Decided under this message, or cancelled: events that may be missing are published, and the decision is
            // carried out again.
            let follow_up = follow_up::plan(&run).follow_up;
            let published = match run.state {
                State::Duplicate { .. } if run.published && verdict == Verdict::PublishEnd => {
                    Published::at_made_way(&run)
                }
                // It may have made way before anything of it was published.
                State::Duplicate { .. } if run.published => Published::nothing(),
                _ => ports.server().published_at_redelivery(&run),
            };
            let mut commit = Commit::of_stored(run, assignment.payload, published, ports.author());
            commit.follow_up = follow_up;
            commit.after = AfterCommit::Ack(assignment.ack_token);
            ports.commit(Box::new(commit)).await;
        }
        Verdict::Begin { .. }
        | Verdict::BeginAgain { .. }
        | Verdict::BeginAnew
        | Verdict::Occupied
        | Verdict::Unproven
        | Verdict::StaleRecord => unreachable!("what may begin has been begun"),
    }
    Begun::Over
}

/// The run waits for its time, perhaps held locally by another node: the write takes it from there, then it is
/// scheduled.
async fn take_over<P: Ports>(ports: &P, assignment: Box<Assignment>, mut run: Box<Run>, revision: u64) {
    let published = ports.server().published_at_redelivery(&run);
    run.held_by = Some(assignment.arrival.holding.clone());
    run.token = ports.token();
    let follow_up = follow_up::plan(&run).follow_up;
    let mut commit = Commit::to_write(run, assignment.payload, revision, published, ports.author());
    commit.arrival = Some(assignment.arrival);
    commit.follow_up = follow_up;
    commit.after = AfterCommit::Ack(assignment.ack_token);
    ports.commit(Box::new(commit)).await;
}

/// The record says that an attempt of the run is running under this very message: its holder lost the lease, or the
/// server delivered the job again too early. The time of the holder's last sign decides.
async fn held_elsewhere<P: Ports>(ports: &P, assignment: Box<Assignment>, run: Box<Run>, revision: u64) -> Begun {
    // The time of asking counts: this node may be frozen before it judges the answer.
    let asked_at = ports.now();
    let holder = holders::ask(ports, &run).await;
    if matches!(holder, Holder::NeverStarted) {
        return take_up_claim(ports, assignment, run, revision).await;
    }
    let lease = ports.lease();
    if ports.server().lease_is_lost(&run, holder, asked_at, lease) {
        lease_lost(ports, assignment, run, revision).await;
    } else if let Holder::Silent(seen_at) = holder {
        // The job comes again when the lease would be over, unless its holder renews it meanwhile. It comes sooner than
        // that, as a holder that only had no connection may answer then.
        let over_at = protocol::last_sign(&run, seen_at).plus(lease);
        let again_after = over_at.since(ports.now()).min(lease / LOOKS_PER_LEASE);
        ports.server().nak_after(assignment.ack_token, again_after).await;
    } else {
        assignment.ack_token.abandon();
    }
    Begun::Over
}

/// A claim of this node or another whose answer was lost: the attempt was never started. The claim is written again
/// first, as another node may be about to settle the attempt as lost.
async fn take_up_claim<P: Ports>(ports: &P, assignment: Box<Assignment>, mut run: Box<Run>, revision: u64) -> Begun {
    let published = ports.server().published_at_unclear_claim(&run);
    run.held_by = Some(assignment.arrival.holding.clone());
    run.begin_instead(ports.node(), ports.now());
    let attempt_state = AttemptState::new(run, revision, published, true);
    write_claim(ports, assignment, attempt_state).await.unwrap_or_else(|(assignment, _)| {
        assignment.ack_token.abandon();
        Begun::Over
    })
}

/// The attempt in the record lost its lease: it is settled so, and its events are published for the node that could
/// not.
async fn lease_lost<P: Ports>(ports: &P, mut assignment: Box<Assignment>, run: Box<Run>, revision: u64) {
    let silent = run.node.clone().unwrap_or_else(|| "a node".into());
    let about = About::run(&run).traced(assignment.payload.trace_id());
    log_run!(warn, about, node = %silent, "its holder lost the lease");
    ports.metrics().leases_judged_lost.inc();
    let message = format!("{silent} fell silent while it held the job");
    let outcome = Outcome::Failed { failure: Failure::new(ErrorKind::LeaseExpired, message), retry_after: None };
    // What ended is not this probe, which did not call the service.
    assignment.permits.breaker = assignment.permits.breaker.take().filter(|pass| !pass.is_probe());
    let published = ports.server().published_at_redelivery(&run);
    let mut attempt_state = AttemptState::new(run, revision, published, true);
    // By the node that started it.
    attempt_state.is_counted = true;
    conclude::judge(ports, assignment, attempt_state, outcome).await;
}

/// A short retry that this node held locally: claimed on the revision that the node wrote itself.
async fn again_held_locally<P: Ports>(ports: &P, assignment: Box<Assignment>, run: Box<Run>, revision: u64) -> Begun {
    let attempt = run.next_attempt();
    let published = ports.server().published_when_held(&run);
    let attempt_state = AttemptState::new(run, revision, published, true);
    if let Err(settlement) = cleared(ports, &assignment, &attempt_state.run, true) {
        conclude::carry_out(ports, assignment, attempt_state, settlement).await;
        return Begun::Over;
    }
    let attempt_state = started(ports, &assignment, attempt_state, attempt);
    write_claim(ports, assignment, attempt_state).await.unwrap_or_else(|(assignment, _)| {
        // Cancelled, or taken up elsewhere: that node answers for the run; this message is judged when it comes again.
        assignment.ack_token.nak();
        Begun::Over
    })
}

/// The record could not be read or written just now: the job is returned and keeps its place.
fn put_off<P: Ports>(ports: &P, assignment: Box<Assignment>, error: &longshore_backbone::Error) -> Begun {
    log_run!(warn, assignment.about(), "returned to its lane: {}", error.with_causes());
    return_or_abandon(ports, assignment)
}

fn return_or_abandon<P: Ports>(ports: &P, assignment: Box<Assignment>) -> Begun {
    assignment.return_or_abandon(ports.instant(), ports.lease());
    Begun::Over
}
