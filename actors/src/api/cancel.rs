//! Cancelling: one run, whatever its state, or all that fit a filter.
//!
//! The record decides, as everywhere: `cancelled` is written by compare-and-set, then published; then the node that
//! runs the job is told to stop it, and the message that waits is deleted. If a message of the run is delivered after
//! all, its record says that it is cancelled. A job that no node has seen yet could begin without reading its record.
//! So a cancel note is written to a durable list before: every node reads that list when it starts, and every running
//! node must confirm that it received the note. A node that has begun the job already says so, and ends it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Cancelled, CancelledRuns, Code, Encoded, Failed, Outcome, Selection};
use longshore_backbone::wire::header::{self, names};
use longshore_backbone::wire::record;
use longshore_domain::publication::Published;
use longshore_domain::run::Wait;
use longshore_domain::settlement::Settlement;
use longshore_domain::{Job, Lane, Priority, Run, RunId, RunState, Tenant};

use crate::api::Api;
use crate::api::filter::{self, Chosen, Filter, unavailable};
use crate::api::runs;
use crate::attempt::assignment::Assignment;
use crate::attempt::cancelled::CONFIRM_TIMEOUT;
use crate::attempt::keys;
use crate::commit::follow_up::key_given_back;
use crate::fail_point;
use crate::shared::now;

/// How long the list of nodes is reused: many runs are often cancelled in a row.
const NODES_KNOWN_FOR: Duration = Duration::from_millis(500);
/// How long a node that has begun the job has to end it: handlers get two seconds to stop.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// Runs that one request cancels at once.
const AT_ONCE: usize = 32;
/// How many times one request reads all sources: it ends even if jobs are published as fast as they are cancelled.
const LOOKS: usize = 10;
/// Pages of a lane that are read in search of a job with an id of the client's own.
const PAGES: usize = 400;

/// The nodes that are there.
async fn nodes(api: &Api) -> Result<Arc<[String]>, ApiError> {
    if let Some(nodes) = api.recently_cancelled.nodes(NODES_KNOWN_FOR) {
        return Ok(nodes);
    }
    let nodes = api.backbone.nodes().present(now()).await.map_err(|error| unavailable(&error))?;
    let nodes: Arc<[String]> = nodes.into_iter().map(|presence| presence.node).collect();
    api.recently_cancelled.set_nodes(&nodes);
    Ok(nodes)
}

/// The endpoint `runs.cancel`.
pub(crate) async fn serve(api: &Api, asker: &str, asked: Selection) -> Result<Encoded<Cancelled>, ApiError> {
    let (limit, dry_run) = (asked.limit, asked.dry_run);
    match filter::which(asker, asked)? {
        Chosen::One(..) if dry_run => Err(ApiError::malformed("dry_run: is for filters; runs.get shows one run")),
        Chosen::One(tenant, run_id) => match cancel(api, &tenant, &run_id, None).await? {
            Some(run) => Ok(record::show(&run).into()),
            None => Err(ApiError::not_found(format!("run_id: no run {run_id} of tenant {tenant} is known"))),
        },
        Chosen::Those(filter) => {
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
            let looks = if dry_run { (Look::Count, Look::Count) } else { (Look::Waiting, Look::All) };
            let outcome = cancel_those(api, &filter, limit, looks).await?;
            Ok(Encoded::of(&Cancelled::Runs(CancelledRuns::from(outcome))))
        }
    }
}

/// What is done to the runs that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Count,
    CountWaiting,
    /// Cancel those that wait. Running ones are left for later: when they stop, their workers take waiting jobs, which
    /// should be gone by then.
    Waiting,
    All,
}

impl Look {
    /// Leaves a run alone whose attempt runs.
    fn spares_running(self) -> bool {
        matches!(self, Self::CountWaiting | Self::Waiting)
    }

    fn only_counts(self) -> bool {
        matches!(self, Self::Count | Self::CountWaiting)
    }
}

/// The result of cancelling many runs.
#[derive(Default)]
struct Many {
    cancelled: usize,
    failed: Vec<Failed>,
}

/// Cancels the runs that fit and whose attempt does not run.
pub(crate) async fn cancel_waiting(api: &Api, filter: &Filter, limit: usize, dry: bool) -> Result<Outcome, ApiError> {
    let look = if dry { Look::CountWaiting } else { Look::Waiting };
    cancel_those(api, filter, limit, (look, look)).await
}

