//! Idempotency keys: which run owns a key, when a job with that key is about to start, and when `submit` meets the key
//! again.
//!
//! A claim that is marked published stands for a run whose job is durable; the record of that run says whether it still
//! has the key ([`key`](longshore_domain::key)).
//!
//! A claim that is not marked may come from a `submit` that died. Then the node that has a job with that key takes the
//! claim over. If a job of the first run turns up after all, it ends as a duplicate. The claim names the run it was
//! taken from until that run's end is in the log.

pub(crate) mod line;
pub(crate) mod order;

use std::collections::HashSet;
use std::time::Duration;

use longshore_backbone::Error;
use longshore_backbone::claims::{Claim, Claimed, FoundClaim};
use longshore_backbone::fingerprint::Fingerprint;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::request::Over;
use longshore_domain::job::Unique;
use longshore_domain::key::{self, KeyVerdict};
use longshore_domain::publication::Published;
use longshore_domain::run::{DeferReason, whole_millis};
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Job, Run, RunId, Tenant, Timestamp, duration};

use crate::attempt::assignment::Assignment;
use crate::attempt::ports::Ports;
use crate::attempt::running::AttemptState;
use crate::commit::PublishedJob;
use crate::ports::{Rules as _, RunPorts, Server};
use crate::runtime::fail_point;

pub(crate) struct Key<'j> {
    pub(crate) text: &'j str,
    /// How long it stays claimed.
    pub(crate) window: Duration,
    pub(crate) unique: Unique,
}

/// The key of a job. If its run gives it back, there is no window but the job's own.
pub(crate) fn key_of<'j, P: RunPorts>(ports: &P, job: &'j Job) -> Option<Key<'j>> {
    let options = job.options.as_ref()?;
    let set = match options.unique {
        Unique::Window => ports.idempotency_window(),
        Unique::Queued | Unique::Active => duration::MAX_DURATION,
    };
    let (window, unique) = (options.idempotency_window.unwrap_or(set), options.unique);
    options.idempotency_key.as_deref().map(|text| Key { text, window, unique })
}

impl Key<'_> {
    /// Notes in the record of a run that the key is claimed. A record outlasts the window of its key; a key that the
    /// run gives back needs that no longer.
    pub(crate) fn note_claimed(&self, run: &mut Run) {
        let kept = if self.unique == Unique::Window { self.window } else { Duration::ZERO };
        run.key_claimed_ms = Some(whole_millis(kept));
        self.note_wanted(run);
    }

    /// How long its claim is stored while it is not marked: as long as the record of its run, which is due then.
    pub(crate) fn lasts_unmarked<P: RunPorts>(&self, ports: &P, due: Option<Timestamp>) -> Duration {
        let waits = due.map_or(Duration::ZERO, |due| due.since(ports.now()));
        self.window.min(ports.idempotency_window().saturating_add(waits))
    }

    /// Notes in the record of a run which key it gives back when it ends.
    pub(crate) fn note_wanted(&self, run: &mut Run) {
        run.unique_key = (self.unique != Unique::Window).then(|| self.text.to_owned());
    }

    pub(crate) fn claim_of(&self, run_id: RunId, fingerprint: Fingerprint, published: bool) -> Claim {
        Claim { run_id, fingerprint, unique: self.unique, published, taken_from: Vec::new() }
    }
}

/// Which key a job has to claim before this start, if any: just before its first, and before the first of a later round
/// if it may be without the key.
fn key_to_claim<'j, P: RunPorts>(ports: &P, job: &'j Job, run: &Run) -> Option<Key<'j>> {
    key_of(ports, job).filter(|key| match run.round {
        1 => run.key_claimed_ms.is_none(),
        _ => !run.has_started() && is_claimed_again(ports, key, run),
    })
}

/// Whether the next round of a run must claim its key first.
fn is_claimed_again<P: RunPorts>(ports: &P, key: &Key<'_>, run: &Run) -> bool {
    ports.server().is_claimed_again(run, key.unique, ports.policies().keys.release_on, ports.now())
}

