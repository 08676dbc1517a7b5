//! One run is cancelled, whatever its state.
//!
//! The record decides, as everywhere: `cancelled` is written by compare-and-set, then published; then the node that
//! runs the job is asked to stop it, and the message that waits is deleted. If a message of the run is delivered after
//! all, its record says that it is cancelled. A job that no node has seen yet could begin without reading its record.
//! So a cancel note is written to a durable list before: every node reads that list when it starts, and every running
//! node must confirm that it received the note. A node that has begun the job already says so, and ends it.
//!
//! The simulation drives these functions, too; [`CancelPorts`] is what they ask for.

use std::sync::Arc;
use std::time::Duration;

use longshore_backbone::Headers;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Code};
use longshore_backbone::wire::header;
use longshore_domain::publication::Carrier;
use longshore_domain::run::{EndLog, Holding, Wait};
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, QueueLane, Run, RunId, RunState, Tenant};

use crate::api::filter::RunFilter;
use crate::attempt::keys::{self, line};
use crate::commit::follow_up::note_logged;
use crate::commit::keys::{give_back, key_given_back, leave_key};
use crate::ports::encode::Destination as _;
use crate::ports::{CancelPorts, InLane, Rules as _, RunPorts, Server as _};
use crate::runtime::fail_point;
use crate::runtime::log_run::{About, log_run};
use crate::trace::JobTrace;

/// How often, and how many times at most, the message of a waiting run is looked for: between two places it is nowhere.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOKS: u32 = 10;

/// Restricts a cancellation to runs that fit a filter; with the message by which this run was met.
#[derive(Clone, Copy)]
pub(crate) struct Only<'a> {
    pub(crate) filter: &'a RunFilter,
    pub(crate) only_if_waiting: bool,
    pub(crate) place: &'a Source,
    pub(crate) message: &'a Stored,
}

/// A message of a run, where it waits.
struct WaitingMessage {
    place: Source,
    sequence: u64,
    /// The job, as far as the message says; `None`: it is known otherwise, or cannot be read.
    job: Option<Job>,
    /// Which trace it belongs to, if the node writes traces.
    trace: Option<JobTrace>,
}

/// Cancels a run. `None`: there is no such run, or it does not fit.
///
/// # Errors
/// The run has ended otherwise, or the record could not be written.
pub(crate) async fn one<P: CancelPorts>(
    ports: &P,
    tenant: &Tenant,
    run_id: &RunId,
    only: Option<Only<'_>>,
) -> Result<Option<Run>, ApiError> {
    let only_if_waiting = only.is_some_and(|only| only.only_if_waiting);
    let (mut asked, mut looks) = (false, 0);
    loop {
        let Present { run: before, expected, job } = match present(ports, tenant, run_id).await {
            Ok(Some(present)) => present,
            Err(error) if error.error == Code::Unreadable.as_str() => return forget(ports, tenant, run_id, only).await,
            Ok(None) => return Ok(None),
            Err(error) => return Err(error),
        };
        if before.state == RunState::Cancelled {
            // The node that cancelled it may have died before any other was notified.
            ports.server().notify_cancelled(tenant, run_id).await;
            if let Some(only) = only.filter(|_| !asked) {
                publish_again(ports, &before, only).await;
            }
            // Under a filter only runs that this call ended count: a run that is being stopped keeps its message for a
            // while, and the next pass meets it again.
            return Ok(Some(before).filter(|_| only.is_none() || asked));
        }
        let left_alone = only_if_waiting && before.state == RunState::Running;
        // The caller that ended its attempt was answered that this counts.
        let ends_late = before.ends_late();
        if left_alone || only.is_some_and(|only| ends_late || !only.filter.fits(&before)) {
            return Ok(None);
        }
        if before.state.is_terminal() || ends_late && looks == LOOKS {
            return Err(has_ended(&before));
        }
        if before.is_unseen() && !std::mem::replace(&mut asked, true) {
            ports.note_cancel(tenant, run_id).await?;
            if ports.ask_who_runs(tenant, run_id, only_if_waiting).await? {
                if only_if_waiting {
                    // It has begun, without a record.
                    return Ok(None);
                }
                // That node writes the end, with the attempt that is in no record yet. If its handler was faster to
                // hear of this, and failed, it writes a retry, which is cancelled as any.
                ports.wait_for_attempt(tenant, run_id).await?;
            }
            // Either way some time has passed.
            continue;
        }
        let carried_on = carried_on_by(ports, &before, only).await?;
        if (ends_late || carried_on.is_none() && comes_by_a_node(&before)) && looks < LOOKS {
            // A node is about to write its message, moves it, or settles its attempt: a retry could be cancelled.
            looks += 1;
            ports.server().pause(LOOK_EVERY).await;
            continue;
        }
        let carrier = carrier_of(ports, &before, carried_on.as_ref()).await;
        let mut run = before.clone();
        run.settle(Settlement::Cancel, ports.now());
        run.leave_end_log(carrier.logs_end_of(&before));
        ports.sign(&mut run);
        if let Written::Won(revision) = ports.server().write_record(&run, expected).await? {
            ports.metrics().run_ended(&run);
            fail_point::pass("after-cancel");
            let (before, after) = (Present { run: before, expected, job }, Found { run, revision });
            finish(ports, &before, &after, carrier, carried_on).await;
            return Ok(Some(after.run));
        }
    }
}

