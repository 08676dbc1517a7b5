//! A submission whose run has an id, a key or a later time of its own: its record is written first, then its job or
//! schedule, then record and claim are marked as published. Until that is done, a repeat of the submission may publish
//! the job again, in this way or another.
//!
//! The simulation drives these functions, too; [`SubmitPorts`] is what they ask for.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use longshore_backbone::claims::Claim;
use longshore_backbone::fingerprint::Fingerprint;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::wire::api::{ApiError, Code, Submitted};
use longshore_backbone::wire::header::names;
use longshore_backbone::{Error, Headers};
use longshore_domain::follow_up::FollowUp;
use longshore_domain::policy::OnMismatch;
use longshore_domain::protocol::Repeat;
use longshore_domain::publication::Published;
use longshore_domain::run::Wait;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, Run, RunId, RunState, Timestamp};

use crate::api::debounce::Debounced;
use crate::attempt::keys::{self, Marked, OwnClaim};
use crate::commit::{Commit, PublishedJob};
use crate::ports::{Rules as _, RunPorts, Server as _, Unlogged};
use crate::runtime::fail_point;
use crate::runtime::log_run::{About, log_run};
use crate::trace;

/// What accepting a job asks besides.
pub(crate) trait SubmitPorts: RunPorts {
    /// Publishes a job into its lane, under this message id.
    ///
    /// # Errors
    /// It was refused, or no server answered.
    async fn publish_job(&self, job: &Job, headers: Headers, payload: Bytes, id: &str) -> Result<(), ApiError>;
    /// Has a commit without a delivery carried out; returns the revision of its record.
    ///
    /// # Errors
    /// Another write of the record was first, or it is not known how far it was carried out.
    async fn carry_out(&self, commit: Commit) -> Result<u64, Unlogged>;

    /// Whether the server has the schedule of the wait that this record speaks of.
    async fn has_schedule(&self, run: &Run) -> Result<bool, Error>;
    /// Deletes that schedule.
    async fn unschedule(&self, run: &Run) -> Result<(), Error>;
}

/// What happens if another run has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnConflict {
    /// The answer is that run.
    Return,
    /// The job is refused.
    Reject,
    /// The job takes the place of that run, unless it has started.
    Replace,
}

/// A submission, read and checked.
pub(crate) struct Submission {
    pub(crate) job: Job,
    /// The id that the client chose for its run.
    pub(crate) own_id: Option<RunId>,
    pub(crate) on_conflict: OnConflict,
    /// It waits for others of its key, which take its place.
    pub(crate) debounce: Option<Debounced>,
    pub(crate) headers: Headers,
    pub(crate) payload: Bytes,
    /// Its trace, with the span above its own, if the node writes traces.
    pub(crate) trace: Option<trace::Submission>,
    /// The revision of a record of its id that makes way for its own; 0: none does.
    pub(crate) over: u64,
    /// Made when it is first asked for.
    pub(crate) fingerprint: OnceLock<Fingerprint>,
}

impl Submission {
    /// Distinguishes this job from another one with the same key.
    pub(super) fn print(&self) -> &Fingerprint {
        let made = || Fingerprint::of(self.job.job_type.as_str(), Some(&self.headers), &self.payload);
        self.fingerprint.get_or_init(made)
    }

    fn payload(&self) -> PublishedJob {
        let trace = self.trace.as_ref().map(|submission| submission.trace.clone());
        PublishedJob { headers: Some(Arc::new(self.headers.clone())), body: self.payload.clone(), trace }
    }
}

pub(super) fn answer(run_id: &RunId, state: RunState, deduplicated: bool) -> Submitted {
    Submitted { deduplicated, run_id: run_id.clone(), state: state.into() }
}

/// Another write came in between: the client asks again.
pub(super) fn changes() -> ApiError {
    ApiError::unavailable("the run's record changes; try again")
}

/// Writes the record, publishes the job or schedule, and marks both record and claim as published.
pub(super) async fn record_first<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    due: Option<Timestamp>,
    claim: Option<OwnClaim>,
) -> Result<Submitted, ApiError> {
    // Twice: the record of an earlier run of that id may go away just after it was in the way.
    for _ in 0..2 {
        let mut run = new_run(ports, submission);
        let found = match make_durable(ports, submission, &mut run, due).await? {
            Written::Won(revision) => return mark(ports, submission, run, revision, claim).await,
            // The record is not ours: there is another run with that id.
            Written::Lost(None) if due.is_some() => {
                ports.server().read_record(&submission.job.tenant, &submission.job.run_id).await?
            }
            Written::Lost(found) => found.map(|found| *found),
        };
        if let Some(found) = found {
            return found_before(ports, submission, found, claim).await;
        }
    }
    Err(changes())
}