/// Why a job that is about to start may not, for the sake of its keys.
pub(crate) enum Denied {
    /// Because of other runs of its key; this follows instead.
    Settled(Settlement),
    /// Another write of the run's record came first; this record is stored now.
    Overtaken(Option<Box<Found>>),
    /// The server did not answer.
    Unanswered(Error),
}

impl From<Error> for Denied {
    fn from(error: Error) -> Self {
        Self::Unanswered(error)
    }
}

impl Denied {
    /// The job waits for other runs of its concurrency key, out of the way of others.
    pub(super) fn waits(assignment: &Assignment) -> Self {
        Self::Settled(Settlement::Park { since: assignment.since, reason: Some(DeferReason::Concurrency) })
    }
}

/// Makes sure that the idempotency key of a job that is about to start is its own, that the job is let in at the line
/// of its concurrency key, and that it is its turn in the order of that. `instead`: it is not cleared to start now, and
/// waits.
pub(crate) async fn come<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    attempt_state: &mut AttemptState,
    instead: Option<&Settlement>,
) -> Result<(), Denied> {
    if let Some(key) = key_to_claim(ports, &assignment.job, &attempt_state.run) {
        if ports.server().is_recorded_first(key.unique) {
            record_first(ports, assignment, attempt_state, instead, "before-key").await?;
        }
        claim(ports, assignment, attempt_state, &key).await?;
    }
    line::come(ports, assignment, attempt_state, instead).await
}

/// Claims the idempotency key, and notes that in the run, so that it happens once.
async fn claim<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    attempt_state: &mut AttemptState,
    key: &Key<'_>,
) -> Result<(), Denied> {
    let job = &assignment.job;
    let run = &mut attempt_state.run;
    let PublishedJob { headers, body, .. } = &assignment.payload;
    let print = Fingerprint::of(job.job_type.as_str(), headers.as_deref(), body);
    // Of two runs that replace, the later one stays. This one may be the earlier: its `submit` may have died, and a
    // later job have come since.
    let replaces = run.replaces.then_some((run.origin, &mut attempt_state.expected));
    let wanted = KeyRequest { key, print, replaces, again: run.round > 1 };
    Err(match own(ports, job, wanted).await? {
        Owner::This => {
            key.note_claimed(run);
            return Ok(());
        }
        Owner::Unknown(found) => Denied::Overtaken(found),
        Owner::Other(of) if run.round == 1 => Denied::Settled(Settlement::Duplicate(of)),
        // Its dead letter is gone: the job must not be lost.
        Owner::Other(of) => {
            let reason = format!("its idempotency key belongs to run {of} by now: replay it once the key is free");
            Denied::Settled(Settlement::Dead(Failure::new(ErrorKind::Permanent, reason)))
        }
    })
}

/// Stores the record of a run that has none, as one that waits, before its key is claimed, or it comes to a line: a
/// node that finds it there then finds the record as well. `point` is the fail point after that.
pub(super) async fn record_first<P: Ports>(
    ports: &P,
    assignment: &Assignment,
    attempt_state: &mut AttemptState,
    instead: Option<&Settlement>,
    point: &'static str,
) -> Result<(), Denied> {
    let run = &mut attempt_state.run;
    // A job that came through `submit` or waited has a record.
    if run.held_by.is_some() || !run.seal.is_empty() {
        return Ok(());
    }
    run.held_by = Some(assignment.arrival.holding.clone());
    if let Some(settlement @ Settlement::Schedule(_)) = instead {
        run.settle(settlement.clone(), ports.now());
        run.seal = ports.seal();
    }
    ports.sign(run);
    match ports.server().write_record(run, attempt_state.expected).await? {
        Written::Won(revision) => attempt_state.expected = revision,
        Written::Lost(found) => return Err(Denied::Overtaken(found)),
    }
    fail_point::pass(point);
    Ok(())
}

pub(crate) struct KeyRequest<'k> {
    pub(crate) key: &'k Key<'k>,
    pub(crate) print: Fingerprint,
    /// It takes the key from a run that has not started and comes before it: the time of its own submission, and the
    /// revision of its record, as it was read before the key was looked at.
    pub(crate) replaces: Option<(Timestamp, &'k mut u64)>,
    /// An own claim is not enough, as another run may be about to take it: it is written again.
    pub(crate) again: bool,
}