/// Cancels the runs that fit, by a first look and others.
async fn cancel_those(
    api: &Api,
    filter: &Filter,
    limit: usize,
    (first, others): (Look, Look),
) -> Result<Outcome, ApiError> {
    let mut many = Many::default();
    for number in 0..LOOKS {
        let before = many.cancelled;
        let look = if number == 0 { first } else { others };
        many.failed.clear(); // met again
        let more = look_through(api, filter, limit, look, &mut many).await?;
        // Retries and delayed jobs move between sources meanwhile, and a job that moves behind our back is missed in
        // both. So only a pass that finds none is the last.
        if more || look.only_counts() || (look == others && many.cancelled == before) {
            return Ok(Outcome::new(many.cancelled as u64, many.failed, more));
        }
    }
    Ok(Outcome::new(many.cancelled as u64, many.failed, true))
}

/// Reads all sources once: every run that has not ended has exactly one message, in a lane, parked, or among the
/// schedules. Says whether the limit left some.
async fn look_through(api: &Api, filter: &Filter, limit: usize, look: Look, many: &mut Many) -> Result<bool, ApiError> {
    for (place, subject) in places(api, filter).await? {
        let mut from = Some(1);
        while let Some(at) = from {
            if many.cancelled >= limit {
                return Ok(true);
            }
            let page = api.backbone.page(&place, &subject, at).await.map_err(|error| unavailable(&error))?;
            from = page.next;
            let mut found = page.messages.into_iter().filter_map(|stored| whose(api, &place, stored));
            loop {
                let some: Vec<_> = found.by_ref().take(AT_ONCE.min(limit - many.cancelled)).collect();
                if some.is_empty() {
                    break;
                }
                let place = &place;
                let each = some.into_iter().map(|(tenant, run, sequence)| async move {
                    let result = match look {
                        Look::Count | Look::CountWaiting => would(api, &tenant, &run, (filter, look)).await,
                        Look::Waiting | Look::All => {
                            let only = Only { filter, look, place, sequence };
                            cancel(api, &tenant, &run, Some(only)).await
                        }
                    };
                    (result, run)
                });
                let results: Vec<_> = futures_util::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
                for (result, run) in results {
                    match result {
                        Ok(Some(_)) => many.cancelled += 1,
                        Ok(None) => {}
                        // It ended by itself in the meantime.
                        Err(error) if error.code == Code::WrongState.number() => {}
                        Err(error) => many.failed.push(Failed { error: error.message, run_id: run }),
                    }
                }
            }
        }
    }
    Ok(false)
}

/// The run, if it would be cancelled.
async fn would(
    api: &Api,
    tenant: &Tenant,
    run_id: &RunId,
    (filter, look): (&Filter, Look),
) -> Result<Option<Run>, ApiError> {
    let found = present(api, tenant, run_id).await?.map(|present| present.run);
    let spared = |run: &Run| look.spares_running() && run.state == RunState::Running;
    Ok(found.filter(|run| !run.state.is_terminal() && !spared(run) && filter.fits(run)))
}

/// The sources that may hold jobs of runs that fit, each with the subject to read.
async fn places(api: &Api, filter: &Filter) -> Result<Vec<(Source, String)>, ApiError> {
    let names = api.backbone.names();
    let queues = match &filter.wanted.queue {
        Some(queue) => vec![queue.clone()],
        None => api.backbone.declared_queues().await.map_err(|error| unavailable(&error))?,
    };
    let tenant = filter.tenant.as_ref();
    let mut places = Vec::new();
    for queue in queues {
        for priority in Priority::all() {
            let subject = names.jobs_where(tenant, &queue, priority, filter.wanted.job_type.as_ref());
            places.push((Source::Lane(queue.clone(), priority.into()), subject));
        }
        let returned = names.returned_where(tenant, &queue, filter.wanted.job_type.as_ref());
        places.push((Source::Lane(queue, Lane::Returned), returned));
    }
    let parked = names.parked_where(tenant, filter.wanted.queue.as_ref(), filter.wanted.job_type.as_ref());
    places.push((Source::Parked, parked));
    places.extend(names.schedules_where(tenant).into_iter().map(|subject| (Source::Schedules, subject)));
    Ok(places)
}

