//! Intake of jobs with an idempotency key: takes the key, or finds the run that has it and does what the client asks
//! for in that case.
//!
//! Whether the run of a claim still has its key, its record says, as for jobs that are about to start
//! ([`keys`](crate::attempt::keys)). A claim that is not marked published is of a `submit` that died, or is under way:
//! the same job goes on with it, another job takes it over. A job that replaces another is durable before the other one
//! makes way: until then the other runs, from then on this one.

use longshore_backbone::claims::{Claimed, FoundClaim};
use longshore_backbone::records::{Found, Written};
use longshore_backbone::request::Over;
use longshore_backbone::wire::api::{ApiError, Code, Submitted};
use longshore_domain::key;
use longshore_domain::protocol::Repeat;
use longshore_domain::{Run, RunId, RunState, Tenant, Timestamp};

use crate::api::submission::{self, OnConflict, Submission, SubmitPorts, answer, changes, is_mismatch, mismatch};
use crate::attempt::keys::{self, Key, KeyRequest, OwnClaim, Owner};
use crate::ports::{Rules as _, Server as _, WaitingPorts};
use crate::runtime::fail_point;

/// What follows from a claim that was found.
enum ClaimStep {
    /// Its `submit` died or is under way: this one goes on with its run.
    GoOn,
    /// The key is free: it is taken from these runs.
    Take(Vec<RunId>),
    /// A run has the key: its record, if that is still there.
    Is(RunId, Option<Found>),
    /// The job takes this run's place.
    Replace(Run),
}

/// Takes a job that has a key.
pub(crate) async fn submit<P: SubmitPorts + WaitingPorts>(
    ports: &P,
    mut submission: Submission,
    due: Option<Timestamp>,
) -> Result<Submitted, ApiError> {
    if keys::key_of(ports, &submission.job).is_some()
        && let Some(before) = named_before(ports, &submission).await?
    {
        return Ok(before);
    }
    loop {
        let Some(key) = keys::key_of(ports, &submission.job) else {
            return submission::record_first(ports, &submission, due, None).await;
        };
        let (tenant, lasts) = (&submission.job.tenant, key.lasts_unmarked(ports, due));
        let mut claim = key.claim_of(submission.job.run_id.clone(), submission.print().clone(), false);
        let found = match ports.server().claim_key(tenant, key.text, &claim, lasts).await? {
            Claimed::Mine(revision) => {
                let claim = OwnClaim { revision, taken_from: Vec::new() };
                return begin(ports, &submission, claim, due).await;
            }
            Claimed::Found(found) => found,
        };
        match next(ports, &submission, &found).await? {
            ClaimStep::Take(from) => {
                claim.taken_from = from;
                let over = Over { expected: found.revision, lasts };
                let taken = ports.server().write_claim(tenant, key.text, &claim, over).await;
                let Some(revision) = taken? else { continue };
                let claim = OwnClaim { revision, taken_from: claim.taken_from };
                return begin(ports, &submission, claim, due).await;
            }
            ClaimStep::GoOn => {
                submission.job.run_id = found.claim.run_id;
                let claim = OwnClaim { revision: found.revision, taken_from: found.claim.taken_from };
                return go_on(ports, &submission, claim, due).await;
            }
            ClaimStep::Is(run_id, record) => return is_taken(ports, found, tenant, run_id, record).await,
            ClaimStep::Replace(before) => return replace(ports, &submission, &key, before, due).await,
        }
    }
}

/// The answer to a repeat: to a job whose run is published, under the id that the client has named or as the one that
/// has the key. `None`: something of a run is still to be stored.
pub(crate) async fn repeated<P: SubmitPorts + WaitingPorts>(
    ports: &P,
    submission: &Submission,
) -> Result<Option<Submitted>, ApiError> {
    if let Some(before) = named_before(ports, submission).await? {
        return Ok(Some(before));
    }
    let (tenant, Some(key)) = (&submission.job.tenant, keys::key_of(ports, &submission.job)) else { return Ok(None) };
    let Some(found) = ports.server().read_claim(tenant, key.text).await? else { return Ok(None) };
    match next(ports, submission, &found).await? {
        ClaimStep::Is(run_id, record) => is_taken(ports, found, tenant, run_id, record).await.map(Some),
        ClaimStep::GoOn | ClaimStep::Take(_) | ClaimStep::Replace(_) => Ok(None),
    }
}

