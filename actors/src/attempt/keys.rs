//! Idempotency keys: which run owns a key, when a job with that key is about to start, and when `submit` meets the key
//! again.
//!
//! A claim that is marked published stands for a run whose job is durable. A claim that is not may come from a `submit`
//! that died: then the node that has a job with that key takes the claim over, and if a job of the first run turns up
//! after all, it ends as a duplicate. The claim names the run it was taken from until that run's end is in the log.

use std::time::Duration;

use longshore_backbone::Error;
use longshore_backbone::claims::{Claim, Claimed, FoundClaim, fingerprint};
use longshore_backbone::records::{Found, Written};
use longshore_domain::publication::Published;
use longshore_domain::run::whole_millis;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, Run, RunId};

use crate::attempt::assignment::Assignment;
use crate::fail_point;
use crate::ports::{Ports, Server};

/// The key of a job, and how long it stays claimed: for `window`, unless the job says otherwise.
pub(crate) fn key_of(job: &Job, window: Duration) -> Option<(&str, Duration)> {
    let options = job.options.as_ref()?;
    let window = options.idempotency_window.unwrap_or(window);
    options.idempotency_key.as_deref().map(|key| (key, window))
}

/// Makes sure that a job that is about to start for the first time owns its key, and sets that in the run, so that this
/// is done once; else says which other run has the key.
pub(crate) async fn claim_at_begin<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    run: &mut Run,
) -> Result<Option<RunId>, Error> {
    let job = &assignment.job;
    let own = key_of(job, ports.idempotency_window());
    let Some((key, window)) = own.filter(|_| run.key_claimed_ms.is_none() && run.round == 1) else {
        return Ok(None);
    };
    let print = fingerprint(job.job_type.as_str(), &assignment.payload.body);
    // Its job lies in the lane, so it is published.
    let mut claim = Claim { run_id: job.run_id.clone(), fingerprint: print, published: true, taken_from: Vec::new() };
    loop {
        let claimed = ports.server().claim_key(&job.tenant, key, &claim, window).await?;
        let (found, revision) = match claimed {
            Claimed::Mine(revision) => (claim.clone(), revision),
            Claimed::Found(FoundClaim { claim: found, revision, .. }) => (found, revision),
        };
        let is_own = found.run_id == job.run_id;
        claim.taken_from = found.taken_from;
        match (found.published, is_own) {
            (true, true) if claim.taken_from.is_empty() => break,
            // Should this node die meanwhile, the job comes again, and the claim still says which runs it was taken
            // from.
            (true, true) => end_all(ports, job, std::mem::take(&mut claim.taken_from)).await?,
            (true, false) => return Ok(Some(found.run_id)),
            // Confirmed before it starts.
            (false, true) => {}
            // Taken over: of several that try, one writes the claim.
            (false, false) => claim.taken_from.push(found.run_id),
        }
        let written = ports.server().write_claim(&job.tenant, key, &claim, (revision, window)).await?;
        if written.is_some() && claim.taken_from.is_empty() {
            break;
        }
    }
    run.key_claimed_ms = Some(whole_millis(window));
    Ok(None)
}

/// Finishes what an earlier delivery of the job has begun, if its node died over it: ends the runs that the job's key
/// was taken from. For a job that will not start, so that nothing else does.
pub(crate) async fn finish_take_over<P: Ports>(ports: &P, job: &Job, run: &Run) -> Result<(), Error> {
    let own = key_of(job, ports.idempotency_window());
    let Some((key, _)) = own.filter(|_| run.key_claimed_ms.is_none() && run.round == 1) else {
        return Ok(());
    };
    match ports.server().read_claim(&job.tenant, key).await? {
        Some(FoundClaim { claim, .. }) if claim.run_id == job.run_id => end_all(ports, job, claim.taken_from).await,
        _ => Ok(()),
    }
}

/// Whether a node has begun to take the job's key over from another run, and has not finished.
pub(crate) async fn is_taking_over<S: Server>(server: &S, job: &Job) -> Result<bool, Error> {
    // How long the key stays claimed does not matter.
    let Some((key, _)) = key_of(job, Duration::ZERO) else { return Ok(false) };
    let found = server.read_claim(&job.tenant, key).await?;
    Ok(found.is_some_and(|found| found.claim.run_id == job.run_id && !found.claim.taken_from.is_empty()))
}

async fn end_all<P: Ports>(ports: &P, job: &Job, runs: Vec<RunId>) -> Result<(), Error> {
    for run_id in &runs {
        end_unpublished(ports, job, run_id).await?;
    }
    Ok(())
}

/// Ends the run whose claim was taken over, if it has nothing but its record, and waits until that end is in the log:
/// its `submit` has died, or is about to learn of this. If a job of that run turns up all the same, it finds that
/// another run has its key.
async fn end_unpublished<P: Ports>(ports: &P, job: &Job, run_id: &RunId) -> Result<(), Error> {
    loop {
        let record = ports.server().read_record(&job.tenant, run_id).await?;
        let Some(Found { mut run, revision }) = record else { return Ok(()) };
        let is_without_message = run.held_by.is_none();
        // If a job of that run has turned up and ended it, its message is not acknowledged before the log has that end.
        if run.state.duplicate_of() == Some(&job.run_id) && is_without_message {
            if ports.publish(&run, Published::nothing()).await.is_ok() {
                return Ok(());
            }
            continue;
        }
        if run.published || run.has_started() || !is_without_message || run.state.is_terminal() {
            return Ok(());
        }
        // Also a run that waits for its time: no run ends as a duplicate before its `enqueued`.
        run.fall_due(ports.now());
        run.settle(Settlement::Duplicate { of: job.run_id.clone() }, ports.now());
        run.token = ports.token();
        if matches!(ports.server().write_record(&run, revision).await?, Written::Won(_)) {
            ports.metrics().run_ended(&run);
            fail_point::pass("after-takeover");
        }
    }
}

/// The job or schedule of a submitted run is durable: marks its claim as published. Says which other run has taken the
/// claim over meanwhile; then this run ends as its duplicate.
pub(crate) async fn mark_published<S: Server>(
    server: &S,
    job: &Job,
    window: Duration,
    revision: u64,
    print: String,
) -> Result<Option<RunId>, Error> {
    let Some((key, window)) = key_of(job, window) else { return Ok(None) };
    let claim = Claim { run_id: job.run_id.clone(), fingerprint: print, published: true, taken_from: Vec::new() };
    if server.write_claim(&job.tenant, key, &claim, (revision, window)).await?.is_some() {
        return Ok(None);
    }
    let found = server.read_claim(&job.tenant, key).await?;
    Ok(found.map(|found| found.claim.run_id).filter(|run_id| *run_id != job.run_id))
}