/// Why a run is not cancelled that has ended, or whose attempt has.
fn has_ended(run: &Run) -> ApiError {
    let (run_id, state) = (&run.run_id, run.state.as_str());
    let message = match run.state.is_terminal() {
        true => format!("run_id: {run_id} has ended: it is {state}"),
        false => format!("run_id: the attempt of {run_id} has ended, which counts as soon as its queue runs"),
    };
    ApiError::new(Code::WrongState, message)
}

/// Whether no attempt of a run that was cancelled as it began goes on.
pub(crate) fn is_over(run: &Run) -> bool {
    run.state.is_terminal() || run.state.wait().is_some()
}

/// The record cannot be read, and no lane has a job of the run: what is stored of it is removed, and the message by
/// which it was met. If another message of it comes up, nothing proves that to be the run's, and it becomes an
/// `invalid` dead letter.
async fn forget<P: CancelPorts>(
    ports: &P,
    tenant: &Tenant,
    run_id: &RunId,
    only: Option<Only<'_>>,
) -> Result<Option<Run>, ApiError> {
    if let Some(Only { filter, place, message, .. }) = only {
        if !filter.fits_whatever_runs_say() {
            return Ok(None);
        }
        ports.take_out(place, message.sequence).await?;
    }
    if let Some(revision) =
        ports.server().read_record(tenant, run_id).await.err().and_then(|error| error.unreadable_at())
    {
        ports.remove_record(tenant, run_id, revision).await?;
    }
    Ok(None)
}

/// The record says that the run is cancelled: publishes that, notifies the nodes, deletes the run's message and gives
/// its key back. What is not reached here, the run's message or a node that asks for the key does when it comes.
async fn finish<P: CancelPorts>(
    ports: &P,
    before: &Present,
    after: &Found,
    carrier: Carrier,
    carried_on: Option<WaitingMessage>,
) {
    let (Present { run: before, job, .. }, Found { run, revision }) = (before, after);
    let (tenant, run_id) = (&run.tenant, &run.run_id);
    let known = job.as_deref().or_else(|| carried_on.as_ref()?.job.as_ref());
    let line = known.and_then(|job| line::of(ports.policies(), job));
    let published = ports.server().published_at_cancel(before, run, carrier);
    let logged = ports.publish(run, published).await;
    ports.server().notify_cancelled(tenant, run_id).await;
    // If the log may lack events, of this run or of one whose key a node took over for it, the message stays where it
    // is: its delivery publishes them.
    if logged.is_ok() {
        if run.state.end_log() == EndLog::ByCanceller {
            note_logged(ports, run, *revision).await;
        }
        match clear_away(ports, before, carried_on, job.as_deref()).await {
            // No message of the run is left that could be delivered.
            Ok(Some(trace)) => {
                // So no node writes that its wait is over.
                if let (Some(tracer), Some(trace)) = (ports.tracer(), trace) {
                    tracer.wait_ended(&trace, run);
                }
                if before.is_unseen() {
                    let _ = ports.forget_cancel(tenant, run_id).await;
                }
            }
            Ok(None) => {}
            Err(error) => {
                let about = About::run(before);
                log_run!(warn, about, "a cancelled job stays where it is until it comes up: {}", error.message);
            }
        }
    }
    if before.state != RunState::Running {
        forget_steps(ports, run).await;
    }
    if let Err(error) = leave_key(ports.server(), run, line.as_ref()).await {
        log_run!(debug, About::run(run), "what is left of a cancelled run's key stays: {}", error.with_causes());
    }
    if let Some(key) = key_given_back(run)
        && let Err(error) = give_back(ports.server(), tenant, run, key).await
    {
        log_run!(warn, About::run(run), "a cancelled run's claim of its key stays: {}", error.with_causes());
    }
}

