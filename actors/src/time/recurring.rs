//! Keeps the recurring schedules: brings them in line with the configuration once, at start, and then looks slowly
//! through all of them for ticks that the server lost.
//!
//! A tick that falls due while its stream has no leader may never fire, and a node that dies between two writes may
//! leave a schedule without one. So a schedule that is overdue by more than the grace gets its tick again, for the same
//! time: the server fires it at once if its clock says so, and any node does the rest. One node looks for all: the first
//! by name that is there. Two at once do no harm.
//!
//! Bounds: [`PAGES`] pages in a round; [`AT_ONCE`] ticks are set at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use longshore_backbone::Error;
use longshore_backbone::nodes::Nodes;
use longshore_backbone::wire::recurring::Recurring;
use longshore_domain::recurring::Progress;
use longshore_domain::{ScheduleId, Tenant, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::DeclaredSchedules;
use crate::api::{Api, schedules};
use crate::cluster::presence;
use crate::shared::now;
use crate::supervision::LoopEnd;

/// Pages of 256 schedules in a round.
const PAGES: usize = 40;
/// Ticks that are set at once.
const AT_ONCE: usize = 16;
/// The pause before what the configuration declares is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What this part needs.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) api: Arc<Api>,
    pub(crate) nodes: Nodes,
    pub(crate) draining: CancellationToken,
    pub(crate) declared: Arc<DeclaredSchedules>,
    /// Set once the schedules are as the configuration says.
    pub(crate) in_line: CancellationToken,
}

