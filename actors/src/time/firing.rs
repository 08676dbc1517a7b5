//! Recurring schedules fire: the server's tick says that one is due, and what is due becomes runs.
//!
//! The schedule's object decides, by compare-and-set, and says with the same write what comes next; a run is submitted
//! under an id of schedule and due time, so that it is submitted once however often that is begun. The steps of a
//! firing, each of which may be the last that a node takes:
//!
//! 1. The next tick is set: whatever happens now, somebody looks at the schedule again at its next time.
//! 2. The firing is decided: it is pending, and the next time is set.
//! 3. Its run is submitted.
//! 4. It is not pending any more.
//!
//! Then the tick is acknowledged. A tick that comes again, or that another node handles at the same time, finds what is
//! left to be done in the object. What is due here decides [`longshore_domain::recurring`].

use std::time::Duration;

use longshore_backbone::Error;
use longshore_backbone::recurring::Put;
use longshore_backbone::wire::api::{ApiError, Code, SubmitRequest};
use longshore_backbone::wire::recurring::Recurring;
use longshore_domain::recurring::{Clocks, Progress, SkipReason, Skipped, TickAction, run_id};
use longshore_domain::{ScheduleId, Tenant, Timestamp};

use crate::api::{Api, intake};
use crate::runtime::{fail_point, now};

