//! How an attempt begins: by the fast path, or by a claim on the run's record.
//!
//! `claim` has the claim itself, `not_begun` what happens where the record says that this delivery begins nothing, and
//! `unreadable` the jobs that cannot be read.

use longshore_backbone::cancels::CONFIRM_TIMEOUT;
use longshore_backbone::records::Found;
use longshore_domain::protocol::Verdict;
use longshore_domain::publication::Published;
use longshore_domain::{Run, fast_path};

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::conclude;
use crate::attempt::keys::{self, line, order};
use crate::attempt::ports::Ports;
use crate::attempt::running::{AttemptState, RunningAttempt};
use crate::commit::chain;
use crate::commit::follow_up::has_other_id;
use crate::ports::{Rules as _, Server as _};
use crate::runtime::log_run::log_run;

mod claim;
mod not_begun;
mod unreadable;

pub(crate) use claim::Begun;
pub(crate) use unreadable::rename;

use claim::{Base, claim_on, cleared, fresh, on, put_off, started, write_claim};
use not_begun::not_begun;
use unreadable::{UNPROVEN, ids_of, unreadable};

/// Begins the attempt that a delivery asks for.
///
/// Only the fast path is part of this future; the other ways are boxed, so that the future of a worker's message, which
/// is allocated for every job, stays small.
pub(crate) async fn begin<P: Ports>(ports: &P, mut assignment: Box<Assignment>) -> Begun {
    match std::mem::replace(&mut assignment.start, Start::Claim) {
        Start::Unread { mark } if takes_fast_path(ports, &assignment, mark) => begin_unread(ports, assignment).await,
        Start::Unread { .. } | Start::Claim | Start::Detached => Box::pin(claim(ports, assignment)).await,
        Start::HeldLocally(run, revision) => Box::pin(again_held_locally(ports, assignment, run, revision)).await,
        Start::Invalid(reason) => Box::pin(unreadable(ports, assignment, reason)).await,
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

async fn begin_unread<P: Ports>(ports: &P, assignment: Box<Assignment>) -> Begun {
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

/// Reads the record, claims what this delivery may claim, and judges again whenever another write was faster.
async fn claim<P: Ports>(ports: &P, mut assignment: Box<Assignment>) -> Begun {
    if ports.book().has(&assignment.arrival.holding.message) {
        // This very node is working on it: the server forgot that it had delivered it. Renewals go on as before.
        assignment.ack_token.abandon();
        return Begun::Over;
    }
    let _place = assignment.come_to_place().await;
    assignment.arrival.has_aged = ports.now().since(assignment.arrival.holding.message.at) >= ports.lease();
    let job = &assignment.job;
    let mut found = match may_claim_on(ports, &assignment).await {
        Some(found) => Some(found),
        None => match ports.server().read_record(&job.tenant, &job.run_id).await {
            Ok(found) => found,
            Err(error) => return put_off(ports, assignment, &error).await,
        },
    };
    assignment = match join(ports, assignment, found.is_none()).await {
        Ok(assignment) => assignment,
        Err(begun) => return begun,
    };
    loop {
        let verdict = ports.server().on_arrival(found.as_ref().map(|found| &found.run), &assignment.arrival);
        let base = match (verdict, found.take()) {
            (Verdict::Begin { round, attempt }, found) => on(ports, &assignment, found, round, attempt),
            (Verdict::BeginAgain { round, attempt }, Some(found)) => {
                // The claim drops a start that was released from the record, so the log must have its events before.
                if ports.publish(&found.run, ports.server().published_at_redelivery(&found.run)).await.is_err() {
                    assignment.return_or_abandon(ports.instant(), ports.lease());
                    return Begun::Over;
                }
                on(ports, &assignment, Some(found), round, attempt)
            }
            // The id is that of an earlier run, which has ended. A job without a key overwrites that run. A job with a
            // key goes on under another id (below) and keeps it, as its claim names it: the earlier run may be
            // replayed, and under that run's id the job would be a duplicate of itself.
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

/// The record that a replica has, if the job may be claimed on it. A client's own publish mostly has none, so that only
/// its leader could say so.
async fn may_claim_on<P: Ports>(ports: &P, Assignment { job, arrival, .. }: &Assignment) -> Option<Found> {
    arrival.seal.as_ref()?;
    let found = ports.server().read_replica(&job.tenant, &job.run_id).await?;
    Some(found).filter(|found| ports.server().may_claim_on_replica(&found.run, arrival))
}

/// A job of a client's own publish joins its batch before anything of its run is stored, if its chain is sound.
async fn join<P: Ports>(ports: &P, assignment: Box<Assignment>, is_new: bool) -> Result<Box<Assignment>, Begun> {
    if is_new && assignment.arrival.seal.is_none() {
        match chain::undeclared(ports, &assignment.job).await {
            Ok(None) => {}
            Ok(Some(reason)) => return Err(Box::pin(unreadable(ports, assignment, reason)).await),
            Err(error) => return Err(put_off(ports, assignment, &error).await),
        }
    }
    let Some(batch) = assignment.joins().filter(|_| is_new) else { return Ok(assignment) };
    match ports.server().join_batch(&assignment.job, batch).await {
        Ok(Ok(())) => Ok(assignment),
        Ok(Err(reason)) => {
            let reason = format!("header Longshore-Batch-Id: {reason}");
            Err(Box::pin(unreadable(ports, assignment, reason)).await)
        }
        Err(error) => Err(put_off(ports, assignment, &error).await),
    }
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
