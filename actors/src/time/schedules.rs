//! Recurring schedules: made, changed, paused, removed and shown. Nothing fires here: a change is one compare-and-set
//! on the schedule's object, and the tick that follows it only wakes a node ([`crate::time::firing`]).

use futures_util::StreamExt as _;
use longshore_backbone::recurring::{FoundRecurring, Put, SCHEDULE_MAX};
use longshore_backbone::wire::api::{
    ApiError, BackfillRequest, Backfilled, Code, Encoded, Failed, Outcome, PutRequest, ScheduleRequest,
    ScheduleSettings, ScheduleStatus, Schedules, SchedulesRequest,
};
use longshore_backbone::wire::recurring::Recurring;
use longshore_domain::policy::Policies;
use longshore_domain::recurring::{Timing, run_id};
use longshore_domain::{ScheduleId, SmolStr, Tenant, Timestamp};

use crate::api::{Answered, Api, filter, intake};
use crate::runtime::now;
use crate::time::firing::{self, Delay};

/// Due times of one backfill.
const BACKFILL_MAX: usize = 1_000;
/// Runs of one backfill that are submitted at once.
const AT_ONCE: usize = 32;

/// `schedules.put`
pub(crate) async fn put(api: &Api, tenant: &Tenant, asked: PutRequest) -> Answered<ScheduleStatus> {
    store(api, tenant, &asked, None).await.map(|schedule| shown(&schedule))
}

/// Makes a schedule, or changes the one of that id; `declared_by` is the node whose file says so.
pub(crate) async fn store(
    api: &Api,
    tenant: &Tenant,
    asked: &PutRequest,
    declared_by: Option<&SmolStr>,
) -> Result<Recurring, ApiError> {
    let timing = check(api, tenant, asked).await?;
    loop {
        let found = api.backbone.find_recurring(tenant, &asked.schedule.id).await;
        let FoundRecurring { schedule, revision, .. } = found?;
        must_be_as(asked.schedule.if_updated_at, schedule.as_ref())?;
        let put = Recurring::put(asked, &timing, tenant, schedule.as_ref(), now());
        let put = Recurring { declared_by: declared_by.cloned(), ..put };
        if schedule.is_none() && !api.backbone.has_room_for(&put) {
            return Err(full());
        }
        if let Some(stored) = write(api, put, revision).await? {
            return Ok(stored);
        }
    }
}

/// 412, if the schedule was changed at another time than the client says.
fn must_be_as(updated_at: Option<Timestamp>, found: Option<&Recurring>) -> Result<(), ApiError> {
    match updated_at {
        Some(at) if found.is_none_or(|found| found.updated_at != at) => Err(changed()),
        _ => Ok(()),
    }
}

fn changed() -> ApiError {
    ApiError::new(Code::Changed, "if_updated_at: the schedule was changed since, or removed; read it again")
}

/// Checks everything that a firing would be refused for.
async fn check(api: &Api, tenant: &Tenant, asked: &PutRequest) -> Result<Timing, ApiError> {
    let timing = check_itself(asked)?;
    intake::may_be_submitted(api, tenant, firing::job(&asked.schedule.id, &asked.job, now())).await?;
    Ok(timing)
}

/// Checks all of that for which no server is needed, so that a configuration which could not be stored is refused.
///
/// # Errors
/// As `schedules.put` answers; most begin with the field.
pub fn check_schedule(policies: &Policies, tenant: &Tenant, asked: &PutRequest) -> Result<(), ApiError> {
    check_itself(asked)?;
    let job = firing::job(&asked.schedule.id, &asked.job, now());
    intake::check(policies, usize::MAX, None, tenant, &job).map(drop)
}

fn check_itself(asked: &PutRequest) -> Result<Timing, ApiError> {
    let timing = asked.schedule.timing().and_then(|timing| ScheduleSettings::check_job(&asked.job).map(|()| timing));
    let timing = timing.map_err(ApiError::malformed)?;
    let size = serde_json::to_vec(asked).map_or(0, |text| text.len());
    if size > SCHEDULE_MAX {
        let message = format!("the schedule with its job has {size} bytes, {SCHEDULE_MAX} are allowed");
        return Err(ApiError::new(Code::TooLarge, message));
    }
    Ok(timing)
}

/// Changes a schedule that is there as `make` says, which gets the schedule as it is.
async fn change(
    api: &Api,
    asker: &str,
    asked: ScheduleRequest,
    make: impl Fn(Recurring) -> Result<Recurring, ApiError>,
) -> Answered<ScheduleStatus> {
    let tenant = whose(asker, asked.tenant.as_ref())?;
    loop {
        let stored = api.backbone.find_recurring_for_certain(&tenant, &asked.id).await?;
        let found = stored.schedule.ok_or_else(|| unknown(&tenant, &asked.id))?;
        must_be_as(asked.if_updated_at, Some(&found))?;
        if let Some(changed) = write(api, make(found)?, stored.revision).await? {
            return Ok(shown(&changed));
        }
    }
}