/// Removes the results of the steps of a run that has ended for good, outside of an attempt.
pub(super) async fn forget_steps<P: RunPorts>(ports: &P, run: &Run) {
    if !run.steps.is_empty()
        && let Err(error) = ports.server().forget_steps(&run.tenant, &run.run_id).await
    {
        log_run!(debug, About::run(run), "the results of steps stay until they are too old: {}", error.with_causes());
    }
}

/// Publishes a cancel whose node died over it: the log may lack it until the run's schedule or parked job is delivered,
/// perhaps in days. That message stays, as what was merely read ends none.
async fn publish_again<P: CancelPorts>(ports: &P, run: &Run, only: Only<'_>) {
    if matches!(only.place, Source::Schedules | Source::Parked)
        && !run.is_being_logged(ports.now())
        && ports.publish(run, ports.server().published_at_redelivery(run)).await.is_err()
    {
        log_run!(debug, About::run(run), "a cancel is published once its job comes up");
    }
}

/// Deletes the message of a run that waited; `None`: there was none, else the trace that it named. If that fails,
/// nothing is lost: the record says that the run is cancelled.
async fn clear_away<P: CancelPorts>(
    ports: &P,
    before: &Run,
    carried_on: Option<WaitingMessage>,
    job: Option<&Job>,
) -> Result<Option<Option<JobTrace>>, ApiError> {
    let waiting = match carried_on {
        Some(message) => Some(message),
        None => message_of(ports, before).await?,
    };
    let Some(WaitingMessage { place, sequence, job: read, trace }) = waiting else { return Ok(None) };
    if may_take_over(ports, before, job.or(read.as_ref())).await {
        return Ok(None);
    }
    let was_there = ports.take_out(&place, sequence).await?;
    Ok(was_there.then_some(trace))
}

/// Whether a node has perhaps begun to take a key over for the job, and died: before the run's record says that the key
/// is claimed.
async fn may_take_over<P: CancelPorts>(ports: &P, before: &Run, job: Option<&Job>) -> bool {
    if before.key_claimed_ms.is_some() || before.round > 1 || before.has_started() {
        return false;
    }
    match job {
        Some(job) => keys::is_taking_over(ports, job).await.unwrap_or(true),
        None => false,
    }
}

/// The run's message, if the run waits; perhaps it was not written yet when its record was read.
async fn message_of<P: CancelPorts>(ports: &P, before: &Run) -> Result<Option<WaitingMessage>, ApiError> {
    let place = match before.state.wait() {
        Some(_) => return found_at(ports, place_of_wait(before), before).await,
        None if before.state == RunState::Enqueued && before.has_started() => return put_back(ports, before).await,
        None if !before.is_unseen() => return Ok(None),
        None => Source::Lane(before.queue.clone(), before.priority.into()),
    };
    match before.run_id.as_derived() {
        Some((lane, sequence)) if before.round == 1 => {
            let there = ports.waiting(&before.tenant, &before.run_id).await?;
            let place = Source::Lane(lane.queue, lane.priority.into());
            let found = there.filter(|there| there.run.origin == before.origin);
            Ok(found.map(|there| WaitingMessage { place, sequence, job: None, trace: there.trace }))
        }
        _ => found_at(ports, place, before).await,
    }
}

/// The message of a run that its node has put back, as it drained: the one that carried it is in its lane again.
async fn put_back<P: CancelPorts>(ports: &P, before: &Run) -> Result<Option<WaitingMessage>, ApiError> {
    let Some(Holding { message, .. }) = &before.held_by else { return Ok(None) };
    let Some((queue, lane)) = ports.server().names().read_lane_stream(&message.stream) else { return Ok(None) };
    let is_there = !ports.has_no_message(before).await?;
    let (place, sequence) = (Source::Lane(queue, lane), message.sequence);
    Ok(is_there.then_some(WaitingMessage { place, sequence, job: None, trace: None }))
}

/// Where the message of a run waits that waits outside of its lane.
fn place_of_wait(run: &Run) -> Source {
    if let Some(Wait::Parked { .. }) = run.state.wait() { Source::Parked } else { Source::Schedules }
}

async fn found_at<P: CancelPorts>(ports: &P, place: Source, run: &Run) -> Result<Option<WaitingMessage>, ApiError> {
    let found = ports.find(&place, run).await?;
    Ok(found.map(|stored| waiting_as(ports, run, place, &stored)))
}

/// A message in which a run waits.
fn waiting_as<P: CancelPorts>(ports: &P, run: &Run, place: Source, stored: &Stored) -> WaitingMessage {
    let headers = &stored.headers;
    let of = |tracer| JobTrace::of(tracer, Some(headers), &run.tenant, &run.run_id, run.origin);
    let job = Some(job_of(run, headers)).filter(|job| job.options.is_some());
    let trace = ports.tracer().map(of);
    WaitingMessage { place, sequence: stored.sequence, job, trace }
}

