//! Keeps the recurring schedules: brings them in line with the configuration once, at start, and looks slowly through
//! all of them for ticks that the server lost. What clients change or remove after that stays as they have it. What is
//! refused at start is tried again, as its queue may come to be declared.
//!
//! A tick that falls due while its stream has no leader may never fire, and a node that dies between two writes may
//! leave a schedule without one. So a schedule that is overdue by more than the grace gets its tick again, for the same
//! time: the server fires it at once if its clock says so, and any node does the rest. A schedule whose next time lies
//! further ahead than its rule says, as a clock was wrong when it was written, gets the right one. One node looks for
//! all: the first by name that is there. Two at once do no harm.
//!
//! Bounds: [`PAGES`] pages in a round; [`AT_ONCE`] ticks are set at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_backbone::Error;
use longshore_backbone::rarely::Rarely;
use longshore_backbone::wire::api::{ApiError, PutRequest};
use longshore_backbone::wire::recurring::Recurring;
use longshore_domain::{SmolStr, Tenant, Timestamp};
use tokio::sync::Mutex;

use crate::api::{Api, stranded};
use crate::metrics::Restored;
use crate::runtime::identity::is_first;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};
use crate::settings::DeclaredSchedules;
use crate::time::schedules;

/// Pages of 256 schedules in a round.
const PAGES: usize = 40;
/// Ticks that are set at once.
const AT_ONCE: usize = 16;
/// The pause before what the configuration declares is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Each reason why something is not in place is logged once in so long.
static NOT_IN_PLACE: Rarely = Rarely::once_in(Duration::from_secs(60));

#[derive(Clone)]
pub(crate) struct RecurringPart {
    pub(crate) api: Arc<Api>,
    pub(crate) declared: Arc<DeclaredSchedules>,
    /// Those that are not in place yet. They outlive the part: its successor must not undo what clients have changed of
    /// the others.
    pub(crate) pending: Arc<Mutex<Vec<(Tenant, PutRequest)>>>,
}

pub(crate) async fn run(part: RecurringPart) -> LoopEnd {
    let RecurringPart { api, declared, .. } = &part;
    let grace = stranded::grace(api.backbone.storage().lease);
    let (mut again, mut tick, mut from) = (ticks(AGAIN_AFTER), ticks(grace), 1);
    again.tick().await;
    let mut is_done = part.bring_in_line().await;
    loop {
        tokio::select! {
            _ = again.tick(), if !is_done => is_done = part.bring_in_line().await,
            _ = tick.tick() => {
                match sweep(api, from, grace).await {
                    Ok(next) => from = next,
                    Err(error) => tracing::debug!("recurring schedules are looked at later: {}", error.with_causes()),
                }
                if api.backbone.misses_recurring() {
                    put_again(api, declared).await;
                }
            }
        }
    }
}

impl RecurringPart {
    /// Makes and changes what the configuration declares, and removes what it does not declare any more. What is
    /// refused keeps nothing else from its place. Says whether all is in place.
    async fn bring_in_line(&self) -> bool {
        let in_line = &self.api.lifecycle.in_line;
        let mut pending = self.pending.lock().await;
        let (mut at, mut may_pass) = (0, false);
        while let Some((tenant, asked)) = pending.get(at) {
            let tried = put(&self.api, tenant, asked).await;
            if let Err(error) = tried {
                not_in_place(&format!("{} of tenant {tenant}: {}", asked.schedule.id, error.message));
                may_pass |= error.code >= 500;
                at += 1;
            } else {
                pending.remove(at);
            }
        }
        if !in_line.is_cancelled() {
            if let Err(error) = remove_undeclared(&self.api, &self.declared).await {
                not_in_place(&error.message);
                may_pass = true;
            }
            // A refusal may last for ever: the node's start does not wait for its end.
            if !may_pass {
                in_line.cancel();
            }
        }
        pending.is_empty() && in_line.is_cancelled()
    }
}

fn not_in_place(reason: &str) {
    if let Some(times) = NOT_IN_PLACE.happened(reason, Instant::now()) {
        tracing::warn!(times, "the schedules of the configuration are not all in place yet, trying again: {reason}");
    }
}

