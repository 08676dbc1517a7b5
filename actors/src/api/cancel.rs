//! Cancelling: one run, or all that fit a filter. What becomes of each is in [`cancellation`].
//!
//! The simulation drives the search for those that fit, too; [`FilterPorts`] is what it asks for.

use futures_util::StreamExt as _;
use longshore_backbone::Error;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::{Page, Source};
use longshore_backbone::wire::api::{ApiError, Cancelled, CancelledRuns, Code, Encoded, Failed, Outcome, Selection};
use longshore_backbone::wire::header::names;
use longshore_backbone::wire::record;
use longshore_domain::{Queue, QueueLane, Run, RunId, RunState, Tenant};

use crate::api::cancellation::{self, Only, present};
use crate::api::filter::{self, Chosen, RunFilter};
use crate::api::{Answered, Api, runs};
use crate::attempt::assignment::Assignment;
use crate::ports::encode::Destination as _;
use crate::ports::passed_on::passed_on;
use crate::ports::{FilterPorts, Rules as _};

/// Runs that one request cancels at once.
const AT_ONCE: usize = 32;
/// How many times one request reads all sources: it ends even if jobs are published as fast as they are cancelled.
const LOOKS: usize = 10;

pub(crate) async fn serve(api: &Api, asker: &str, asked: Selection) -> Answered<Cancelled> {
    let (limit, dry_run) = (asked.limit, asked.dry_run);
    match filter::which(asker, asked)? {
        Chosen::One(..) if dry_run => Err(ApiError::malformed("dry_run: is for filters; runs.get shows one run")),
        Chosen::One(tenant, run_id) => match cancellation::one(api, &tenant, &run_id, None).await? {
            Some(run) => Ok(record::show(&run).into()),
            None => Err(runs::missing(api, &tenant, &run_id).await),
        },
        Chosen::Those(filter) => {
            let limit = limit.unwrap_or(u64::MAX);
            let count = Pass { only_counts: true, spares_running: false };
            let outcome = match dry_run {
                true => cancel_those(api, &filter, limit, count, count).await?,
                false => all(api, &filter, limit).await?,
            };
            Ok(Encoded::of(&Cancelled::Runs(CancelledRuns::from(outcome))))
        }
    }
}

/// What is done to the runs that fit.
#[derive(Clone, Copy)]
struct Pass {
    only_counts: bool,
    /// Running ones are left alone, or for later: when they stop, their workers take waiting jobs, which should be gone
    /// by then.
    spares_running: bool,
}

/// Cancels the runs that fit: those that wait first.
pub(crate) async fn all<P: FilterPorts>(ports: &P, filter: &RunFilter, limit: u64) -> Result<Outcome, ApiError> {
    let waiting = Pass { only_counts: false, spares_running: true };
    cancel_those(ports, filter, limit, waiting, Pass { spares_running: false, ..waiting }).await
}

/// Cancels the runs that fit and whose attempt does not run.
pub(crate) async fn cancel_waiting<P: FilterPorts>(
    ports: &P,
    filter: &RunFilter,
    limit: u64,
    dry: bool,
) -> Result<Outcome, ApiError> {
    let pass = Pass { only_counts: dry, spares_running: true };
    cancel_those(ports, filter, limit, pass, pass).await
}

/// Cancels the runs that fit, by a first look and others.
async fn cancel_those<P: FilterPorts>(
    ports: &P,
    filter: &RunFilter,
    limit: u64,
    first: Pass,
    others: Pass,
) -> Result<Outcome, ApiError> {
    let mut outcome = Outcome::default();
    for number in 0..LOOKS {
        let before = outcome.done;
        let pass = if number == 0 { first } else { others };
        outcome = Outcome { done: before, ..Outcome::default() }; // failures are met again
        let more = page_through(ports, filter, limit, pass, &mut outcome).await?;
        let is_last = ports.server().is_last_pass(number, outcome.done > before);
        if more || pass.only_counts || is_last {
            return Ok(Outcome { more, ..outcome });
        }
    }
    Ok(Outcome { more: true, ..outcome })
}