/// Writes a schedule that was made or changed, and sets the tick for its next time. `None`: another write came first.
pub(crate) async fn write(api: &Api, mut schedule: Recurring, revision: u64) -> Result<Option<Recurring>, ApiError> {
    schedule.token = api.identity.token();
    match api.backbone.write_recurring(&schedule, revision).await? {
        Put::Won(_) => {
            wake(api, &schedule).await;
            Ok(Some(schedule))
        }
        Put::Lost => Ok(None),
        Put::Full => Err(full()),
    }
}

fn full() -> ApiError {
    ApiError::unavailable("the bucket of schedules is full; delete some")
}

/// Sets the tick of a schedule that was changed, or removes it. If that fails, the sweep sets it once it is overdue.
async fn wake(api: &Api, schedule: &Recurring) {
    let (tenant, id) = (&schedule.tenant, schedule.id());
    let timing = schedule.settings.timing().ok();
    let ticks_at = schedule.progress.next.zip(timing).map(|(due, timing)| timing.fires_at(id, due));
    let woken = match ticks_at {
        Some(at) => api.backbone.set_tick(tenant, id, at).await,
        None => api.backbone.remove_tick(tenant, id).await,
    };
    if let Err(error) = woken {
        tracing::warn!(%id, %tenant, "the next tick of a recurring schedule is not set yet: {}", error.with_causes());
    }
}

/// When a schedule is due that is stored, perhaps by a newer node, which has zones that this one lacks.
fn timing(schedule: &Recurring) -> Result<Timing, ApiError> {
    let failed = |reason| ApiError::unavailable(format!("this node cannot read the schedule: {reason}"));
    schedule.settings.timing().map_err(failed)
}

fn unknown(tenant: &Tenant, id: &ScheduleId) -> ApiError {
    ApiError::not_found(format!("id: no schedule {id} of tenant {tenant} is known"))
        .hint("schedules.list shows the schedules of the tenant")
}

fn shown(schedule: &Recurring) -> Encoded<ScheduleStatus> {
    Encoded::of(&schedule.status())
}

fn whose(asker: &str, named: Option<&Tenant>) -> Result<Tenant, ApiError> {
    filter::whose_one(asker, named, "an id", "schedule")
}

/// `schedules.get`
pub(crate) async fn get(api: &Api, asker: &str, asked: ScheduleRequest) -> Answered<ScheduleStatus> {
    let tenant = whose(asker, asked.tenant.as_ref())?;
    if asked.if_updated_at.is_some() {
        return Err(ApiError::malformed("if_updated_at: is for changes of a schedule, and for what starts its runs"));
    }
    let found = api.backbone.find_recurring_for_certain(&tenant, &asked.id).await?.schedule;
    found.map(|schedule| shown(&schedule)).ok_or_else(|| unknown(&tenant, &asked.id))
}

/// `schedules.list`
pub(crate) async fn list(api: &Api, asker: &str, asked: SchedulesRequest) -> Answered<Schedules> {
    let tenant = filter::whose(asker, asked.tenant.as_ref())?;
    let mut from = Some(filter::cursor(asked.cursor.as_deref())?);
    let limit = filter::page_size(asked.limit)?;
    let room = api.backbone.max_payload() / 4 * 3;
    let (mut schedules, mut bytes) = (Vec::new(), 0);
    while let Some(at) = from {
        let page = api.backbone.some_recurring(tenant.as_ref(), at).await?;
        for (schedule, sequence) in page.found {
            let status = schedule.status();
            bytes += Encoded::of(&status).size() + 1;
            if schedules.len() >= limit || bytes > room {
                let cursor = Some(sequence.to_string());
                return Ok(Encoded::of(&Schedules { schedules, cursor }));
            }
            schedules.push(status);
        }
        from = page.next;
    }
    Ok(Encoded::of(&Schedules { schedules, cursor: None }))
}

/// `schedules.delete`
pub(crate) async fn delete(api: &Api, asker: &str, asked: ScheduleRequest) -> Answered<ScheduleStatus> {
    let tenant = whose(asker, asked.tenant.as_ref())?;
    let is_meant = |found: &Recurring| must_be_as(asked.if_updated_at, Some(found)).is_ok();
    match remove(api, &tenant, &asked.id, is_meant).await? {
        Some(schedule) => Ok(shown(&schedule)),
        None if asked.if_updated_at.is_some() => Err(changed()),
        None => Err(unknown(&tenant, &asked.id)),
    }
}

/// Removes a schedule, if it is still one that `should` be removed; returns it as it was.
pub(crate) async fn remove(
    api: &Api,
    tenant: &Tenant,
    id: &ScheduleId,
    should: impl Fn(&Recurring) -> bool,
) -> Result<Option<Recurring>, ApiError> {
    loop {
        let FoundRecurring { schedule, revision, .. } = api.backbone.find_recurring_for_certain(tenant, id).await?;
        let Some(schedule) = schedule.filter(&should) else { return Ok(None) };
        let removed = api.backbone.remove_recurring(tenant, id, revision).await;
        match removed? {
            Put::Won(_) => {
                if let Err(error) = api.backbone.remove_tick(tenant, id).await {
                    tracing::debug!(%id, %tenant, "the tick of a removed schedule stays: {}", error.with_causes());
                }
                return Ok(Some(schedule));
            }
            Put::Lost => {}
            Put::Full => return Err(ApiError::unavailable("the bucket of schedules is full")),
        }
    }
}