/// A run that the client has named before is what it is, whichever run has its key by now.
async fn named_before<P: SubmitPorts>(ports: &P, submission: &Submission) -> Result<Option<Submitted>, ApiError> {
    let Some(run_id) = &submission.own_id else { return Ok(None) };
    let found = ports.server().read_record(&submission.job.tenant, run_id).await?;
    let published = found.filter(|found| ports.server().on_repeat(&found.run) == Repeat::Nothing);
    Ok(published.map(|found| answer(run_id, found.run.state.name(), true)))
}

/// Judges a claim by the records of its runs.
async fn next<P: SubmitPorts>(ports: &P, submission: &Submission, found: &FoundClaim) -> Result<ClaimStep, ApiError> {
    let (job, claim) = (&submission.job, &found.claim);
    let differs = !submission.print().is_same_as(&claim.fingerprint);
    let is_mismatch = is_mismatch(ports, submission, claim);
    if !claim.published {
        let stored = ports.server().read_record(&job.tenant, &claim.run_id).await?;
        if stored.is_none_or(|found| ports.server().on_repeat(&found.run) != Repeat::Nothing) {
            // No run yet: a client that has changed its mind is not bound by it.
            return Ok(if is_mismatch || differs && submission.on_conflict == OnConflict::Replace {
                ClaimStep::Take([&claim.taken_from[..], std::slice::from_ref(&claim.run_id)].concat())
            } else {
                ClaimStep::GoOn
            });
        }
    }
    let holder = keys::holder(ports, &job.tenant, &job.run_id, claim).await?;
    let Some((run_id, record)) = holder else { return Ok(ClaimStep::Take(claim.taken_from.clone())) };
    // The very run that the client named, submitted again.
    if submission.own_id.as_ref() == Some(&run_id) {
        return Ok(ClaimStep::Is(run_id, record));
    }
    match (submission.on_conflict, record) {
        (OnConflict::Replace, Some(record)) if claim.published && key::is_replaceable(&record.run) => {
            Ok(ClaimStep::Replace(record.run))
        }
        _ if run_id == claim.run_id && is_mismatch => Err(mismatch(&run_id)),
        (OnConflict::Reject, _) => {
            Err(ApiError::new(Code::KeyTaken, format!("idempotency_key: belongs to run {run_id}")))
        }
        // The change must not be lost, and the run that has the key did not take it in.
        (_, Some(record)) if submission.debounce.is_some() && differs && !record.run.has_started() => {
            Err(ApiError::unavailable("debounce: the run that has the key is being taken up; try again"))
        }
        (_, record) => Ok(ClaimStep::Is(run_id, record)),
    }
}

/// Begins the run of a claim that this submission made. A repeat of it may have been faster and gone on with the run,
/// which it answers as a repeat: the run is this submission's all the same, so one of the answers says that it is new.
async fn begin<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    claim: OwnClaim,
    due: Option<Timestamp>,
) -> Result<Submitted, ApiError> {
    let begun = submission::record_first(ports, submission, due, Some(claim)).await?;
    // A run that the client has named may be an earlier one.
    let is_own = submission.own_id.is_none() && begun.run_id == submission.job.run_id;
    Ok(Submitted { deduplicated: begun.deduplicated && !is_own, ..begun })
}

/// Goes on with the run of a claim that was never marked.
async fn go_on<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    claim: OwnClaim,
    due: Option<Timestamp>,
) -> Result<Submitted, ApiError> {
    let first = match ports.server().read_record(&submission.job.tenant, &submission.job.run_id).await? {
        Some(found) => submission::found_before(ports, submission, found, Some(claim)).await?,
        None => submission::record_first(ports, submission, due, Some(claim)).await?,
    };
    Ok(Submitted { deduplicated: true, ..first })
}