/// The tenant and run of a stored job, and its sequence; `None` if the message is not a job.
fn whose(api: &Api, place: &Source, stored: longshore_backbone::request::Stored) -> Option<(Tenant, RunId, u64)> {
    let sequence = stored.sequence;
    match place {
        Source::Lane(queue, lane) => {
            let stream = api.backbone.names().lane_stream(queue, *lane);
            let delivery = api.backbone.look_at(stored, &stream);
            let job = Assignment::read(delivery, api.backbone.names(), 0, api.backbone.max_on_arrival()).job;
            Some((job.tenant.clone(), job.run_id.clone(), sequence))
        }
        Source::Schedules | Source::Parked | Source::DeadLetters | Source::Audit => {
            let tenant = stored.subject.split('.').nth(2)?;
            let run = stored.headers.get(names::RUN_ID)?;
            Some((Tenant::parse(tenant).ok()?, RunId::parse(run.as_str()).ok()?, sequence))
        }
    }
}

/// Restricts a cancellation to runs that fit a filter; with the message by which this run was found.
#[derive(Clone, Copy)]
struct Only<'a> {
    filter: &'a Filter,
    look: Look,
    place: &'a Source,
    sequence: u64,
}

/// Cancels a run. `None`: there is no such run, or it does not fit.
///
/// # Errors
/// The run has ended otherwise, or the record could not be written.
async fn cancel(api: &Api, tenant: &Tenant, run_id: &RunId, only: Option<Only<'_>>) -> Result<Option<Run>, ApiError> {
    let mut asked = false;
    loop {
        let Some(Present { run: before, expected, job }) = present(api, tenant, run_id).await? else {
            return Ok(None);
        };
        if before.state == RunState::Cancelled {
            if let Some(only) = only.filter(|_| !asked) {
                finish(api, &before, only).await;
            }
            // Under a filter only runs that this call ended count: a run that is being stopped keeps its message for a
            // while, and the next pass meets it again.
            return Ok(Some(before).filter(|_| only.is_none() || asked));
        }
        let only_if_waiting = only.is_some_and(|only| only.look.spares_running());
        let left_alone = only_if_waiting && before.state == RunState::Running;
        if left_alone || only.is_some_and(|only| !only.filter.fits(&before)) {
            return Ok(None);
        }
        if before.state.is_terminal() {
            let message = format!("run_id: {run_id} has ended: it is {}", before.state.as_str());
            return Err(ApiError::new(Code::WrongState, message));
        }
        if before.is_unseen() && !std::mem::replace(&mut asked, true) {
            let noted = api.backbone.note_cancel(tenant, run_id, api.backbone.storage().failed_max_age).await;
            noted.map_err(|error| unavailable(&error))?;
            let nodes = nodes(api).await?;
            if api.backbone.ask_who_runs((tenant, run_id), only_if_waiting, &nodes, CONFIRM_TIMEOUT).await {
                if only_if_waiting {
                    // It has begun, without a record.
                    return Ok(None);
                }
                // That node writes the end, with the attempt that is in no record yet.
                runs::wait(api, tenant, run_id, ENDS_WITHIN).await?;
            }
            // Either way some time has passed.
            continue;
        }
        let carried = carried_on_by(api, &before, only).await?;
        let mut run = before.clone();
        run.settle(Settlement::Cancel, now());
        run.token = api.identity.token();
        match api.backbone.write_record(&run, expected).await {
            Ok(Written::Won(_)) => {
                api.metrics.run_ended(&run);
                fail_point::pass("after-cancel");
                let logged = api.committer.publish(&run, Published::at_cancel(&before, &run, carried.is_some())).await;
                api.backbone.notify_cancelled(tenant, run_id).await;
                // If the log may lack events, of this run or of one whose key a node took over for it, the message stays
                // where it is: its delivery publishes them.
                if logged.is_ok() && !may_take_over(api, job.as_deref(), &before).await {
                    clear_away(api, &before, carried).await;
                }
                if let Some(key) = key_given_back(&run)
                    && let Err(error) = keys::give_back(&api.backbone, tenant, &run, key).await
                {
                    tracing::warn!(run_id = %run.run_id, %tenant, attempt = run.attempt, "a cancelled run's claim of its key stays: {}", error.with_causes());
                }
                return Ok(Some(run));
            }
            Ok(Written::Lost(_)) => {}
            Err(error) => return Err(unavailable(&error)),
        }
    }
}