/// Removes what the configuration, or one before it, declared and does not any more.
async fn remove_undeclared(api: &Api, declared: &DeclaredSchedules) -> Result<(), ApiError> {
    let name = &api.identity.node;
    let mut kept = 0;
    for schedule in declared_before(api).await? {
        let (tenant, id) = (&schedule.tenant, schedule.id());
        let gone = |schedule: &Recurring| is_gone(schedule, declared, name);
        if gone(&schedule) {
            if schedules::remove(api, tenant, id, gone).await?.is_some() {
                tracing::info!(%id, %tenant, "the configuration has removed a recurring schedule");
            }
        } else if !is_declared(&schedule, declared) {
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

/// Makes or changes a schedule as the configuration declares it, unless a client has done so since this node started.
async fn put(api: &Api, tenant: &Tenant, asked: &PutRequest) -> Result<(), ApiError> {
    let (id, identity) = (&asked.schedule.id, &api.identity);
    let found = api.backbone.find_recurring(tenant, id).await?.schedule;
    let what = match &found {
        Some(before) if before.declared_by.is_none() && before.updated_at > identity.started_at => return Ok(()),
        Some(before) if before.declared_by.is_some() && before.is_as(asked) => return Ok(()),
        Some(_) => "changed",
        None => "added",
    };
    let stored = schedules::store(api, tenant, asked, Some(&identity.node)).await?;
    let lines = found.map(|before| differences(&before, &stored)).unwrap_or_default();
    tracing::info!(%id, %tenant, next = stored.progress.next.map(tracing::field::display), "the configuration has {what} a recurring schedule{lines}");
    Ok(())
}

/// Makes those again that somebody wrote over. What clients have changed or removed stays.
async fn put_again(api: &Api, declared: &DeclaredSchedules) {
    for (tenant, asked) in &declared.schedules {
        let tried = match api.backbone.find_recurring(tenant, &asked.schedule.id).await {
            Ok(found) if !found.is_unreadable => continue,
            Ok(_) => put(api, tenant, asked).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = tried {
            tracing::debug!("what is left of recurring schedules is looked at again: {}", error.message);
        }
    }
}

fn is_declared(schedule: &Recurring, declared: &DeclaredSchedules) -> bool {
    let is_it = |tenant: &Tenant, asked: &PutRequest| *tenant == schedule.tenant && asked.schedule.id == *schedule.id();
    declared.schedules.iter().any(|(tenant, asked)| is_it(tenant, asked))
}

/// Whether a schedule goes because the configuration of the node `name` does not declare it any more. What clients made
/// stays; and without a section of schedules a node removes only what it declared itself.
fn is_gone(schedule: &Recurring, declared: &DeclaredSchedules, name: &SmolStr) -> bool {
    let Some(by) = &schedule.declared_by else { return false };
    (declared.is_said || by == name) && !is_declared(schedule, declared)
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
async fn sweep(api: &Api, from: u64, grace: Duration) -> Result<u64, Error> {
    if api.lifecycle.is_draining() || !is_first(&api.backbone.nodes(), &api.identity).await? {
        return Ok(1);
    }
    let mut from = from;
    for _ in 0..PAGES {
        let page = api.backbone.some_recurring(None, from).await?;
        let now = now();
        for (schedule, revision) in &page.found {
            if let Some(schedule) = ahead(schedule, now, grace) {
                bring_back(api, schedule, *revision).await;
            }
        }
        let before = now.minus(grace);
        let set = page.found.into_iter().filter_map(|(schedule, _)| {
            let at = overdue_since(&schedule, before)?;
            Some(restore(api, schedule, at))
        });
        let set: Vec<Result<bool, Error>> = futures_util::stream::iter(set).buffer_unordered(AT_ONCE).collect().await;
        let restored = set.iter().filter(|set| matches!(set, Ok(true))).count();
        if restored > 0 {
            api.metrics.restored(Restored::Recurring, restored);
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

/// A schedule whose next time lies too far ahead, with the right one. What will have come within the grace comes by
/// itself, and most schedules that fire often are not looked at further.
fn ahead(schedule: &Recurring, now: Timestamp, grace: Duration) -> Option<Recurring> {
    schedule.progress.next.filter(|next| *next > now.plus(grace))?;
    let progress = schedule.progress.brought_back(&schedule.settings.timing().ok()?, now)?;
    Some(Recurring { progress, ..schedule.clone() })
}

/// Writes the right next time of a schedule, unless another write came first.
async fn bring_back(api: &Api, schedule: Recurring, revision: u64) {
    let (id, tenant) = (schedule.id().clone(), schedule.tenant.clone());
    match schedules::write(api, schedule, revision).await {
        Ok(Some(written)) => {
            let next = written.progress.next.map(tracing::field::display);
            tracing::warn!(%id, %tenant, next, "the next time of a recurring schedule lay too far ahead, as a clock was wrong: it is brought back");
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(%id, %tenant, "a next time is brought back later: {error}"),
    }
}

/// When a schedule should have fired, if that is before `before`.
fn overdue_since(schedule: &Recurring, before: Timestamp) -> Option<Timestamp> {
    // What is pending may be all that is left.
    let times = [schedule.progress.pending, schedule.progress.next];
    let at = times.into_iter().flatten().find(|at| *at <= before)?;
    // Few are overdue: only their timings are read.
    let fires_at = schedule.settings.timing().ok()?.fires_at(schedule.id(), at);
    (fires_at <= before).then_some(fires_at)
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

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_backbone::wire::api::{Endpoint as _, SchedulesPut};
    use serde_json::{Value, json};

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(&format!("2026-03-01T{text}Z")).unwrap()
    }

    fn asked(id: &str, more: &Value) -> PutRequest {
        let mut asked = json!({"id": id, "every": "10m", "type": "t"});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        SchedulesPut::read(asked.to_string().as_bytes()).unwrap()
    }

    /// A schedule that fires every ten minutes, next at 8:10.
    fn stored(id: &str, more: &Value, declared_by: Option<&str>) -> Recurring {
        let asked = asked(id, more);
        let timing = asked.schedule.timing().unwrap();
        let stored = Recurring::put(&asked, &timing, &Tenant::default_tenant(), None, at("08:00:00"));
        Recurring { declared_by: declared_by.map(SmolStr::from), ..stored }
    }

    fn declares(ids: &[&str], is_said: bool) -> DeclaredSchedules {
        let schedules = ids.iter().map(|id| (Tenant::default_tenant(), asked(id, &json!({})))).collect();
        DeclaredSchedules { schedules, is_said }
    }

    #[test]
    fn a_configuration_removes_what_was_declared_and_never_what_a_client_made() {
        let goes = |declared_by, declared: &DeclaredSchedules| {
            is_gone(&stored("sync", &json!({}), declared_by), declared, &"n1".into())
        };
        let (none, other) = (declares(&[], true), declares(&["nightly"], true));
        assert!(goes(Some("n1"), &none) && goes(Some("n2"), &none), "an empty section removes all that was declared");
        assert!(goes(Some("n2"), &other) && !goes(Some("n2"), &declares(&["sync"], true)));
        assert!(!goes(None, &none) && !goes(None, &other), "a client made it");
        let unsaid = declares(&[], false);
        assert!(goes(Some("n1"), &unsaid), "its own section is gone");
        assert!(!goes(Some("n2"), &unsaid), "a node without schedules leaves those of others alone");
        let elsewhere = Recurring { tenant: Tenant::parse("acme").unwrap(), ..stored("sync", &json!({}), Some("n1")) };
        assert!(is_gone(&elsewhere, &declares(&["sync"], true), &"n1".into()), "another tenant's of that id");
    }

    #[test]
    fn a_schedule_is_overdue_once_its_time_is_and_also_if_its_run_is_all_that_is_left_to_do() {
        let schedule = stored("sync", &json!({}), None);
        assert_eq!(overdue_since(&schedule, at("08:09:59")), None);
        assert_eq!(overdue_since(&schedule, at("08:10:00")), Some(at("08:10:00")));
        let mut over = schedule.clone();
        (over.progress.pending, over.progress.next) = (Some(at("08:10:00")), None);
        assert_eq!(overdue_since(&over, at("08:11:00")), Some(at("08:10:00")), "its last firing has no run yet");
        over.progress.pending = None;
        assert_eq!(overdue_since(&over, at("23:00:00")), None, "it is paused or over");
    }

    #[test]
    fn a_schedule_that_was_fired_ahead_is_brought_back() {
        let mut schedule = stored("sync", &json!({}), None);
        let found = |schedule: &Recurring| {
            ahead(schedule, at("08:05:00"), Duration::from_secs(10)).map(|schedule| schedule.progress.next)
        };
        assert_eq!(found(&schedule), None);
        schedule.progress.next = Some(at("09:10:00"));
        assert_eq!(found(&schedule), Some(Some(at("08:10:00"))));
        schedule.progress.next = None;
        assert_eq!(found(&schedule), None, "it is paused");
    }

    #[test]
    fn a_jitter_makes_no_schedule_overdue() {
        let schedule = stored("sync", &json!({"jitter_ms": 300_000}), None);
        let fires_at = schedule.settings.timing().unwrap().fires_at(schedule.id(), at("08:10:00"));
        assert!(fires_at > at("08:10:00"), "this one is delayed");
        assert_eq!(overdue_since(&schedule, Timestamp::from_millis(fires_at.millis() - 1)), None);
        assert_eq!(overdue_since(&schedule, fires_at), Some(fires_at));
    }

    #[test]
    fn the_log_says_what_a_configuration_changed() {
        let (before, after) = (stored("sync", &json!({}), None), stored("sync", &json!({"queue": "mail"}), None));
        assert_eq!(differences(&before, &after), ": queue: nothing → \"mail\"");
        assert_eq!(differences(&before, &before), "");
    }
}
