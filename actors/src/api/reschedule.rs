//! Rescheduling a run that waits for its time, for its next attempt or for the end of a snooze.
//!
//! The record decides, as everywhere: its new time is written by compare-and-set, then the schedule is written again,
//! in place of the old one. A firing of the old one that comes all the same finds the record: it was too early, and the
//! node that got it writes the schedule again; or it is late enough, and the run begins.
//!
//! The simulation drives [`one`], too; [`WaitingPorts`] is what it asks for.

use futures_util::StreamExt as _;
use longshore_backbone::records::{Found, Written};
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{
    ApiError, Code, Encoded, Failed, NewStart, Outcome, RescheduleRequest, Rescheduled, RescheduledRuns, Selection,
};
use longshore_backbone::wire::record;
use longshore_domain::run::DeferReason;
use longshore_domain::{Priority, Queue, Run, RunId, RunState, Tenant, Timestamp};

use crate::api::filter::{self, Chosen, RunFilter};
use crate::api::{Answered, Api, intake, runs};
use crate::commit::keys::keep_order;
use crate::ports::{Server as _, WaitingPorts};
use crate::runtime::{fail_point, now};

/// Runs of one request that are rescheduled at once.
const AT_ONCE: usize = 32;
/// What a run does that has fallen due, or never waited for a time.
const FOR_A_WORKER: &str = "waits for a worker in its lane; cancel it and submit it again";

#[derive(Debug, Default)]
pub(crate) struct Change {
    pub(crate) run_at: Option<Timestamp>,
    pub(crate) priority: Option<Priority>,
    pub(crate) queue: Option<Queue>,
}

impl Change {
    /// Whether the run would start elsewhere or at another time. A time that is over is as good as any other.
    fn alters(&self, run: &Run) -> bool {
        let (now, before) = (now(), run.state.run_at().unwrap_or_default());
        self.run_at.is_some_and(|at| at.max(now) != before.max(now))
            || self.priority.is_some_and(|priority| priority != run.priority)
            || self.queue.as_ref().is_some_and(|queue| *queue != run.queue)
    }
}

pub(crate) async fn run_now(api: &Api, asker: &str, asked: Selection) -> Answered<Rescheduled> {
    let (limit, dry_run) = (asked.limit, asked.dry_run);
    let chosen = filter::which(asker, asked)?;
    if let Chosen::One(tenant, run_id) = &chosen
        && !dry_run
    {
        let Found { run, .. } = runs::known(api, tenant, run_id).await?;
        if run.state == RunState::Enqueued && run.state.wait().is_none() {
            return Ok(record::show(&run).into());
        }
    }
    let change = Change { run_at: Some(now()), ..Change::default() };
    attend(api, chosen, limit, dry_run, &change).await
}

pub(crate) async fn serve(api: &Api, asker: &str, asked: RescheduleRequest) -> Answered<Rescheduled> {
    let RescheduleRequest { selection, set: NewStart { run_at, priority, queue } } = asked;
    let priority = priority.map(Priority::new).transpose().map_err(|error| ApiError::malformed(error.to_string()))?;
    if run_at.is_none() && priority.is_none() && queue.is_none() {
        return Err(ApiError::malformed("run_at: is missing; or give priority or queue"));
    }
    if run_at.is_some_and(|at| at > Timestamp::LAST_SCHEDULE) {
        return Err(ApiError::malformed(format!("run_at: is after {}", Timestamp::LAST_SCHEDULE)));
    }
    if let Some(queue) = &queue {
        intake::must_be_declared(api, queue).await?;
    }
    let (limit, dry_run) = (selection.limit, selection.dry_run);
    let chosen = filter::which(asker, selection)?;
    attend(api, chosen, limit, dry_run, &Change { run_at, priority, queue }).await
}