/// Who has a key in the end.
pub(crate) enum Owner {
    This,
    Other(RunId),
    /// Another write of the run's record came first, which may have ended it; this record is stored now.
    Unknown(Option<Box<Found>>),
}

/// Takes a key for a job that is durable and whose record, if its scope needs one, says that it has not ended.
pub(crate) async fn own<P: RunPorts>(ports: &P, job: &Job, wanted: KeyRequest<'_>) -> Result<Owner, Error> {
    let KeyRequest { key, print, mut replaces, again } = wanted;
    let mut claim = key.claim_of(job.run_id.clone(), print, true);
    loop {
        let claimed = ports.server().claim_key(&job.tenant, key.text, &claim, key.window).await?;
        let is_new = matches!(claimed, Claimed::Mine(_));
        let (found, revision) = match claimed {
            Claimed::Mine(revision) => (claim.clone(), revision),
            Claimed::Found(FoundClaim { claim: found, revision, .. }) => (found, revision),
        };
        let is_own = found.run_id == job.run_id;
        claim.taken_from.clone_from(&found.taken_from);
        // The key may come back to a run that it was taken from.
        claim.taken_from.retain(|other: &RunId| *other != job.run_id);
        match (found.published, is_own) {
            (true, true) if claim.taken_from.is_empty() && (is_new || !again) => return Ok(Owner::This),
            // Should this node die meanwhile, the job comes again, and the claim still names those runs.
            (true, true) => end_all(ports, job, std::mem::take(&mut claim.taken_from)).await?,
            (true, false) => match last_holder(ports, &job.tenant, &job.run_id, &found).await? {
                None => {}
                Some(LastHolder { run_id, record, has_it: false }) => {
                    // A later run gave it back before this one, which replaces others, came to its turn: what this one
                    // is to do is out of date. A replay of an earlier run is meant.
                    if let (false, Some((at, _)), Some(Found { run, .. })) = (again, &replaces, &record)
                        && key::is_later(run, *at, &job.run_id)
                    {
                        return Ok(Owner::Other(run_id));
                    }
                }
                Some(LastHolder { run_id: holder, record, has_it: true }) => match (record, &mut replaces) {
                    (Some(record), Some((at, revision))) if ports.server().makes_way(&record.run, *at, &job.run_id) => {
                        if ports.server().confirms_before_it_replaces()
                            && let Some(overtaken) = confirm(ports, job, revision).await?
                        {
                            return Ok(overtaken);
                        }
                        make_way(ports, record, &job.run_id).await?;
                        continue;
                    }
                    _ => return Ok(Owner::Other(holder)),
                },
            },
            // Confirmed before it starts.
            (false, true) => {}
            // Taken over: of several that try, one writes the claim.
            (false, false) => claim.taken_from.push(found.run_id),
        }
        let over = Over { expected: revision, lasts: key.window };
        let written = ports.server().write_claim(&job.tenant, key.text, &claim, over).await?;
        if written.is_some() && claim.taken_from.is_empty() {
            return Ok(Owner::This);
        }
    }
}

/// Writes the record of a run once more, as it is, after the run was read that is to make way for it, and before that
/// is ended. What it says if another write came first.
///
/// The node that accepts a job and the one that begins it may look at its key at once. If one of them finds that run at
/// an attempt, which is put back then, and the other finds it waiting, the first ends this run as the duplicate of that
/// one and the second ends that one as the duplicate of this: both are lost. This write makes the first one's fail,
/// unless it has read the record after this, and so that run, too.
async fn confirm<P: RunPorts>(ports: &P, job: &Job, revision: &mut u64) -> Result<Option<Owner>, Error> {
    let found = ports.server().read_record(&job.tenant, &job.run_id).await?;
    let Some(Found { mut run, .. }) = found.as_ref().filter(|found| found.revision == *revision).cloned() else {
        return Ok(Some(Owner::Unknown(found.map(Box::new))));
    };
    ports.sign(&mut run);
    match ports.server().write_record(&run, *revision).await? {
        Written::Won(written) => {
            *revision = written;
            fail_point::pass("before-make-way");
            Ok(None)
        }
        Written::Lost(found) => Ok(Some(Owner::Unknown(found))),
    }
}

