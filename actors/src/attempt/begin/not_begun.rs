//! What a delivery does whose attempt may not begin: the record says that the run has ended, waits, or runs elsewhere.

use longshore_backbone::records::Found;
use longshore_domain::follow_up;
use longshore_domain::outcome::Outcome;
use longshore_domain::protocol::{self, HolderStatus, Verdict};
use longshore_domain::publication::Published;
use longshore_domain::run::{DeferReason, LOGGED_WITHIN, State};
use longshore_domain::{ErrorKind, Run};

use super::disposition::Disposition;
use super::write_claim;
use crate::attempt::assignment::Assignment;
use crate::attempt::holders;
use crate::attempt::keys::{self, line};
use crate::attempt::ports::Ports;
use crate::attempt::running::AttemptState;
use crate::commit::follow_up::is_needed;
use crate::commit::{Commit, chain};
use crate::ports::{Rules as _, Server as _};
use crate::runtime::log_run::{About, log_run};

/// How often per lease a job whose holder is silent is delivered again.
const LOOKS_PER_LEASE: u32 = 4;

pub(super) async fn not_begun<P: Ports>(
    ports: &P,
    assignment: &mut Assignment,
    found: Found,
    verdict: Verdict,
) -> Result<AttemptState, Disposition> {
    let Found { run, revision } = found;
    let run = Box::new(run);
    Err(match verdict {
        Verdict::Drop => Disposition::Acknowledge,
        Verdict::HeldElsewhere => return held_elsewhere(ports, assignment, run, revision).await,
        Verdict::TakeOver => take_over(ports, assignment, run, revision),
        // Its node removes this message, if it was not on its way by then.
        Verdict::PublishEnd if run.is_being_logged(ports.now()) => Disposition::ReturnAfter(LOGGED_WITHIN),
        Verdict::CarryOut | Verdict::PublishEnd => {
            // It may have been cancelled, or have made way, just after a node had taken a key over for it.
            if verdict == Verdict::PublishEnd || run.state.duplicate_of().is_some() {
                keys::finish_take_over(ports, &assignment.job, &run).await?;
            }
            again(ports, assignment, run, revision, verdict).await
        }
        Verdict::Begin { .. }
        | Verdict::BeginAgain { .. }
        | Verdict::BeginAnew
        | Verdict::Occupied
        | Verdict::Unproven
        | Verdict::StaleRecord => unreachable!("what may begin has been begun"),
    })
}

/// Decided under this message, or cancelled: events that may be missing are published, and the decision is carried out
/// again.
async fn again<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    mut run: Box<Run>,
    revision: u64,
    verdict: Verdict,
) -> Disposition {
    let follow_up = follow_up::plan(&run);
    let published = match run.state {
        State::Duplicate { .. } if run.published && verdict == Verdict::PublishEnd => Published::at_made_way(&run),
        // It may have made way before anything of it was published.
        State::Duplicate { .. } if run.published => Published::nothing(),
        _ => ports.server().published_at_redelivery(&run),
    };
    // The message of a run that made way in its lane: from now on the record is kept like that of any other end.
    let has_come = verdict == Verdict::PublishEnd
        && matches!(run.state, State::Duplicate { left: None, .. })
        && run.published
        && run.held_by.is_none();
    if has_come {
        run.held_by = Some(assignment.arrival.holding.clone());
    }
    let mut commit = Commit::of_stored(run, assignment.payload.clone(), published, ports.author());
    commit.arrival = Some(assignment.arrival.clone());
    commit.follow_up = follow_up;
    commit.next = chain::next(ports, &commit.run, &commit.payload);
    commit.line = line::of(ports.policies(), &assignment.job).map(Box::new);
    if has_come || is_needed(&commit) {
        keep(ports, &commit.run, revision).await;
    }
    Disposition::Again(Box::new(commit))
}

/// Has the record of an ended run kept anew, from now on. What is left to do may wait for hours for room in a stream,
/// and with the record gone the job would begin again. A full bucket does not keep it from being done now.
async fn keep<P: Ports>(ports: &P, run: &Run, revision: u64) {
    let mut run = run.clone();
    ports.sign(&mut run);
    if let Err(error) = ports.server().write_record(&run, revision).await {
        log_run!(debug, About::run(&run), "its record is kept no longer than before: {}", error.with_causes());
    }
}