/// Stores the record of a new run, and its job or schedule. What came before a record with a schedule is not read.
pub(super) async fn make_durable<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    run: &mut Run,
    due: Option<Timestamp>,
) -> Result<Written, ApiError> {
    if let Some(at) = due {
        return Ok(schedule(ports, submission, run, at).await.map_or(Written::Lost(None), Written::Won));
    }
    fail_point::pass("before-note");
    let written = ports.server().write_for_client(run, submission.over).await?;
    if let Written::Won(_) = written {
        fail_point::pass("after-note");
        publish_recorded(ports, submission, run).await?;
    }
    Ok(written)
}

/// The run of a submission as it is before anything is stored.
pub(super) fn new_run<P: SubmitPorts>(ports: &P, submission: &Submission) -> Run {
    let job = &submission.job;
    let mut run = ports.policies().new_run(job, &submission.payload, ports.now());
    run.seal = ports.seal();
    ports.sign(&mut run);
    run.trace_id = trace::context::id_in(Some(&submission.headers));
    if let Some(key) = keys::key_of(ports, job) {
        key.note_wanted(&mut run);
    }
    run.starts_by = submission.debounce.and_then(|debounce| debounce.starts_by(ports.now()));
    run
}

/// Publishes a job whose record is stored, under the record's seal.
async fn publish_recorded<P: SubmitPorts>(ports: &P, submission: &Submission, run: &Run) -> Result<(), ApiError> {
    let job = &submission.job;
    let mut headers = submission.headers.clone();
    headers.insert(names::RUN_ID, job.run_id.as_str());
    headers.insert(names::SEAL, run.seal.as_str());
    // The message id is of this record, not of this run id: a later run with the same id is another one.
    let id = format!("{}/{}/{}", job.tenant, job.run_id, run.seal);
    ports.publish_job(job, headers, submission.payload.clone(), &id).await?;
    fail_point::pass("after-publish");
    Ok(())
}

/// The job or schedule is durable: marks its claim and its record as published. Answers with the run, or with the run
/// that has taken its key over meanwhile.
async fn mark<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    mut run: Run,
    revision: u64,
    claim: Option<OwnClaim>,
) -> Result<Submitted, ApiError> {
    let job = &submission.job;
    let marked = match claim {
        Some(claim) => keys::mark_published(ports, job, claim, submission.print().clone()).await?,
        None => Marked::Open,
    };
    if let Marked::TakenBy(taken_by) = marked {
        return taken_over(ports, submission, Found { run, revision }, &taken_by).await;
    }
    if let (Marked::Own, Some(key)) = (&marked, keys::key_of(ports, job)) {
        key.note_claimed(&mut run);
    }
    mark_record(ports, &mut run, revision).await?;
    fail_point::pass("after-mark");
    Ok(answer(&job.run_id, run.state.name(), false))
}

/// Another run has taken the key over before its claim was marked. This run must not stay beside it, and start once
/// that one has given the key back: its record is not marked, so that who has the key in the end ends it. Who has it by
/// now may have looked for it before it was there: then it ends here.
async fn taken_over<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    own: Found,
    taken_by: &Claim,
) -> Result<Submitted, ApiError> {
    let job = &submission.job;
    let (is_mismatch, before) = (is_mismatch(ports, submission, taken_by), own.run.clone());
    let made_way = if taken_by.published { keys::make_way(ports, own, &taken_by.run_id).await? } else { None };
    let run = match made_way {
        Some(run) => run,
        None => ports.server().read_record(&job.tenant, &job.run_id).await?.ok_or_else(changes)?.run,
    };
    let holder = match run.state.duplicate_of() {
        Some(of) => of.clone(),
        // Its key was free again before it was taken: this run is not a duplicate.
        None if run.has_started() || run.round > 1 || run.state.is_terminal() => {
            return Ok(answer(&job.run_id, run.state.name(), false));
        }
        // A node is about to begin it. Or the other submission has died, or is under way: whose run has the key in the
        // end is not known yet.
        None => return Err(changes()),
    };
    tidy(ports, before, &holder).await;
    if holder == taken_by.run_id && is_mismatch {
        return Err(mismatch(&holder));
    }
    // The other run is about to write its record, or it has ended and its record is gone.
    let Some(found) = ports.server().read_record(&job.tenant, &holder).await? else { return Err(changes()) };
    Ok(answer(&holder, mark_found(ports, found).await?, true))
}