/// Finishes a cancel whose node died over it: the log may lack it until the run's schedule or parked job is delivered,
/// perhaps in days. That message stays, as what was merely read ends none.
async fn finish(api: &Api, run: &Run, only: Only<'_>) {
    if matches!(only.place, Source::Schedules | Source::Parked)
        && api.committer.publish(run, Published::at_redelivery(run)).await.is_err()
    {
        tracing::debug!(run_id = %run.run_id, tenant = %run.tenant, attempt = run.attempt, "a cancel is published once its job comes up");
    }
}

/// Whether a node has perhaps begun to take a key over for the job, and died: before the run's record says that the key
/// is claimed.
async fn may_take_over(api: &Api, job: Option<&Job>, before: &Run) -> bool {
    if before.key_claimed_ms.is_some() || before.round > 1 || before.has_started() {
        return false;
    }
    let taking_over = match job {
        Some(job) => keys::is_taking_over(api, job).await,
        None => match waiting_job(api, before).await {
            Ok(Some(job)) => keys::is_taking_over(api, &job).await,
            Ok(None) => return false,
            Err(_) => return true,
        },
    };
    taking_over.unwrap_or(true)
}

/// The job of a run that has a record, by the message that waits.
async fn waiting_job(api: &Api, before: &Run) -> Result<Option<Job>, ApiError> {
    let names = api.backbone.names();
    let (tenant, queue, priority, job_type) = (&before.tenant, &before.queue, before.priority, &before.job_type);
    let headers = match before.state.wait() {
        Some(Wait::Until(_)) => {
            let found = api.backbone.standing_schedule(before).await.map_err(|error| unavailable(&error))?;
            found.and_then(|(headers, _)| headers)
        }
        Some(Wait::Parked { .. }) => {
            let subject = names.parked_of(tenant, queue, priority, job_type);
            find_in(api, &Source::Parked, &subject, &before.run_id).await?.map(|stored| stored.headers)
        }
        None => {
            let (place, subject) =
                (Source::Lane(queue.clone(), priority.into()), names.job(tenant, queue, priority, job_type));
            find_in(api, &place, &subject, &before.run_id).await?.map(|stored| stored.headers)
        }
    };
    let options = headers.and_then(|headers| header::read_job(&headers).ok()).and_then(|read| read.options);
    Ok(options.map(|options| Job {
        tenant: tenant.clone(),
        queue: queue.clone(),
        priority,
        job_type: job_type.clone(),
        run_id: before.run_id.clone(),
        options: Some(options),
    }))
}

/// A run that may be cancelled.
struct Present {
    run: Run,
    /// The revision to write on.
    expected: u64,
    /// Its job, if it waits in its lane without a record.
    job: Option<Arc<Job>>,
}

/// The run as it stands. The record under a derived id may belong to a lane that is gone: if that run has ended, the
/// waiting job is meant; until then that run has the id, and the job will get another.
async fn present(api: &Api, tenant: &Tenant, run_id: &RunId) -> Result<Option<Present>, ApiError> {
    let mut found = runs::is_stored(api, tenant, run_id).await?;
    let mut waiting = runs::waiting(api, tenant, run_id).await?;
    if found.is_none() && waiting.is_none() {
        found = runs::is_stored(api, tenant, run_id).await?;
    }
    let expected = found.as_ref().map_or(0, |found| found.revision);
    if let Some(Found { run, .. }) = found {
        let is_gone = |(waiting, _): &(Run, _)| run.state.is_terminal() && run.origin != waiting.origin;
        if !waiting.as_ref().is_some_and(is_gone) {
            return Ok(Some(Present { run, expected, job: None }));
        }
    }
    if waiting.is_none() {
        waiting = find_own(api, tenant, run_id).await?;
    }
    Ok(waiting.map(|(run, job)| Present { run, expected, job: Some(job) }))
}