/// Keeps the schedules until the process ends.
pub(crate) async fn run(part: Part) -> LoopEnd {
    while !part.in_line.is_cancelled() {
        match bring_in_line(&part.api, &part.declared).await {
            Ok(()) => part.in_line.cancel(),
            Err(reason) => {
                tracing::warn!("the schedules of the configuration are not all in place yet: {reason}");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }
    // As long as an election takes; shorter where leases are.
    let grace = (part.api.backbone.storage().lease / 3).clamp(Duration::from_secs(1), Duration::from_secs(10));
    let mut tick = tokio::time::interval(grace);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut from = 1;
    loop {
        tick.tick().await;
        match sweep(&part, from, grace).await {
            Ok(next) => from = next,
            Err(error) => tracing::debug!("recurring schedules are looked at later: {}", error.with_causes()),
        }
    }
}

/// Makes and changes what the configuration declares, and removes what it, or a configuration before it, declared and
/// does not any more.
async fn bring_in_line(api: &Api, declared: &DeclaredSchedules) -> Result<(), String> {
    let name = &api.identity.node;
    let found = declared_before(api).await.map_err(|error| error.with_causes())?;
    for (tenant, asked) in &declared.schedules {
        let id = &asked.schedule.id;
        let before = api.backbone.find_recurring(tenant, id).await.map_err(|error| error.with_causes())?.schedule;
        let what = match &before {
            Some(before) if before.declared_by.is_some() && before.is_as(asked) => continue,
            Some(_) => "changed",
            None => "added",
        };
        let stored = schedules::store(api, tenant, asked, Some(name)).await;
        let stored = stored.map_err(|error| format!("schedules.{id}: {}", error.message))?;
        let lines = before.map(|before| differences(&before, &stored)).unwrap_or_default();
        tracing::info!(%id, %tenant, next = stored.progress.next.map(tracing::field::display), "the configuration has {what} a recurring schedule{lines}");
    }
    let is_declared = |tenant: &Tenant, id: &ScheduleId| {
        declared.schedules.iter().any(|(of, asked)| of == tenant && asked.schedule.id == *id)
    };
    let gone = |schedule: &Recurring| {
        let is_mine = schedule.declared_by.as_ref() == Some(name);
        schedule.declared_by.is_some() && (declared.is_said || is_mine) && !is_declared(&schedule.tenant, schedule.id())
    };
    let mut kept = 0;
    for schedule in found {
        let (tenant, id) = (&schedule.tenant, schedule.id());
        if gone(&schedule) {
            let removed = schedules::remove(api, tenant, id, gone).await.map_err(|error| error.message)?;
            if removed.is_some() {
                tracing::info!(%id, %tenant, "the configuration has removed a recurring schedule");
            }
        } else if !is_declared(tenant, id) {
            kept += 1;
        }
    }
    if kept > 0 {
        tracing::warn!(
            schedules = kept,
            "recurring schedules that another node's configuration declared stay: this one has no [schedules]; an empty \
             [schedules] removes them"
        );
    }
    Ok(())
}

/// All schedules that a configuration declared.
async fn declared_before(api: &Api) -> Result<Vec<Recurring>, Error> {
    let (mut all, mut from) = (Vec::new(), Some(1));
    while let Some(at) = from {
        let page = api.backbone.some_recurring(None, at).await?;
        all.extend(page.found.into_iter().map(|(schedule, _)| schedule).filter(|found| found.declared_by.is_some()));
        from = page.next;
    }
    Ok(all)
}

/// What a change is about, for the log: `: cron: "…" → "…"`.
fn differences(before: &Recurring, after: &Recurring) -> String {
    let lines = longshore_backbone::wire::recurring::differences(&before.status(), &after.status());
    if lines.is_empty() { String::new() } else { format!(": {}", lines.join("; ")) }
}

/// Looks at some schedules, from a sequence on; returns where to go on. One node does it for all.
async fn sweep(part: &Part, from: u64, grace: Duration) -> Result<u64, Error> {
    let api = &part.api;
    if part.draining.is_cancelled() || !presence::is_first(&part.nodes, &api.identity).await? {
        return Ok(1);
    }
    let mut from = from;
    for _ in 0..PAGES {
        let page = api.backbone.some_recurring(None, from).await?;
        let before = now().minus(grace);
        let overdue = page.found.into_iter().filter_map(|(schedule, _)| {
            let at = ticks_at(&schedule.progress, before)?;
            // Few are overdue: only their timings are read.
            let fires_at = schedule.settings.timing().ok()?.fires_at(schedule.id(), at);
            (fires_at <= before).then_some((schedule, fires_at))
        });
        let set = overdue.map(|(schedule, at)| restore(api, schedule, at));
        let set: Vec<Result<bool, Error>> = futures_util::stream::iter(set).buffer_unordered(AT_ONCE).collect().await;
        let restored = set.iter().filter(|set| matches!(set, Ok(true))).count();
        if restored > 0 {
            api.metrics.overdue_restored.inc_by(restored as u64);
            tracing::warn!(schedules = restored, "recurring schedules were overdue and had not fired: they fire now");
        }
        set.into_iter().find_map(Result::err).map_or(Ok(()), Err)?;
        match page.next {
            Some(next) => from = next,
            None => return Ok(1),
        }
    }
    Ok(from)
}

/// When the tick of a schedule should have come, if that is before `before`. What is pending may be all that is left.
fn ticks_at(progress: &Progress, before: Timestamp) -> Option<Timestamp> {
    [progress.pending, progress.next].into_iter().flatten().find(|at| *at <= before)
}

/// Sets the tick of an overdue schedule again, unless it has fired and waits for a node.
async fn restore(api: &Api, schedule: Recurring, at: Timestamp) -> Result<bool, Error> {
    let (tenant, id) = (&schedule.tenant, schedule.id());
    if api.backbone.tick_waits(tenant, id).await? {
        return Ok(false);
    }
    // It may have fired and been handled since the page was read, which any replica may have answered.
    let now = api.backbone.find_recurring(tenant, id).await?.schedule;
    let is_same = now.is_some_and(|now| now.progress == schedule.progress);
    if is_same {
        api.backbone.set_tick(tenant, id, at).await?;
    }
    Ok(is_same)
}
