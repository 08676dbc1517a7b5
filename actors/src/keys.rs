//! Idempotency keys: whose a key is, when a job of it is about to start, and when `submit` meets it again.
//!
//! A claim that is marked published stands for a run whose job is durable. One that is not may be left by a `submit`
//! that died: then whoever has a job of the key in hand takes it over, and a job of the first run that turns up after
//! all ends as a duplicate.

use std::time::Duration;

use longshore_backbone::Error;
use longshore_backbone::claims::{Claim, Claimed, FoundClaim, fingerprint};
use longshore_backbone::records::{Found, Written};
use longshore_domain::publication::Published;
use longshore_domain::run::whole_millis;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, Run, RunId};

use crate::assignment::Assignment;
use crate::shared::{Shared, now};
use crate::story;

/// The key of a job, and for how long it is claimed.
pub(crate) fn key_of<'j>(shared: &Shared, job: &'j Job) -> Option<(&'j str, Duration)> {
    let options = job.options.as_ref()?;
    let window = options.idempotency_window.unwrap_or(shared.backbone.storage().idempotency_window);
    options.idempotency_key.as_deref().map(|key| (key, window))
}

/// Makes sure that the key of a job that is about to start for the first time is its run's own, and notes that on the
/// record, so that it is asked once; says which other run has it.
pub(crate) async fn claim_at_begin(
    shared: &Shared,
    assignment: &Assignment,
    run: &mut Run,
) -> Result<Option<RunId>, Error> {
    let job = &assignment.job;
    let Some((key, window)) = key_of(shared, job).filter(|_| run.key_claimed_ms.is_none() && run.round == 1) else {
        return Ok(None);
    };
    let print = fingerprint(job.job_type.as_str(), &assignment.matter.payload);
    // Its job lies in the lane, so it is published.
    let claim = Claim { run_id: job.run_id.clone(), fingerprint: print, published: true };
    loop {
        let FoundClaim { claim: found, revision, .. } =
            match shared.backbone.claim_key(&job.tenant, key, &claim, window).await? {
                Claimed::Mine(_) => break,
                Claimed::Found(found) => found,
            };
        let is_own = found.run_id == job.run_id;
        match (found.published, is_own) {
            (true, true) => break,
            (true, false) => return Ok(Some(found.run_id)),
            // Confirmed before it starts, or taken over: of several that try, one writes the claim.
            (false, _) => {
                if shared.backbone.write_claim(&job.tenant, key, &claim, (revision, window)).await?.is_none() {
                    continue;
                }
                if !is_own {
                    end_unpublished(shared, job, &found.run_id).await?;
                }
                break;
            }
        }
    }
    run.key_claimed_ms = Some(whole_millis(window));
    Ok(None)
}

/// Ends the run whose claim was taken over, where nothing has been heard of it but its record: its `submit` has died, or
/// is about to learn of it. A job of it that turns up all the same finds that its key is another's.
async fn end_unpublished(shared: &Shared, job: &Job, run_id: &RunId) -> Result<(), Error> {
    loop {
        let record = shared.backbone.read_record(&job.tenant, run_id).await?;
        let Some(Found { mut run, revision }) = record else { return Ok(()) };
        if run.published || run.has_started() || run.held_by.is_some() || run.state.is_ended() {
            return Ok(());
        }
        run.settle(Settlement::Duplicate { of: job.run_id.clone() }, now());
        run.token = shared.token();
        if matches!(shared.backbone.write_record(&run, revision).await?, Written::Won(_)) {
            // Should the log not have it, the run that took its key is there all the same.
            let _ = story::publish(shared, &run, Published::nothing()).await;
            return Ok(());
        }
    }
}

/// The job or schedule of a submitted run is durable: its claim says so from now on. Says which other run has taken the
/// claim over meanwhile; then this one ends as its duplicate.
pub(crate) async fn mark_published(
    shared: &Shared,
    job: &Job,
    revision: u64,
    print: String,
) -> Result<Option<RunId>, Error> {
    let Some((key, window)) = key_of(shared, job) else { return Ok(None) };
    let claim = Claim { run_id: job.run_id.clone(), fingerprint: print, published: true };
    if shared.backbone.write_claim(&job.tenant, key, &claim, (revision, window)).await?.is_some() {
        return Ok(None);
    }
    let found = shared.backbone.read_claim(&job.tenant, key).await?;
    Ok(found.map(|found| found.claim.run_id).filter(|run_id| *run_id != job.run_id))
}
