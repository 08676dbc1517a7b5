//! Intake of jobs with an idempotency key: takes the key, or finds the run that has it and does what the client asks for
//! in that case.
//!
//! Whether the run of a claim still has its key, its record says, as for jobs that are about to start
//! ([`keys`](crate::attempt::keys)). A claim that is not marked published is of a `submit` that died, or is under way:
//! the same job goes on with it, another job takes it over. A job that replaces another is durable before the other one
//! makes way: until then the other runs, from then on this one.

use longshore_backbone::claims::{Claimed, FoundClaim};
use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::api::{ApiError, Code, Submitted};
use longshore_domain::follow_up::FollowUp;
use longshore_domain::key;
use longshore_domain::policy::OnMismatch;
use longshore_domain::protocol::{Repeat, on_repeat};
use longshore_domain::publication::Published;
use longshore_domain::run::Wait;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Run, RunId, RunState, Timestamp};

use crate::api::Api;
use crate::api::filter::unavailable;
use crate::api::intake::{self, Checked, answer};
use crate::api::runs::is_stored;
use crate::attempt::keys::{self, Key, Wanted};
use crate::commit::Commit;
use crate::fail_point;
use crate::shared::{new_seal, now};

/// What happens if another run has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum OnConflict {
    /// The answer is that run.
    #[default]
    Return,
    /// The job is refused.
    Reject,
    /// The job takes the place of that run, unless it has started.
    Replace,
}

impl OnConflict {
    pub(super) fn read(word: &str) -> Result<Self, String> {
        match word {
            "return" => Ok(Self::Return),
            "reject" => Ok(Self::Reject),
            "replace" => Ok(Self::Replace),
            other => Err(format!("{other:?} is not one of return, reject, replace")),
        }
    }
}