/// The run that has the key of a claim, with its record if that is still there; `None`: the key is free for the run
/// that asks.
pub(crate) async fn holder<P: RunPorts>(
    ports: &P,
    tenant: &Tenant,
    asks: &RunId,
    claim: &Claim,
) -> Result<Option<(RunId, Option<Found>)>, Error> {
    let last = last_holder(ports, tenant, asks, claim).await?;
    Ok(last.filter(|last| last.has_it).map(|last| (last.run_id, last.record)))
}

/// The run that has the key of a claim, or had it last.
struct LastHolder {
    run_id: RunId,
    record: Option<Found>,
    has_it: bool,
}

/// The last one that had the key of a claim; `None`: it made way for the run that asks. A claim may name a run that
/// made way, if the node died that was about to write the claim for the next run.
async fn last_holder<P: RunPorts>(
    ports: &P,
    tenant: &Tenant,
    asks: &RunId,
    claim: &Claim,
) -> Result<Option<LastHolder>, Error> {
    let release_on = ports.policies().keys.release_on;
    let mut run_id = claim.run_id.clone();
    // As many as replaced each other before one of them could write the claim. They never form a ring; if they did, no
    // run would have the key.
    let mut passed: HashSet<RunId> = HashSet::new();
    while passed.insert(run_id.clone()) {
        let record = ports.server().read_record(tenant, &run_id).await?;
        match ports.server().on_claim(record.as_ref().map(|found| &found.run), claim.unique, release_on) {
            KeyVerdict::Free => return Ok(Some(LastHolder { run_id, record, has_it: false })),
            KeyVerdict::Held => return Ok(Some(LastHolder { run_id, record, has_it: true })),
            KeyVerdict::PassedTo(next) if next == *asks => return Ok(None),
            KeyVerdict::PassedTo(next) => run_id = next,
        }
    }
    Ok(None)
}

/// Ends a run that has not started as the duplicate of another one, whose job is durable. Its own message publishes
/// that when it comes. `None`: another write came first.
pub(crate) async fn make_way<P: RunPorts>(ports: &P, found: Found, of: &RunId) -> Result<Option<Run>, Error> {
    let Found { mut run, revision } = found;
    run.make_way(of.clone(), ports.now());
    ports.sign(&mut run);
    match ports.server().write_record(&run, revision).await? {
        Written::Won(_) => {
            ports.metrics().run_ended(&run);
            fail_point::pass("after-make-way");
            Ok(Some(run))
        }
        Written::Lost(_) => Ok(None),
    }
}

/// Finishes what an earlier delivery of the job has begun, if its node died over it: ends the runs that the job's key
/// was taken from. For a job that will not start, so that nothing else does.
pub(crate) async fn finish_take_over<P: Ports>(ports: &P, job: &Job, run: &Run) -> Result<(), Error> {
    let Some(key) = key_to_claim(ports, job, run) else { return Ok(()) };
    match ports.server().read_claim(&job.tenant, key.text).await? {
        // Until the claim is marked, it is not known whether the run has the key.
        Some(FoundClaim { claim, .. }) if claim.run_id == job.run_id && claim.published => {
            end_all(ports, job, claim.taken_from).await
        }
        _ => Ok(()),
    }
}

/// Whether a node has begun to take the job's key over from another run, and has not finished.
pub(crate) async fn is_taking_over<P: RunPorts>(ports: &P, job: &Job) -> Result<bool, Error> {
    let Some(key) = key_of(ports, job) else { return Ok(false) };
    let found = ports.server().read_claim(&job.tenant, key.text).await?;
    Ok(found.is_some_and(|found| found.claim.run_id == job.run_id && !found.claim.taken_from.is_empty()))
}

/// Ends the runs that a job's key was taken from.
async fn end_all<P: RunPorts>(ports: &P, job: &Job, runs: Vec<RunId>) -> Result<(), Error> {
    // A run may take back the key that was taken from it.
    for run_id in runs.iter().filter(|run_id| **run_id != job.run_id) {
        end_unpublished(ports, job, run_id).await?;
    }
    Ok(())
}