async fn attend(
    api: &Api,
    chosen: Chosen,
    limit: Option<u64>,
    dry_run: bool,
    change: &Change,
) -> Answered<Rescheduled> {
    match chosen {
        Chosen::One(..) if dry_run => Err(ApiError::malformed("dry_run: is for filters; runs.get shows one run")),
        Chosen::One(tenant, run_id) => match one(api, &tenant, &run_id, change).await {
            Err(error) if error.code == Code::NotFound.number() => Err(runs::missing(api, &tenant, &run_id).await),
            altered => altered.map(|run| record::show(&run).into()),
        },
        Chosen::Those(filter) => {
            let outcome = those(api, &filter, limit.unwrap_or(u64::MAX), dry_run, change).await?;
            Ok(Encoded::of(&Rescheduled::Runs(RescheduledRuns::from(outcome))))
        }
    }
}

/// Reschedules the runs that fit and whose schedules were written before this call: what it writes itself comes behind
/// them, so that each is met once.
async fn those(api: &Api, filter: &RunFilter, limit: u64, dry_run: bool, change: &Change) -> Result<Outcome, ApiError> {
    let (_, last) = api.backbone.sequences(&Source::Schedules).await?;
    let [schedules, retries, _] = api.backbone.names().schedules_where(filter.tenant.as_ref());
    let mut outcome = Outcome::default();
    for subject in [schedules, retries] {
        let mut from = Some(1);
        while let Some(at) = from.filter(|at| *at <= last) {
            let page = api.backbone.page(&Source::Schedules, &subject, at).await?;
            from = page.next;
            let found = page.messages.into_iter().filter(|stored| stored.sequence <= last);
            let mut found = found.filter_map(|stored| filter::run_of(&stored)).peekable();
            while found.peek().is_some() {
                let room = limit.saturating_sub(outcome.done);
                if room == 0 {
                    return Ok(Outcome { more: true, ..outcome });
                }
                let some = found.by_ref().take(AT_ONCE.min(usize::try_from(room).unwrap_or(AT_ONCE)));
                let each = some.map(|(tenant, run_id)| async move {
                    let did = match fits(api, &tenant, &run_id, filter, change).await {
                        Ok(true) if !dry_run => one_that_fits(api, &tenant, &run_id, change).await,
                        would => would,
                    };
                    did.map_err(|error| Failed { error: error.message, run_id })
                });
                let each: Vec<_> = each.collect();
                let results: Vec<_> = futures_util::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
                results.into_iter().for_each(|result| outcome.add(result));
            }
        }
    }
    Ok(outcome)
}

/// Whether the run fits, and can be rescheduled.
async fn fits(api: &Api, tenant: &Tenant, id: &RunId, filter: &RunFilter, change: &Change) -> Result<bool, ApiError> {
    let Some(Found { mut run, .. }) = api.backbone.read_record(tenant, id).await? else { return Ok(false) };
    // What waits for something else than a time that may be changed is not meant, nor what is as it is wanted: the next
    // call of a client that works in small ones meets the runs of this one again.
    Ok(filter.fits(&run) && change.alters(&run) && run.reschedule(now()))
}