/// The run waits for its time, perhaps held locally by another node: the write takes it away, then it is scheduled.
fn take_over<P: Ports>(ports: &P, assignment: &Assignment, mut run: Box<Run>, revision: u64) -> Disposition {
    let published = ports.server().published_at_redelivery(&run);
    run.held_by = Some(assignment.arrival.holding.clone());
    ports.sign(&mut run);
    let follow_up = follow_up::plan(&run);
    let mut commit = Commit::to_write(run, assignment.payload.clone(), revision, published, ports.author());
    commit.arrival = Some(assignment.arrival.clone());
    commit.follow_up = follow_up;
    Disposition::Again(Box::new(commit))
}

/// The record says that an attempt of the run is running under this very message: its holder lost the lease, or the
/// server delivered the job again too early. The time of the holder's last sign decides.
async fn held_elsewhere<P: Ports>(
    ports: &P,
    assignment: &mut Assignment,
    run: Box<Run>,
    revision: u64,
) -> Result<AttemptState, Disposition> {
    // The time of asking counts: this node may be frozen before it judges the answer.
    let asked_at = ports.now();
    let holder = holders::ask(ports, &run).await;
    if matches!(holder, HolderStatus::NeverStarted) {
        return take_up_claim(ports, assignment, run, revision).await;
    }
    let lease = ports.lease();
    Err(if ports.server().lease_is_lost(&run, holder, asked_at, lease) {
        lease_lost(ports, assignment, run, revision)
    } else if let HolderStatus::Silent(seen_at) = holder {
        // The job comes again when the lease would be over, unless its holder renews it meanwhile. It comes sooner than
        // that, as a holder that only had no connection may answer then.
        let over_at = protocol::last_sign(&run, seen_at).plus(lease);
        Disposition::ReturnAfter(over_at.since(ports.now()).min(lease / LOOKS_PER_LEASE))
    } else {
        Disposition::Abandon
    })
}

/// A claim of this node or another whose answer was lost: the attempt was never started. The claim is written again
/// first, as another node may be about to settle the attempt as lost. If this node's gates do not let the job start,
/// the claim is taken back instead.
async fn take_up_claim<P: Ports>(
    ports: &P,
    assignment: &mut Assignment,
    mut run: Box<Run>,
    revision: u64,
) -> Result<AttemptState, Disposition> {
    let published = ports.server().published_at_unclear_claim(&run);
    run.held_by = Some(assignment.arrival.holding.clone());
    if let Some(park) = assignment.park.take() {
        let outcome = Outcome::OverLimit(park.reason.unwrap_or(DeferReason::Busy));
        return Err(Disposition::End(AttemptState::new(run, revision, published, true).into(), outcome));
    }
    run.begin_instead(ports.node(), ports.now());
    let attempt_state = AttemptState::new(run, revision, published, true);
    write_claim(ports, assignment, attempt_state).await?.map_err(|_| Disposition::Abandon)
}

/// The attempt in the record lost its lease: it is settled so, and its events are published in its node's place.
fn lease_lost<P: Ports>(ports: &P, assignment: &mut Assignment, run: Box<Run>, revision: u64) -> Disposition {
    let silent = run.node.clone().unwrap_or_else(|| "a node".into());
    let about = About::run(&run).traced(assignment.payload.trace_id());
    log_run!(warn, about, node = %silent, "its holder lost the lease");
    ports.metrics().leases_judged_lost.inc();
    let message = format!("{silent} fell silent while it held the job");
    let outcome = Outcome::failed(ErrorKind::LeaseExpired, message);
    // The attempt that ended was not a probe of the breaker. If this delivery was let through as one, it did not call
    // the service, so the probe is given back.
    assignment.permits.breaker = assignment.permits.breaker.take().filter(|pass| !pass.is_probe());
    let published = ports.server().published_at_redelivery(&run);
    let mut attempt_state = AttemptState::new(run, revision, published, true);
    // The node that started it has counted its start.
    attempt_state.is_counted = true;
    Disposition::End(attempt_state.into(), outcome)
}