/// Ends the run whose claim was taken over, if it has nothing but its record, and waits until that end is in the log:
/// its `submit` has died, or is about to learn of this. If a job of that run turns up all the same, it finds that
/// another run has its key.
async fn end_unpublished<P: RunPorts>(ports: &P, job: &Job, run_id: &RunId) -> Result<(), Error> {
    let mut is_ended_here = false;
    loop {
        let record = ports.server().read_record(&job.tenant, run_id).await?;
        let Some(Found { mut run, revision }) = record else { return Ok(()) };
        let is_without_message = run.held_by.is_none();
        // If a job of that run has turned up and ended it, its message is not acknowledged before the log has that end.
        // It may be the duplicate of a run that took the key before this one, and whose node died then.
        if run.state.duplicate_of().is_some() && is_without_message {
            // Another node that ended it has published that live, or has died.
            let published = match is_ended_here {
                true => Published::nothing(),
                false => ports.server().published_at_redelivery(&run),
            };
            if ports.publish(&run, published).await.is_ok() {
                return Ok(());
            }
            continue;
        }
        // It may be about to take the key back, from this very run: then whichever of the two writes first wins the
        // record of this run, and the other one finds that out as it begins.
        let stands = run.published || run.replaces || run.has_started();
        if stands || !is_without_message || run.state.is_terminal() {
            return Ok(());
        }
        run.lose_key(job.run_id.clone(), ports.now());
        ports.sign(&mut run);
        if matches!(ports.server().write_record(&run, revision).await?, Written::Won(_)) {
            is_ended_here = true;
            ports.metrics().run_ended(&run);
            fail_point::pass("after-takeover");
        }
    }
}

/// The claim of a key for a submission under way.
pub(crate) struct OwnClaim {
    pub(crate) revision: u64,
    /// The runs that the key was taken from.
    pub(crate) taken_from: Vec<RunId>,
}

/// Whose the key of a submitted run is once its job is durable.
pub(crate) enum Marked {
    Own,
    /// Another run has taken the claim over meanwhile.
    TakenBy(Claim),
    /// It is not known before the job claims the key as it begins: the claim is another one of this run, or it is gone.
    Open,
}

/// The job or schedule of a submitted run is durable: marks its claim as published, and then ends the runs that the key
/// was taken from. Not before: until the claim is marked, any of them may take the key back, and two runs that end as
/// each other's duplicates are both lost.
pub(crate) async fn mark_published<P: RunPorts>(
    ports: &P,
    job: &Job,
    own: OwnClaim,
    print: Fingerprint,
) -> Result<Marked, Error> {
    let Some(key) = key_of(ports, job) else { return Ok(Marked::Open) };
    let OwnClaim { mut revision, taken_from } = own;
    let mut claim = Claim { taken_from, ..key.claim_of(job.run_id.clone(), print, true) };
    loop {
        let over = Over { expected: revision, lasts: key.window };
        let written = ports.server().write_claim(&job.tenant, key.text, &claim, over).await?;
        let Some(written) = written else { break };
        fail_point::pass("after-key-mark");
        if claim.taken_from.is_empty() {
            return Ok(Marked::Own);
        }
        end_all(ports, job, std::mem::take(&mut claim.taken_from)).await?;
        revision = written;
    }
    let found = ports.server().read_claim(&job.tenant, key.text).await?.map(|found| found.claim);
    Ok(found.filter(|claim| claim.run_id != job.run_id).map_or(Marked::Open, Marked::TakenBy))
}

/// The run that has the key of a dead job, if the job needs its key to be replayed and another run has it. Nothing is
/// certain before the job claims its key, just before it starts.
pub(crate) async fn other_holder<P: RunPorts>(ports: &P, job: &Job, run: &Run) -> Result<Option<RunId>, Error> {
    let Some(key) = key_of(ports, job).filter(|key| is_claimed_again(ports, key, run)) else { return Ok(None) };
    let found = ports.server().read_claim(&job.tenant, key.text).await?;
    let Some(FoundClaim { claim, .. }) = found.filter(|found| found.claim.published) else { return Ok(None) };
    let holder = holder(ports, &job.tenant, &job.run_id, &claim).await?;
    Ok(holder.map(|(run_id, _)| run_id).filter(|run_id| *run_id != job.run_id))
}