/// The first pause before a tick that could not be handled comes again, and the longest.
const AWAY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Why a firing has to wait.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Delay {
    /// NATS did not answer, or refused.
    #[error("{}", .0.with_causes())]
    Server(#[from] Error),
    #[error("its job is not taken: {0}")]
    Job(ApiError),
    #[error("the bucket of schedules is full")]
    Full,
    /// A newer node wrote the schedule.
    #[error("this node cannot read it: {0}")]
    Unreadable(String),
}

/// How long a tick stays away that was delivered `delivery` times.
pub(crate) fn away(delivery: u64) -> Duration {
    let doublings = u32::try_from(delivery.saturating_sub(1)).unwrap_or(u32::MAX).min(10);
    AWAY.0.saturating_mul(2u32.saturating_pow(doublings)).min(AWAY.1)
}

/// Handles a tick that the server stored at `server`: when it returns, everything due by then has its run, and a tick
/// is set for what comes next.
pub(crate) async fn on_tick(api: &Api, tenant: &Tenant, id: &ScheduleId, server: Timestamp) -> Result<(), Delay> {
    // A schedule that was removed meanwhile needs nothing.
    let Some(mut at) = VersionedSchedule::find(api, tenant, id).await? else { return Ok(()) };
    let mut ticks_at = None;
    loop {
        let timing = at.schedule.settings.timing().map_err(Delay::Unreadable)?;
        let clocks = Clocks { server, now: now() };
        let next = match at.schedule.progress.on_tick(id, &timing, &clocks) {
            TickAction::CarryOut(due) => carry_out(api, &at.schedule, due).await?,
            step @ (TickAction::Fire(due) | TickAction::Miss(due)) => {
                let progress = &at.schedule.progress;
                let next = match why_skipped(api, &at.schedule, step).await? {
                    Some(reason) => progress.skipped(&timing, due, reason, &clocks),
                    None => progress.fired(id, &timing, due, &clocks),
                };
                if let Some(due) = next.next {
                    let fires_at = timing.fires_at(id, due);
                    set_tick(api, tenant, id, fires_at).await?;
                    ticks_at = Some(fires_at);
                }
                log(&at.schedule, &next, due);
                next
            }
            TickAction::Wait(fires_at) if ticks_at == Some(fires_at) => return Ok(()),
            TickAction::Wait(fires_at) => return Ok(set_tick(api, tenant, id, fires_at).await?),
            TickAction::Rest => return Ok(()),
        };
        if !at.write(api, next).await? {
            match VersionedSchedule::find(api, tenant, id).await? {
                Some(found) => (at, ticks_at) = (found, None),
                None => return Ok(()),
            }
        }
    }
}

/// Starts a run of the schedule beside its times; `None`: there is no such schedule.
pub(crate) async fn run_now(
    api: &Api,
    tenant: &Tenant,
    id: &ScheduleId,
    may: impl Fn(&Recurring) -> Result<(), ApiError>,
) -> Result<Option<Recurring>, Delay> {
    let mut started = None;
    loop {
        let Some(mut at) = VersionedSchedule::find(api, tenant, id).await? else { return Ok(None) };
        if started.is_none() {
            may(&at.schedule).map_err(Delay::Job)?;
        }
        // What is pending is carried out first, then this run in the same way.
        let next = match (at.schedule.progress.pending, started) {
            (Some(due), _) => carry_out(api, &at.schedule, due).await?,
            (None, Some(due)) => return accepted(at.schedule, due).map(Some),
            (None, None) => {
                let due = now();
                // Known before, a refusal leaves the schedule with the run that it had last.
                let known = intake::may_be_submitted(api, tenant, job(id, &at.schedule.job, due)).await;
                known.map_err(Delay::Job)?;
                at.schedule.progress.run_now(id, due)
            }
        };
        let pending = next.pending;
        if at.write(api, next).await? && pending.is_some() {
            started = pending;
        }
    }
}

/// The schedule, unless the job of its firing at `due` was refused.
fn accepted(schedule: Recurring, due: Timestamp) -> Result<Recurring, Delay> {
    match &schedule.progress.last_skipped {
        Some(Skipped { due_at, error: Some(error), .. }) if *due_at == due => {
            Err(Delay::Job(ApiError::malformed(error.clone())))
        }
        _ => Ok(schedule),
    }
}

/// A schedule as it was read, and the revision to write on.
struct VersionedSchedule {
    schedule: Recurring,
    revision: u64,
}

impl VersionedSchedule {
    async fn find(api: &Api, tenant: &Tenant, id: &ScheduleId) -> Result<Option<Self>, Delay> {
        let found = api.backbone.find_recurring_for_certain(tenant, id).await?;
        if found.is_unreadable {
            // It is not gone: without its tick no newer node would fire it.
            return Err(Delay::Unreadable("what is stored is not what nodes of this version write".to_owned()));
        }
        Ok(found.schedule.map(|schedule| Self { schedule, revision: found.revision }))
    }

    /// Writes progress; `false`: another write was first.
    async fn write(&mut self, api: &Api, progress: Progress) -> Result<bool, Delay> {
        self.schedule.progress = progress;
        self.schedule.token = api.identity.token();
        match api.backbone.write_recurring(&self.schedule, self.revision).await? {
            Put::Won(revision) => {
                self.revision = revision;
                if self.schedule.progress.pending.is_some() {
                    fail_point::pass("after-firing");
                }
                Ok(true)
            }
            Put::Lost => Ok(false),
            Put::Full => Err(Delay::Full),
        }
    }
}

/// Why a firing becomes no run; `None`: it becomes one.
async fn why_skipped(api: &Api, schedule: &Recurring, step: TickAction) -> Result<Option<SkipReason>, Error> {
    match step {
        TickAction::Miss(_) => Ok(Some(SkipReason::Missed)),
        _ if schedule.skips_overlaps() && still_runs(api, schedule).await? => Ok(Some(SkipReason::Overlap)),
        _ => Ok(None),
    }
}

/// Whether the last run of the schedule has not ended. Its submission has stored its record; if that is gone, the run
/// ended long ago, and if it cannot be read, the run may go on.
async fn still_runs(api: &Api, schedule: &Recurring) -> Result<bool, Error> {
    let Some(last) = &schedule.progress.last_run else { return Ok(false) };
    match api.backbone.read_record(&schedule.tenant, &last.run_id).await {
        Err(error) if error.unreadable_at().is_some() => Ok(true),
        found => Ok(found?.is_some_and(|found| !found.run.state.is_terminal())),
    }
}

async fn set_tick(api: &Api, tenant: &Tenant, id: &ScheduleId, at: Timestamp) -> Result<(), Error> {
    api.backbone.set_tick(tenant, id, at).await?;
    fail_point::pass("after-tick");
    Ok(())
}

/// Makes sure that the run of a pending firing exists.
async fn carry_out(api: &Api, schedule: &Recurring, due: Timestamp) -> Result<Progress, Delay> {
    match intake::submit(api, &schedule.tenant, job(schedule.id(), &schedule.job, due)).await {
        Ok(_) => {
            fail_point::pass("after-firing-run");
            Ok(schedule.progress.carried_out())
        }
        Err(error) if is_final(&error) => {
            let (id, tenant) = (schedule.id(), &schedule.tenant);
            tracing::error!(%id, %tenant, %due, "the job of a recurring schedule is refused, this firing is left out: {error}");
            Ok(schedule.progress.refused(due, error.message))
        }
        Err(error) => Err(Delay::Job(error)),
    }
}

pub(crate) fn job(id: &ScheduleId, job: &SubmitRequest, due: Timestamp) -> SubmitRequest {
    let idempotency_key = job.idempotency_key.as_ref().map(|key| format!("{key}-{}", due.millis()));
    SubmitRequest { run_id: Some(run_id(id, due).to_string()), idempotency_key, ..job.clone() }
}

/// Whether asking again cannot help: the job itself is wrong by now, as a preset that it names is gone.
fn is_final(error: &ApiError) -> bool {
    [Code::Malformed, Code::Forbidden, Code::WrongState, Code::TooLarge].iter().any(|code| code.number() == error.code)
}

fn log(schedule: &Recurring, next: &Progress, due: Timestamp) {
    let skipped = next.last_skipped.as_ref().filter(|skipped| skipped.due_at == due && next.pending.is_none());
    let (id, tenant) = (schedule.id(), &schedule.tenant);
    match skipped {
        Some(skipped) if skipped.reason == SkipReason::Missed => {
            tracing::warn!(%id, %tenant, %due, "a recurring schedule missed this time, and perhaps more, and makes up for none");
        }
        Some(skipped) => tracing::info!(%id, %tenant, %due, reason = ?skipped.reason, "a firing is left out"),
        None => tracing::debug!(%id, %tenant, %due, "a recurring schedule fires"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firing_names_its_run_and_its_key_by_the_time_due() {
        let id = ScheduleId::parse("nightly").unwrap();
        let template = SubmitRequest { idempotency_key: Some("k".to_owned()), ..SubmitRequest::default() };
        let job = job(&id, &template, Timestamp::from_millis(1_769_851_800_000));
        assert_eq!(job.run_id.as_deref(), Some("nightly-1769851800000"));
        assert_eq!(job.idempotency_key.as_deref(), Some("k-1769851800000"));
    }

    #[test]
    fn a_tick_that_cannot_be_handled_comes_again_after_growing_pauses() {
        assert_eq!((away(1), away(2), away(u64::MAX)), (AWAY.0, AWAY.0 * 2, AWAY.1));
    }

    #[test]
    fn only_a_job_that_can_never_be_taken_is_given_up() {
        let of = |code| is_final(&ApiError::new(code, "x"));
        assert!(of(Code::Malformed) && of(Code::TooLarge));
        assert!(!of(Code::NotFound) && !of(Code::RateLimited) && !of(Code::Unavailable) && !of(Code::Internal));
    }
}