/// What follows from a claim that was found.
enum Next {
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
pub(super) async fn submit(api: &Api, mut checked: Checked, due: Option<Timestamp>) -> Result<Submitted, ApiError> {
    loop {
        let Some(key) = keys::key_of(api, &checked.job) else {
            return intake::note_and_publish(api, &checked, due, None).await;
        };
        let tenant = &checked.job.tenant;
        let mut claim = key.claim_of(checked.job.run_id.clone(), checked.print(), false);
        let claimed = api.backbone.claim_key(tenant, key.text, &claim, key.window).await;
        let found = match claimed.map_err(|error| unavailable(&error))? {
            Claimed::Mine(revision) => return intake::note_and_publish(api, &checked, due, Some(revision)).await,
            Claimed::Found(found) => found,
        };
        match next(api, &checked, &found).await? {
            Next::Take(from) => {
                claim.taken_from = from;
                let over = (found.revision, key.window);
                let taken = api.backbone.write_claim(tenant, key.text, &claim, over).await;
                let Some(revision) = taken.map_err(|error| unavailable(&error))? else { continue };
                let ended = keys::end_all(api, &checked.job, claim.taken_from).await;
                ended.map_err(|error| unavailable(&error))?;
                return intake::note_and_publish(api, &checked, due, Some(revision)).await;
            }
            Next::GoOn => {
                checked.job.run_id = found.claim.run_id;
                let ended = keys::end_all(api, &checked.job, found.claim.taken_from).await;
                ended.map_err(|error| unavailable(&error))?;
                return go_on(api, &checked, found.revision, due).await;
            }
            Next::Is(run_id, record) => return is_taken(api, checked, found, (run_id, record)).await,
            Next::Replace(before) => return replace(api, &checked, &key, before, due).await,
        }
    }
}

/// Judges a claim by the records of its runs.
async fn next(api: &Api, checked: &Checked, found: &FoundClaim) -> Result<Next, ApiError> {
    let (job, claim) = (&checked.job, &found.claim);
    let differs = claim.fingerprint != checked.print();
    let rejects = api.policies.keys.on_mismatch == OnMismatch::Reject;
    let replaces = checked.on_conflict == OnConflict::Replace;
    if !claim.published {
        let stored = is_stored(api, &job.tenant, &claim.run_id).await?;
        if stored.is_none_or(|found| on_repeat(&found.run) != Repeat::Nothing) {
            // No run yet: a client that has changed its mind is not bound by it.
            return Ok(if differs && (rejects || replaces) {
                Next::Take([&claim.taken_from[..], std::slice::from_ref(&claim.run_id)].concat())
            } else {
                Next::GoOn
            });
        }
    }
    let holder = keys::holder(api, (&job.tenant, &job.run_id), claim).await.map_err(|error| unavailable(&error))?;
    let Some((run_id, record)) = holder else { return Ok(Next::Take(claim.taken_from.clone())) };
    // The very run that the client named, submitted again.
    if checked.own_id.as_ref() == Some(&run_id) {
        return Ok(Next::Is(run_id, record));
    }
    match (checked.on_conflict, record) {
        (OnConflict::Replace, Some(record)) if claim.published && key::is_replaceable(&record.run) => {
            Ok(Next::Replace(record.run))
        }
        _ if !replaces && differs && rejects && run_id == claim.run_id => Err(ApiError::new(
            Code::IdempotencyMismatch,
            format!("idempotency_key: came before with another type or payload, for run {run_id}"),
        )),
        (OnConflict::Reject, _) => {
            Err(ApiError::new(Code::KeyTaken, format!("idempotency_key: belongs to run {run_id}")))
        }
        // The change must not be lost, and the run that has the key did not take it in.
        (_, Some(record)) if checked.debounce.is_some() && differs && !record.run.has_started() => {
            Err(ApiError::unavailable("debounce: the run that has the key is being taken up; try again"))
        }
        (_, record) => Ok(Next::Is(run_id, record)),
    }
}

/// Goes on with the run of a claim that was never marked.
async fn go_on(api: &Api, checked: &Checked, revision: u64, due: Option<Timestamp>) -> Result<Submitted, ApiError> {
    let first = match is_stored(api, &checked.job.tenant, &checked.job.run_id).await? {
        Some(found) => intake::found_before(api, checked, found, Some(revision)).await?,
        None => intake::note_and_publish(api, checked, due, Some(revision)).await?,
    };
    Ok(Submitted { deduplicated: true, ..first })
}

/// Answers with the run that has the key.
async fn is_taken(
    api: &Api,
    mut checked: Checked,
    found: FoundClaim,
    (run_id, record): (RunId, Option<Found>),
) -> Result<Submitted, ApiError> {
    let unmarked = (!found.claim.published && run_id == found.claim.run_id).then_some(found.revision);
    checked.job.run_id = run_id;
    match record {
        Some(record) => intake::found_before(api, &checked, record, unmarked).await,
        // The run's record is gone before its claim. Only completed runs may be kept for shorter than a claim, so it
        // has completed. If it was claimed a moment ago, its record is only just being written.
        None => {
            let is_young = now().since(found.at) < api.backbone.storage().lease;
            let state = if is_young { RunState::Enqueued } else { RunState::Completed };
            Ok(answer(&checked.job.run_id, state, true))
        }
    }
}

/// Puts the job in the place of the run `before`, which has the key and has not started. The job is durable first; then
/// the other run makes way; then the key is taken. Should this node die, the job does the rest when it comes.
async fn replace(
    api: &Api,
    checked: &Checked,
    key: &Key<'_>,
    before: Run,
    due: Option<Timestamp>,
) -> Result<Submitted, ApiError> {
    let job = &checked.job;
    let mut run = Run::new(job, api.policies.max_attempts(job), now());
    (run.seal, run.token, run.replaces) = (new_seal(), api.identity.token(), true);
    key.note_wanted(&mut run);
    run.starts_by = before.starts_by.or_else(|| checked.debounce.and_then(|debounce| debounce.starts_by()));
    // A time that is over is as good as any other: the job goes through its schedule.
    let due = due.map(|due| due.min(run.starts_by.unwrap_or(due)));
    let Some(revision) = make_durable(api, checked, &mut run, due).await? else {
        // A run of this id is there already.
        let found = is_stored(api, &job.tenant, &job.run_id).await?;
        let found = found.ok_or_else(|| ApiError::unavailable("the run's record changes; try again"))?;
        return intake::found_before(api, checked, found, None).await;
    };
    // This is the latest submission, whatever the clocks of other nodes say.
    let wanted = Wanted { key, print: checked.print(), replaces: Some(Timestamp::LAST_SCHEDULE), again: false };
    let holder = keys::own(api, job, wanted).await.map_err(|error| unavailable(&error))?;
    tidy(api, before, &job.run_id).await;
    let Some(holder) = holder else {
        key.note_claimed(&mut run);
        (run.published, run.token) = (true, api.identity.token());
        // If another write was first, a node has taken the run up already.
        api.backbone.write_record(&run, revision).await.map_err(|error| unavailable(&error))?;
        fail_point::pass("after-mark");
        return Ok(answer(&job.run_id, run.state.name(), false));
    };
    // The other run started meanwhile: this one makes way, unless a node has found that out already.
    let own = Found { run: run.clone(), revision };
    keys::make_way(api, own, &holder).await.map_err(|error| unavailable(&error))?;
    tidy(api, run, &holder).await;
    let state = is_stored(api, &job.tenant, &holder).await?.map_or(RunState::Completed, |found| found.run.state.name());
    Ok(answer(&holder, state, true))
}

/// Stores the record of a run, and its job or schedule. `None`: another write came first.
async fn make_durable(
    api: &Api,
    checked: &Checked,
    run: &mut Run,
    due: Option<Timestamp>,
) -> Result<Option<u64>, ApiError> {
    if let Some(at) = due {
        run.settle(Settlement::Schedule { at }, now());
        let written = Box::new(run.clone());
        let mut commit = Commit::to_write(written, checked.payload(), 0, Published::nothing(), api.committer.author());
        commit.follow_up = Some(FollowUp::Schedule(at));
        return Ok(api.committer.carry_out(commit).await.ok());
    }
    fail_point::pass("before-note");
    match api.backbone.write_record(run, 0).await.map_err(|error| unavailable(&error))? {
        Written::Won(revision) => {
            fail_point::pass("after-note");
            intake::publish_noted(api, checked, run).await?;
            Ok(Some(revision))
        }
        Written::Lost(_) => Ok(None),
    }
}

/// A run that waited for its time and made way for `of`: publishes that now, and deletes its schedule. If it does not
/// succeed, the run's message does so when it comes.
async fn tidy(api: &Api, before: Run, of: &RunId) {
    if !matches!(before.state.wait(), Some(Wait::Until(_))) {
        return;
    }
    // The schedule proves what the log has of the run.
    let Ok(Some(_)) = api.backbone.find_schedule(&before).await else { return };
    let Ok(Some(Found { run, .. })) = is_stored(api, &before.tenant, &before.run_id).await else { return };
    if run.state.duplicate_of() == Some(of) && api.committer.publish(&run, Published::at_made_way(&run)).await.is_ok() {
        let removed = api.backbone.unschedule(&before).await;
        if let Err(error) = removed {
            tracing::warn!(run_id = %before.run_id, tenant = %before.tenant, attempt = before.attempt, "the schedule of a replaced run stays: {}", error.with_causes());
        }
    }
}