/// `schedules.pause`
pub(crate) async fn pause(api: &Api, asker: &str, asked: ScheduleRequest) -> Answered<ScheduleStatus> {
    change(api, asker, asked, |found| Ok(paused(found, now()))).await
}

/// The schedule, paused; one that was paused before stays as it is.
fn paused(found: Recurring, now: Timestamp) -> Recurring {
    let updated_at = if found.paused { found.updated_at } else { now };
    Recurring { paused: true, progress: found.progress.paused(), updated_at, ..found }
}

/// `schedules.resume`
pub(crate) async fn resume(api: &Api, asker: &str, asked: ScheduleRequest) -> Answered<ScheduleStatus> {
    change(api, asker, asked, |found| resumed(found, now())).await
}

/// The schedule, which goes on from `now`: what fell due while it was paused is not made up for.
fn resumed(found: Recurring, now: Timestamp) -> Result<Recurring, ApiError> {
    if !found.paused {
        return Ok(found);
    }
    let progress = found.progress.planned(&timing(&found)?, now);
    Ok(Recurring { paused: false, progress, updated_at: now, ..found })
}

/// `schedules.run_now`
pub(crate) async fn run_now(api: &Api, asker: &str, asked: ScheduleRequest) -> Answered<ScheduleStatus> {
    let tenant = whose(asker, asked.tenant.as_ref())?;
    let may = |found: &Recurring| must_be_as(asked.if_updated_at, Some(found));
    match firing::run_now(api, &tenant, &asked.id, may).await {
        Ok(Some(schedule)) => Ok(shown(&schedule)),
        Ok(None) => Err(unknown(&tenant, &asked.id)),
        Err(Delay::Job(error)) => Err(error),
        Err(Delay::Server(error)) => Err(error.into()),
        Err(delay) => Err(ApiError::unavailable(delay.to_string())),
    }
}

/// `schedules.backfill`
pub(crate) async fn backfill(api: &Api, asker: &str, asked: BackfillRequest) -> Answered<Backfilled> {
    let tenant = whose(asker, asked.tenant.as_ref())?;
    let found = api.backbone.find_recurring_for_certain(&tenant, &asked.id).await?.schedule;
    let schedule = found.ok_or_else(|| unknown(&tenant, &asked.id))?;
    must_be_as(asked.if_updated_at, Some(&schedule))?;
    let times = times_to_fill(&schedule, &asked, now())?;
    if asked.dry_run {
        let started = times.len() as u64;
        return Ok(Encoded::of(&Backfilled { deduplicated: 0, failed: Vec::new(), failed_in_all: None, started }));
    }
    let each = times.into_iter().map(|due| {
        let (tenant, schedule) = (&tenant, &schedule);
        async move {
            let job = firing::job(schedule.id(), &schedule.job, due);
            let submitted = intake::submit(api, tenant, job).await;
            let failed = |error: ApiError| Failed { error: error.message, run_id: run_id(schedule.id(), due) };
            submitted.map(|submitted| submitted.deduplicated).map_err(failed)
        }
    });
    let results: Vec<Result<bool, Failed>> = futures_util::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
    let of = |was_there: bool| results.iter().filter(|result| **result == Ok(was_there)).count() as u64;
    let (started, deduplicated) = (of(false), of(true));
    let Outcome { failed, failed_in_all, .. } =
        Outcome::new(started, results.into_iter().filter_map(Result::err).collect(), false);
    Ok(Encoded::of(&Backfilled { deduplicated, failed, failed_in_all, started }))
}

fn times_to_fill(schedule: &Recurring, asked: &BackfillRequest, now: Timestamp) -> Result<Vec<Timestamp>, ApiError> {
    let until = asked.until.unwrap_or(now);
    if until < asked.from {
        return Err(ApiError::malformed("until: is before from, or from lies ahead"));
    }
    if until > now {
        return Err(ApiError::malformed("until: lies ahead; a backfill is for times that are over"));
    }
    let timing = timing(schedule)?;
    let before = Timestamp::from_millis(asked.from.millis() - 1);
    let within = timing.ahead(timing.next_after(before)).take_while(|due| *due <= until);
    let times: Vec<Timestamp> = within.take(BACKFILL_MAX + 1).collect();
    match times.get(..BACKFILL_MAX).and_then(<[_]>::last) {
        Some(last) if times.len() > BACKFILL_MAX => Err(ApiError::malformed(format!(
            "until: more than {BACKFILL_MAX} times are due in this span; take it up to {last} first"
        ))),
        _ => Ok(times),
    }
}

#[cfg(test)]
mod tests;