/// A run that waited for its time and made way for `of`: publishes that now, and deletes its schedule. If it does not
/// succeed, the run's message does so when it comes.
pub(super) async fn tidy<P: SubmitPorts>(ports: &P, before: Run, of: &RunId) {
    if !matches!(before.state.wait(), Some(Wait::Until(_))) {
        return;
    }
    // The schedule proves what the log has of the run.
    let Ok(true) = ports.has_schedule(&before).await else { return };
    let Ok(Some(Found { run, .. })) = ports.server().read_record(&before.tenant, &before.run_id).await else { return };
    // Deferred meanwhile, it has events that the schedule proves nothing of; its message publishes them.
    let is_as_before = run.deferrals == before.deferrals;
    if is_as_before
        && run.state.duplicate_of() == Some(of)
        && ports.publish(&run, Published::at_made_way(&run)).await.is_ok()
        && let Err(error) = ports.unschedule(&before).await
    {
        log_run!(warn, About::run(&before), "the schedule of a replaced run stays: {}", error.with_causes());
    }
}

/// Whether the job is to be refused because its key came before with another one.
pub(super) fn is_mismatch<P: SubmitPorts>(ports: &P, submission: &Submission, claim: &Claim) -> bool {
    ports.policies().keys.on_mismatch == OnMismatch::Reject
        && submission.on_conflict != OnConflict::Replace
        && !submission.print().is_same_as(&claim.fingerprint)
}

pub(super) fn mismatch(of: &RunId) -> ApiError {
    let message = format!("idempotency_key: came before with another type or payload, for run {of}");
    ApiError::new(Code::IdempotencyMismatch, message)
}

/// Marks a record as published, so that it does not go away by itself. If another write was first, a node has most
/// often taken the run up already.
///
/// # Errors
/// The record may not be marked: a client that were answered could not rely on its run.
async fn mark_record<P: SubmitPorts>(ports: &P, run: &mut Run, revision: u64) -> Result<(), ApiError> {
    run.published = true;
    ports.sign(run);
    match ports.server().write_for_client(run, revision).await? {
        Written::Won(_) => Ok(()),
        Written::Lost(Some(found)) if ports.server().on_repeat(&found.run) == Repeat::Nothing => Ok(()),
        Written::Lost(_) => Err(changes()),
    }
}

/// The run has a key, so its job is durable: its record must not go away by itself once a client knows of it.
pub(super) async fn mark_found<P: SubmitPorts>(ports: &P, found: Found) -> Result<RunState, ApiError> {
    let Found { mut run, revision } = found;
    let state = run.state.name();
    if ports.server().on_repeat(&run) != Repeat::Nothing {
        mark_record(ports, &mut run, revision).await?;
    }
    Ok(state)
}

/// The run exists already: answers with it as it stands. If its job may never have been published, it is published now.
pub(super) async fn found_before<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    found: Found,
    claim: Option<OwnClaim>,
) -> Result<Submitted, ApiError> {
    let Found { run, revision } = found;
    match ports.server().on_repeat(&run) {
        Repeat::Publish => publish_recorded(ports, submission, &run).await?,
        Repeat::Schedule(at) => schedule_again(ports, submission, &run, at).await?,
        Repeat::Nothing => return Ok(answer(&run.run_id, run.state.name(), true)),
    }
    let first = mark(ports, submission, run, revision, claim).await?;
    Ok(Submitted { deduplicated: true, ..first })
}

/// The record says that the run waits for its time. If there is no schedule, either it has fired, and another message
/// of the run does no harm; or the node that wrote the record died before it wrote the schedule.
async fn schedule_again<P: SubmitPorts>(
    ports: &P,
    submission: &Submission,
    run: &Run,
    at: Timestamp,
) -> Result<(), ApiError> {
    if ports.has_schedule(run).await? {
        return Ok(());
    }
    let published = ports.server().published_at_redelivery(run);
    let mut commit = Commit::of_stored(Box::new(run.clone()), submission.payload(), published, ports.author());
    commit.follow_up = Some(FollowUp::Schedule(at));
    let scheduled = ports.carry_out(commit).await;
    scheduled.map(drop).map_err(|_| ApiError::unavailable("the schedule could not be written; try again"))
}

/// Stores the run as scheduled, publishes its events, and writes its schedule; in this order, by the committer.
async fn schedule<P: SubmitPorts>(ports: &P, submission: &Submission, run: &mut Run, at: Timestamp) -> Option<u64> {
    run.settle(Settlement::Schedule(at), ports.now());
    let written = Box::new(run.clone());
    let mut commit =
        Commit::to_write(written, submission.payload(), submission.over, Published::nothing(), ports.author());
    commit.follow_up = Some(FollowUp::Schedule(at));
    ports.carry_out(commit).await.ok()
}