/// Reads all sources once: every run that has not ended has exactly one message, in a lane, parked, or among the
/// schedules. Says whether the limit left some.
async fn page_through<P: FilterPorts>(
    ports: &P,
    filter: &RunFilter,
    limit: u64,
    pass: Pass,
    outcome: &mut Outcome,
) -> Result<bool, ApiError> {
    for (place, subject) in places(ports, filter, pass).await? {
        let mut from = Some(1);
        while let Some(at) = from {
            if outcome.done >= limit {
                return Ok(true);
            }
            let page = ports.page(&place, &subject, at).await?;
            from = page.next;
            let meant = page.messages.into_iter().filter(|stored| !is_for_others(ports, filter, &place, stored));
            let mut found = meant.filter_map(|stored| whose(ports, &place, stored));
            loop {
                let room = usize::try_from(limit - outcome.done).unwrap_or(AT_ONCE);
                let some: Vec<_> = found.by_ref().take(AT_ONCE.min(room)).collect();
                if some.is_empty() {
                    break;
                }
                let place = &place;
                let each = some.into_iter().map(|(tenant, run, message)| async move {
                    let result = if pass.only_counts {
                        would(ports, &tenant, &run, filter, pass).await
                    } else {
                        let only = Only { filter, only_if_waiting: pass.spares_running, place, message: &message };
                        cancellation::one(ports, &tenant, &run, Some(only)).await
                    };
                    (result, run)
                });
                let results: Vec<_> = futures_util::stream::iter(each).buffer_unordered(AT_ONCE).collect().await;
                for (result, run) in results {
                    match result {
                        Ok(Some(_)) => outcome.add(Ok(true)),
                        Ok(None) => {}
                        // It ended by itself in the meantime.
                        Err(error) if error.error == Code::WrongState.as_str() => {}
                        Err(error) => outcome.add(Err(Failed { error: error.message, run_id: run })),
                    }
                }
            }
        }
    }
    Ok(false)
}

/// The run, if it would be cancelled.
async fn would<P: FilterPorts>(
    ports: &P,
    tenant: &Tenant,
    run_id: &RunId,
    filter: &RunFilter,
    pass: Pass,
) -> Result<Option<Run>, ApiError> {
    let found = present(ports, tenant, run_id).await?.map(|present| present.run);
    let spared = |run: &Run| pass.spares_running && run.state == RunState::Running;
    Ok(found.filter(|run| !run.state.is_terminal() && !run.ends_late() && !spared(run) && filter.fits(run)))
}

/// The sources that may hold jobs of runs that fit, each with the subject to read.
///
/// A job that goes from a lane to the parked ones is in one of them whenever they are read, as lanes come first. One
/// that is taken back goes the other way: so the lanes of returned jobs are read once more, unless jobs are only
/// counted.
async fn places<P: FilterPorts>(ports: &P, filter: &RunFilter, pass: Pass) -> Result<Vec<(Source, String)>, ApiError> {
    let names = ports.server().names();
    let queues = match &filter.wanted.queue {
        Some(queue) => vec![queue.clone()],
        None => ports.declared_queues().await?,
    };
    let tenant = filter.tenant.as_ref();
    let (mut places, mut again) = (Vec::new(), Vec::new());
    for queue in queues {
        places.extend(QueueLane::all().map(|lane| filter.in_lane(names, &queue, lane)));
        again.extend((!pass.only_counts).then(|| filter.in_lane(names, &queue, QueueLane::Returned)));
    }
    let parked = names.parked_where(tenant, filter.wanted.queue.as_ref(), filter.wanted.job_type.as_ref());
    places.push((Source::Parked, parked));
    places.append(&mut again);
    places.extend(names.schedules_where(tenant).into_iter().map(|subject| (Source::Schedules, subject)));
    Ok(places)
}

/// Whether a schedule brings its job into another queue, or one of another type, than the filter has: a record is not
/// read for each of them. Their subjects have the run alone, as it may be moved to another queue, so all are paged
/// through.
fn is_for_others<P: FilterPorts>(ports: &P, filter: &RunFilter, place: &Source, stored: &Stored) -> bool {
    let target = stored.headers.get(names::SCHEDULE_TARGET).filter(|_| *place == Source::Schedules);
    let Some((queue, job_type)) = target.and_then(|target| ports.server().names().read_due(target.as_str())) else {
        return false;
    };
    filter.wanted.queue.as_ref().is_some_and(|wanted| wanted.as_str() != queue)
        || filter.wanted.job_type.as_ref().is_some_and(|wanted| wanted.as_str() != job_type)
}

/// The tenant and run of a stored job; `None` if the message is not a job.
fn whose<P: FilterPorts>(ports: &P, place: &Source, stored: Stored) -> Option<(Tenant, RunId, Stored)> {
    let (tenant, run_id) = match place {
        Source::Lane(queue, lane) => ports.run_in_lane(queue, *lane, &stored),
        Source::Schedules | Source::Parked | Source::DeadLetters | Source::Audit | Source::Events => {
            filter::run_of(&stored)?
        }
    };
    Some((tenant, run_id, stored))
}

impl FilterPorts for Api {
    passed_on! { self.backbone =>
        async fn declared_queues(&self) -> Result<Vec<Queue>, Error>;
        async fn page(&self, place: &Source, subject: &str, from: u64) -> Result<Page, Error>;
    }

    fn run_in_lane(&self, queue: &Queue, lane: QueueLane, stored: &Stored) -> (Tenant, RunId) {
        let names = self.backbone.names();
        let delivery = self.backbone.as_delivered(stored.clone(), &names.lane_stream(queue, lane));
        let job = Assignment::read(delivery, names, 0, self.backbone.max_on_arrival()).job;
        (job.tenant.clone(), job.run_id.clone())
    }
}