/// Answers with the run that has the key.
async fn is_taken<P: SubmitPorts + WaitingPorts>(
    ports: &P,
    found: FoundClaim,
    tenant: &Tenant,
    run_id: RunId,
    record: Option<Found>,
) -> Result<Submitted, ApiError> {
    // The leader may have been cut off before the record was written, which is perhaps still to be marked.
    let record = match record {
        None => ports.recorded_for_certain(tenant, &run_id).await?,
        found => found,
    };
    let state = match record {
        Some(record) => submission::mark_found(ports, record).await?,
        // The run's record is gone before its claim. Only completed runs may be kept for shorter than a claim, so it
        // has completed. If it was claimed a moment ago, its record is only just being written; if its node died before
        // that, its job waits in its lane.
        None if ports.now().since(found.at) < ports.lease() => RunState::Enqueued,
        None => match ports.waiting(tenant, &run_id).await? {
            Some(_) => RunState::Enqueued,
            None => RunState::Completed,
        },
    };
    Ok(answer(&run_id, state, true))
}

/// Puts the job in the place of the run `before`, which has the key and has not started. The job is durable first; then
/// the other run makes way; then the key is taken. Should this node die, the job does the rest when it comes.
async fn replace<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    key: &Key<'_>,
    before: Run,
    due: Option<Timestamp>,
) -> Result<Submitted, ApiError> {
    let job = &submission.job;
    let mut run = submission::new_run(ports, submission);
    run.replaces = true;
    run.origin = key::replacing_since(&before, run.origin);
    run.starts_by = before.starts_by.or(run.starts_by);
    // A time that is over is as good as any other: the job goes through its schedule.
    let due = due.map(|due| due.min(run.starts_by.unwrap_or(due)));
    let Written::Won(mut revision) = submission::make_durable(ports, submission, &mut run, due).await? else {
        // A run of this id is there already.
        let found = ports.server().read_record(&job.tenant, &job.run_id).await?;
        return submission::found_before(ports, submission, found.ok_or_else(changes)?, None).await;
    };
    let owner = loop {
        let replaces = Some((run.origin, &mut revision));
        let wanted = KeyRequest { key, print: submission.print().clone(), replaces, again: false };
        match keys::own(ports, job, wanted).await? {
            // A node is about to begin its job, and has only confirmed the record: this one may not leave it at that,
            // as the other run would stay if that node dies.
            Owner::Unknown(Some(found)) if key::is_undecided(&found.run) => Found { run, revision } = *found,
            owner => break owner,
        }
    };
    submission::tidy(ports, before, &job.run_id).await;
    let holder = match owner {
        Owner::This => {
            let state = mark_owner(ports, Found { run, revision }, key).await?;
            fail_point::pass("after-mark");
            return Ok(answer(&job.run_id, state, false));
        }
        // A node has taken the run up with its key, or it has made way.
        Owner::Unknown(Some(found)) => {
            let state = submission::mark_found(ports, *found).await?;
            return Ok(answer(&job.run_id, state, false));
        }
        Owner::Unknown(None) => return Err(changes()),
        Owner::Other(holder) => holder,
    };
    // The other run started meanwhile, or another submission, made at the same time, is later: this one makes way,
    // unless a node has found that out already.
    let own = Found { run: run.clone(), revision };
    keys::make_way(ports, own, &holder).await?;
    submission::tidy(ports, run, &holder).await;
    let state = match ports.server().read_record(&job.tenant, &holder).await? {
        Some(found) => submission::mark_found(ports, found).await?,
        None => RunState::Completed,
    };
    Ok(answer(&holder, state, true))
}

/// Marks the record of a run that has its key as published; returns the run's state.
async fn mark_owner<P: SubmitPorts>(ports: &P, own: Found, key: &Key<'_>) -> Result<RunState, ApiError> {
    let Found { mut run, mut revision } = own;
    loop {
        key.note_claimed(&mut run);
        run.published = true;
        ports.sign(&mut run);
        match ports.server().write_for_client(&run, revision).await? {
            Written::Won(_) => return Ok(run.state.name()),
            // A node has taken the run up already.
            Written::Lost(Some(found)) if ports.server().on_repeat(&found.run) == Repeat::Nothing => {
                return Ok(found.run.state.name());
            }
            // A node is about to, and has only confirmed the record.
            Written::Lost(Some(found)) => Found { run, revision } = *found,
            Written::Lost(None) => return Err(changes()),
        }
    }
}