/// A job from a bare publish under an id of the client's own, which no node has seen yet.
async fn find_own(api: &Api, tenant: &Tenant, run_id: &RunId) -> Result<Option<(Run, Arc<Job>)>, ApiError> {
    if run_id.as_derived().is_some() {
        return Ok(None);
    }
    for queue in api.backbone.declared_queues().await.map_err(|error| unavailable(&error))? {
        for priority in Priority::all() {
            let subject = api.backbone.names().jobs_where(Some(tenant), &queue, priority, None);
            let place = Source::Lane(queue.clone(), priority.into());
            if let Some(stored) = find_in(api, &place, &subject, run_id).await? {
                let stream = api.backbone.names().lane_stream(&queue, priority);
                let assignment = Assignment::read(
                    api.backbone.look_at(stored, &stream),
                    api.backbone.names(),
                    0,
                    api.backbone.max_on_arrival(),
                );
                let job = assignment.job;
                return Ok(Some((Run::new(&job, api.policies.max_attempts(&job), assignment.since), job)));
            }
        }
    }
    Ok(None)
}

async fn find_in(
    api: &Api,
    place: &Source,
    subject: &str,
    run_id: &RunId,
) -> Result<Option<longshore_backbone::request::Stored>, ApiError> {
    let mut from = 1;
    for _ in 0..PAGES {
        let page = api.backbone.page(place, subject, from).await.map_err(|error| unavailable(&error))?;
        let mine = |stored: &longshore_backbone::request::Stored| {
            stored.headers.get(names::RUN_ID).is_some_and(|id| id.as_str() == run_id.as_str())
        };
        if let Some(stored) = page.messages.into_iter().find(mine) {
            return Ok(Some(stored));
        }
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    Ok(None)
}

/// The message that brings on a run that waits for a time or is parked, if there is one. It was written only after the
/// log had every event before it.
async fn carried_on_by(api: &Api, before: &Run, only: Option<Only<'_>>) -> Result<Option<(Source, u64)>, ApiError> {
    let Some(wait) = before.state.wait() else { return Ok(None) };
    let place = if let Wait::Parked { .. } = wait { Source::Parked } else { Source::Schedules };
    if let Some(only) = only.filter(|only| *only.place == place) {
        return Ok(Some((place, only.sequence)));
    }
    let found = if place == Source::Parked {
        let names = api.backbone.names();
        let subject = names.parked_of(&before.tenant, &before.queue, before.priority, &before.job_type);
        find_in(api, &place, &subject, &before.run_id).await?.map(|stored| stored.sequence)
    } else {
        api.backbone.find_schedule(before).await.map_err(|error| unavailable(&error))?
    };
    Ok(found.map(|sequence| (place, sequence)))
}

/// Deletes the run's message. If that fails, nothing is lost: the record says that the run is cancelled.
async fn clear_away(api: &Api, before: &Run, carried: Option<(Source, u64)>) {
    let backbone = &api.backbone;
    let place = Source::Lane(before.queue.clone(), before.priority.into());
    let cleared = match (carried, before.run_id.as_derived()) {
        (Some((place, sequence)), _) => backbone.take_out(&place, sequence).await,
        // Perhaps the schedule was not written yet.
        _ if matches!(before.state.wait(), Some(Wait::Until(_))) => backbone.unschedule(before).await,
        (None, Some((queue, priority, sequence))) if before.is_unseen() && before.round == 1 => {
            let stream = backbone.names().lane_stream(&queue, priority).into();
            let message = longshore_domain::run::MessageId { stream, sequence, at: before.origin };
            backbone.take_from_lane(&queue, priority, &message).await
        }
        _ if before.is_unseen() => {
            let names = backbone.names();
            let subject = names.job(&before.tenant, &before.queue, before.priority, &before.job_type);
            match find_in(api, &place, &subject, &before.run_id).await {
                Ok(Some(stored)) => backbone.take_out(&place, stored.sequence).await,
                _ => Ok(false),
            }
        }
        _ => Ok(false),
    };
    if before.is_unseen() && matches!(cleared, Ok(true)) {
        // No message of the run is left that could be delivered.
        let _ = backbone.forget_cancel(&before.tenant, &before.run_id).await;
    }
    if let Err(error) = cleared {
        tracing::warn!(run_id = %before.run_id, tenant = %before.tenant, attempt = before.attempt, "a cancelled job stays where it is until it comes up: {}", error.with_causes());
    }
}