/// Reschedules a run that fits; says whether it did.
async fn one_that_fits(api: &Api, tenant: &Tenant, run_id: &RunId, change: &Change) -> Result<bool, ApiError> {
    match one(api, tenant, run_id, change).await {
        Ok(_) => Ok(true),
        // It went on by itself in the meantime.
        Err(error) if [Code::WrongState.as_str(), Code::NotFound.as_str()].contains(&error.error.as_str()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reschedules a run, as the change says.
///
/// # Errors
/// The run does not wait for a time that may be changed, or its record or schedule could not be written.
pub(crate) async fn one<P: WaitingPorts>(
    ports: &P,
    tenant: &Tenant,
    run_id: &RunId,
    change: &Change,
) -> Result<Run, ApiError> {
    alter(ports, tenant, run_id, |run, standing| {
        let at = change.run_at.or_else(|| run.state.run_at()).unwrap_or_default().max(ports.now());
        if !run.reschedule(at) {
            return Err(wrong_state(run));
        }
        if !standing && run.is_only_noted() {
            return Err(ApiError::unavailable("the run is just being submitted; try again"));
        }
        run.priority = change.priority.unwrap_or(run.priority);
        run.queue = change.queue.clone().unwrap_or_else(|| run.queue.clone());
        Ok(Some(at))
    })
    .await
}

/// Changes a run that waits for a time: writes its record, then its schedule, for the time that `change` returns.
/// `change` learns whether its schedule stands; `None`: nothing is to be done. A run that has fallen due is not moved
/// to another lane, and is left as it is if it is to start now.
///
/// # Errors
/// The run is not known, `change` refuses, or the record or the schedule could not be written.
pub(crate) async fn alter<P: WaitingPorts>(
    ports: &P,
    tenant: &Tenant,
    run_id: &RunId,
    mut change: impl FnMut(&mut Run, bool) -> Result<Option<Timestamp>, ApiError>,
) -> Result<Run, ApiError> {
    loop {
        let mut found = ports.server().read_record(tenant, run_id).await?;
        if found.is_none() {
            if let Some(waiting) = ports.waiting(tenant, run_id).await? {
                return Err(wrong_state(&waiting.run));
            }
            found = ports.recorded_for_certain(tenant, run_id).await?;
        }
        let Some(Found { mut run, revision }) = found else {
            return Err(runs::unknown(tenant, run_id));
        };
        // The schedule is looked for by the run as it waits now; a change of queue or priority does not move it.
        let standing = ports.find(&Source::Schedules, &run).await?;
        let before = run.clone();
        let Some(at) = change(&mut run, standing.is_some())? else { return Ok(run) };
        if standing.is_none() {
            let is_due = before.state.run_at().is_some_and(|at| at <= ports.now());
            match run.lane() == before.lane() {
                // It starts from its lane: a schedule for now would put it behind the others there.
                true if is_due && at <= ports.now() => return Ok(before),
                // Nothing takes its message to another lane before a worker of this one meets it.
                false if is_due || is_in_lane(ports, &before).await? => return Err(refusal(&before, FOR_A_WORKER)),
                _ => {}
            }
        }
        // `submit` cannot mark the record any more once it is written here.
        run.published |= standing.is_some();
        ports.sign(&mut run);
        match ports.server().write_record(&run, revision).await? {
            Written::Won(_) => fail_point::pass("after-rescheduling"),
            Written::Lost(_) => continue,
        }
        // Without a schedule the job is on its way into its lane, or there, and finds the record.
        if let Some(Stored { headers, payload, .. }) = standing {
            keep_order(ports.server(), &run, at).await?;
            ports.server().schedule(&run, at, Some(&headers), payload).await?;
        }
        return Ok(run);
    }
}

async fn is_in_lane<P: WaitingPorts>(ports: &P, run: &Run) -> Result<bool, ApiError> {
    let found = ports.find(&Source::Lane(run.queue.clone(), run.priority.into()), run).await?;
    Ok(found.is_some())
}

fn wrong_state(run: &Run) -> ApiError {
    let why = match run.state.wait() {
        _ if run.state.is_terminal() => "has ended",
        Some(_) if run.is_detached() => "is detached, and waits for the end of its attempt",
        Some(_) => {
            let awaited = run.waits_for().unwrap_or(DeferReason::Busy).awaited(run.job_type.as_str());
            return refusal(run, &format!("waits for {awaited}, and for no time that could be changed"));
        }
        None if run.state == RunState::Enqueued => FOR_A_WORKER,
        None => "runs",
    };
    refusal(run, why)
}

fn refusal(run: &Run, why: &str) -> ApiError {
    let (run_id, state) = (&run.run_id, run.state.as_str());
    ApiError::new(Code::WrongState, format!("run_id: {run_id} {why}: it is {state}"))
}