/// Whether the message that brings a waiting run on is one that a node wrote. It did so once the log had every event
/// before.
pub(crate) fn comes_by_a_node(run: &Run) -> bool {
    run.state.wait().is_some() || run.is_unseen() && run.round > 1
}

/// The message that brings such a run on, if there is one: where it waits, or in its lane if it has fallen due.
async fn carried_on_by<P: CancelPorts>(
    ports: &P,
    before: &Run,
    only: Option<Only<'_>>,
) -> Result<Option<WaitingMessage>, ApiError> {
    if !comes_by_a_node(before) {
        return Ok(None);
    }
    if let Some(Only { place, message, .. }) = only.filter(|only| is_of_wait(&only.message.headers, before)) {
        return Ok(Some(waiting_as(ports, before, place.clone(), message)));
    }
    if before.state.wait().is_some()
        && let Some(found) = found_at(ports, place_of_wait(before), before).await?
    {
        return Ok(Some(found));
    }
    let lane = if before.state.is_parked() { QueueLane::Returned } else { before.priority.into() };
    found_at(ports, Source::Lane(before.queue.clone(), lane), before).await
}

/// What is known of the message that brings a run on. That of a running run is looked for before its end is written:
/// afterwards, its node may have removed it already.
async fn carrier_of<P: CancelPorts>(ports: &P, before: &Run, carried_on: Option<&WaitingMessage>) -> Carrier {
    match carried_on {
        Some(_) => Carrier::Stands,
        // A lane that does not answer keeps no client from cancelling.
        None if before.state == RunState::Running && ports.has_no_message(before).await.unwrap_or(false) => {
            Carrier::Gone
        }
        None => Carrier::MayCome,
    }
}

/// Whether a message is that of the very wait that a record speaks of: one of an earlier wait may still be there, and
/// proves nothing of what the log has of this one.
pub(crate) fn is_of_wait(headers: &Headers, run: &Run) -> bool {
    let Ok(read) = header::read_job(headers) else { return false };
    let wait = read.moved.map(|moved| (moved.round, moved.attempt, moved.deferrals));
    read.seal.as_ref() == Some(&run.seal) && wait == Some((run.round, run.next_attempt(), run.deferrals))
}

/// The job of a run, with the options that its message has.
pub(super) fn job_of(run: &Run, headers: &Headers) -> Job {
    Job {
        tenant: run.tenant.clone(),
        queue: run.queue.clone(),
        priority: run.priority,
        job_type: run.job_type.clone(),
        run_id: run.run_id.clone(),
        options: header::read_job(headers).ok().and_then(|read| read.options),
    }
}

/// A run that may be cancelled.
pub(super) struct Present {
    pub(super) run: Run,
    /// The revision to write on.
    expected: u64,
    /// Its job, if it waits in its lane without a record.
    job: Option<Arc<Job>>,
}

/// The run as it stands. The record under a derived id may belong to a lane that is gone: if that run has ended, the
/// waiting job is meant; until then that run has the id, and the job will get another. A record that cannot be read is
/// overwritten by what becomes of the job that waits.
pub(super) async fn present<P: CancelPorts>(
    ports: &P,
    tenant: &Tenant,
    run_id: &RunId,
) -> Result<Option<Present>, ApiError> {
    let (mut found, unreadable) = match ports.server().read_record(tenant, run_id).await {
        Err(error) if error.unreadable_at().is_some() => (None, Some(error)),
        read => (read?, None),
    };
    let mut waiting = ports.waiting(tenant, run_id).await?;
    if found.is_none() && waiting.is_none() {
        waiting = ports.waiting_by_own_id(tenant, run_id).await?;
    }
    if let Some(error) = unreadable.as_ref().filter(|_| waiting.is_none()) {
        return Err(error.into());
    }
    if found.is_none() && waiting.is_none() {
        // A job leaves its lane only once its run's record is stored.
        found = ports.recorded_for_certain(tenant, run_id).await?;
    }
    let replaced = unreadable.and_then(|error| error.unreadable_at());
    let expected = found.as_ref().map(|found| found.revision).or(replaced).unwrap_or(0);
    if let Some(Found { run, .. }) = found {
        let is_gone = |waiting: &InLane| run.state.is_terminal() && run.origin != waiting.run.origin;
        if !waiting.as_ref().is_some_and(is_gone) {
            return Ok(Some(Present { run, expected, job: None }));
        }
    }
    Ok(waiting.map(|InLane { run, job, .. }| Present { run, expected, job: Some(job) }))
}
