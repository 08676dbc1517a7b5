//! What a run waits for, as a reason and in words: from its record, from what this node knows of pauses, breakers,
//! nodes and rate limits, and from where its job stands in its lane. It decides nothing, and what it says may be a
//! moment old.

mod slots;

use longshore_backbone::Error;
use longshore_backbone::backlog::LaneBacklog;
use longshore_backbone::control::{MissingHandler, Presence};
use longshore_backbone::records::Found;
use longshore_backbone::wire::api::{STRANDED, WaitingFor};
use longshore_domain::breaker::record::{BreakerKey, Circuit};
use longshore_domain::limit::{LimitId, Scope};
use longshore_domain::run::{DeferReason, Wait};
use longshore_domain::served::none_ever;
use longshore_domain::setting::Pause;
use longshore_domain::{QueueLane, Run, RunId, State, Timestamp};

use crate::api::stranded::{self, Lost};
use crate::api::{Api, limits, queues};
use crate::attempt::keys::order;
use crate::handlers::routing::Routing;
use crate::runtime::now;

/// What a run waits for; `None`: it runs, has ended, or is about to start. A job in its lane has no revision: 0.
pub(crate) async fn of(api: &Api, found: &Found) -> Option<WaitingFor> {
    let run = &found.run;
    let lost = stranded::of(&api.backbone, run, found.revision).await.unwrap_or_else(|error| {
        tracing::debug!("cannot say whether a run is stranded: {}", error.with_causes());
        None
    });
    if let Some(lost) = lost {
        let what = match lost {
            Lost::Schedule => "nothing: its time is over, and neither a schedule nor a message of it is left",
            Lost::Message => "nothing: no node works on it, and no message of it is left",
        };
        return Some(said(Reason::Stranded, what.to_owned()));
    }
    match by_record(run, now()) {
        Recorded::Says(waiting_for) => Some(waiting_for),
        Recorded::PutOff(reason, at) => Some(put_off(api, run, reason, Some(at)).await),
        Recorded::Waits => in_general(api, run).await.unwrap_or_else(|error| {
            tracing::debug!("cannot say what a run waits for: {}", error.with_causes());
            None
        }),
        Recorded::Nothing => None,
    }
}

/// What a record says of its run's wait.
#[derive(Debug, PartialEq)]
enum Recorded {
    /// All there is to say.
    Says(WaitingFor),
    /// It was put off for this reason, and is looked at again at this time.
    PutOff(DeferReason, Timestamp),
    /// It waits in its lane or parked: for what, the cluster says.
    Waits,
    /// It runs or has ended.
    Nothing,
}

fn by_record(run: &Run, now: Timestamp) -> Recorded {
    match &run.state {
        State::Scheduled { at } if *at > now => Recorded::Says(said(Reason::Schedule, format!("its time, {at}"))),
        State::Retrying { wait: Wait::Until(at) } if run.waits_for().is_none() => match *at > now {
            true => Recorded::Says(said(Reason::Retry, format!("its attempt {}, at {at}", run.next_attempt()))),
            // It waits for something else, at the node that kept it.
            false => Recorded::Waits,
        },
        State::Enqueued { wait: Some(Wait::Until(at)) } | State::Retrying { wait: Wait::Until(at) } => {
            let reason = run.deferral.as_ref().map(|deferral| deferral.reason);
            reason.map_or(Recorded::Nothing, |reason| Recorded::PutOff(reason, *at))
        }
        // One that is due waits in its lane: the record changes once a worker meets it.
        State::Enqueued { .. } | State::Scheduled { .. } | State::Retrying { .. } => Recorded::Waits,
        _ => Recorded::Nothing,
    }
}

/// What a run waits for, as one word. docs/internals/waiting.md says of each who ends the wait, whichever node dies.
#[derive(Debug, Clone, Copy)]
enum Reason {
    Schedule,
    Retry,
    QueueUnserved,
    Worker,
    Stranded,
    PutOff(DeferReason),
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Retry => "retry",
            Self::QueueUnserved => "queue_unserved",
            Self::Worker => "worker",
            Self::Stranded => STRANDED,
            Self::PutOff(reason) => reason.as_str(),
        }
    }
}

impl From<DeferReason> for Reason {
    fn from(reason: DeferReason) -> Self {
        Self::PutOff(reason)
    }
}

fn said(reason: impl Into<Reason>, what: String) -> WaitingFor {
    WaitingFor { reason: reason.into().as_str().to_owned(), message: format!("waits for {what}") }
}

/// What a job waits for that is in its lane or parked: the first that keeps it from starting.
async fn in_general(api: &Api, run: &Run) -> Result<Option<WaitingFor>, Error> {
    let settings = &api.run_time_settings;
    if let Some(pause) = settings.pause_of_queue(&run.queue) {
        return Ok(Some(paused(&format!("queue {}", run.queue), pause)));
    }
    let nodes = queues::present(api).await?;
    if !nodes.iter().any(|node| node.serves(&run.queue)) {
        return Ok(Some(said(Reason::QueueUnserved, format!("a node: none serves its queue {}", run.queue))));
    }
    if let Some(pause) = settings.pause_of_type(&run.queue, &run.job_type) {
        return Ok(Some(paused(&format!("type {}", run.job_type), pause)));
    }
    if let Some((first, before)) = order::before(&api.backbone, run).await? {
        return Ok(Some(its_turn(&first, before.as_ref())));
    }
    if let Some(missing) = missing(&nodes, run) {
        return Ok(Some(no_handler(&api.routing, run, missing.since)));
    }
    if let Some(waiting_for) = breaker(api, run) {
        return Ok(Some(waiting_for));
    }
    let parked = match run.state {
        State::Enqueued { wait } => wait.is_some(),
        State::Retrying { wait } => run.waits_for().is_some() || matches!(wait, Wait::Parked { .. }),
        _ => false,
    };
    if let Some(reason) = run.waits_for().filter(|_| parked) {
        return Ok(Some(put_off(api, run, reason, None).await));
    }
    if parked {
        // A handler without room is the only gate that puts jobs off without saying so.
        return Ok(Some(with_room(run)));
    }
    match api.waiting.reason_of(run) {
        Some(DeferReason::Busy) => return Ok(Some(with_room(run))),
        Some(reason) => return Ok(Some(put_off(api, run, reason, None).await)),
        None => {}
    }
    if let Some(next_at) = spent(api, run).await? {
        return Ok(Some(put_off(api, run, DeferReason::RateLimited, next_at).await));
    }
    // A node that does not hold the job has not looked at its slots.
    if slots::taken_by(api, run).await?.is_some() {
        return Ok(Some(put_off(api, run, DeferReason::Concurrency, None).await));
    }
    let lane = api.backbone.lane_backlog(&run.queue, QueueLane::Of(run.priority), None).await?;
    Ok(behind(run, &lane))
}

/// Whether no token is left of the rate limit of its type, or of the one that its type shares, and when there is the
/// next one, if that is known. A job that a node holds until there are tokens has nothing else to show for it. Which
/// limit key the job has, its record does not say.
async fn spent(api: &Api, run: &Run) -> Result<Option<Option<Timestamp>>, Error> {
    let named = api.policies.of(&run.job_type).limit.clone().map(Scope::Named);
    for scope in std::iter::once(Scope::Type(run.job_type.clone())).chain(named) {
        let Some(limit) = api.limits.limit_of(&scope) else { continue };
        let (_, left, next_at) = limits::left(api, &LimitId { scope, key: None }, Some(&limit)).await?;
        if left == Some(0) {
            return Ok(Some(next_at));
        }
    }
    Ok(None)
}

/// The jobs of its lane behind which a run waits for a worker; `None`: its lane is empty, so it has gone on.
fn behind(run: &Run, lane: &LaneBacklog) -> Option<WaitingFor> {
    let own = run.run_id.as_derived().map(|(.., sequence)| sequence);
    let own = own.or_else(|| run.held_by.as_ref().map(|held| held.message.sequence));
    // A delayed job or retry is in its lane under another one.
    let own = own.filter(|_| matches!(run.state, State::Enqueued { .. }));
    if lane.messages == 0 {
        return None;
    }
    let (before, about) = match own {
        Some(own) => (own.saturating_sub(lane.delivered + 1).min(lane.messages), ""),
        // Where it stands is not known.
        None => (lane.messages - 1, "at most "),
    };
    let place = match before {
        0 => ": it is next in its lane".to_owned(),
        1 => format!(", behind {about}1 job of its lane"),
        _ => format!(", behind {about}{before} jobs of its lane"),
    };
    let what = format!("a worker of the queue {}{place} (priority {})", run.queue, run.priority.number());
    Some(said(Reason::Worker, what))
}

/// Its handlers are full.
fn with_room(run: &Run) -> WaitingFor {
    let what = format!("a handler of {} with room: they run as many jobs as they take at once", run.job_type);
    said(DeferReason::Busy, what)
}

/// Another run comes first in the order of its key.
fn its_turn(first: &RunId, before: Option<&Run>) -> WaitingFor {
    let stands = before.map_or_else(|| "waits in its lane".to_owned(), slots::stands);
    let what = format!("its turn in the order of its key: run {first} comes first and has not ended ({stands})");
    said(DeferReason::Concurrency, what)
}

fn paused(what: &str, Pause { until, .. }: Pause) -> WaitingFor {
    let until = until.map_or_else(String::new, |until| format!(" until {until}"));
    said(DeferReason::Paused, format!("the end of a pause: its {what} is paused{until}"))
}

/// The node that has found no handler for longest.
fn missing<'n>(nodes: &'n [Presence], run: &Run) -> Option<&'n MissingHandler> {
    let all = nodes.iter().flat_map(|node| &node.missing_handlers);
    let of_run = all.filter(|missing| missing.tenant == run.tenant && missing.job_type == run.job_type);
    of_run.min_by_key(|missing| missing.since)
}

fn no_handler(routing: &Routing, run: &Run, since: Timestamp) -> WaitingFor {
    let (job_type, subject) = (&run.job_type, routing.subject_of(&run.tenant, &run.job_type));
    let never = routing.never_served(&run.tenant, job_type);
    let never = never.map_or_else(String::new, |of| format!(" ({})", none_ever(of.nearest.as_ref())));
    let what = format!("a handler of {job_type}: none online since {since}{never}; handlers subscribe to {subject}");
    said(DeferReason::NoHandlerOnline, what)
}

/// The breaker of its type, if that is not closed. Which limit key the job has, its record does not say.
fn breaker(api: &Api, run: &Run) -> Option<WaitingFor> {
    let of = BreakerKey { tenant: run.tenant.clone(), job_type: run.job_type.clone(), key: None };
    in_words(&api.breakers.stored(&of).0?.state, run, now())
}

/// What a breaker in this state has a run wait for.
fn in_words(state: &Circuit, run: &Run, now: Timestamp) -> Option<WaitingFor> {
    let what = match state {
        Circuit::Open { until, .. } if *until > now => {
            format!("the breaker of {}, open until {until}", run.job_type)
        }
        Circuit::Open { .. } | Circuit::HalfOpen { .. } => {
            format!("the breaker of {}, which lets a few jobs try", run.job_type)
        }
        Circuit::Closed { .. } => return None,
    };
    Some(said(DeferReason::BreakerOpen, what))
}

/// A job that was put off for this reason, and is looked at again at a time if that is set.
async fn put_off(api: &Api, run: &Run, reason: DeferReason, at: Option<Timestamp>) -> WaitingFor {
    let at = match (reason, at) {
        // A parked job is looked at again once there are tokens.
        (DeferReason::RateLimited, None) => spent(api, run).await.ok().flatten().flatten(),
        _ => at,
    };
    match reason {
        DeferReason::Concurrency if api.backbone.concurrency_space().is_short() => {
            no_room(api, reason, "concurrency", "storage.concurrency_max_bytes")
        }
        DeferReason::RateLimited if api.backbone.control_space().is_short() => {
            no_room(api, reason, "control", "storage.control_max_bytes")
        }
        DeferReason::NoHandlerOnline => {
            let since = run.deferral.as_ref().map(|deferral| deferral.since).unwrap_or_default();
            let nodes = queues::present(api).await.unwrap_or_default();
            let since = missing(&nodes, run).map_or(since, |missing| missing.since.min(since));
            no_handler(&api.routing, run, since)
        }
        DeferReason::Held => {
            let until = match api.waiting.kind_of(run) {
                Some(of) => api.limits.held_until(&of.tenant, &of.job_type, &of.key),
                // It is parked, or at another node.
                None => api.limits.only_hold(&run.tenant, &run.job_type),
            };
            for_reason(run, reason, until.or(at))
        }
        DeferReason::BreakerOpen => breaker(api, run).unwrap_or_else(|| for_reason(run, reason, at)),
        DeferReason::Concurrency => {
            let mut waiting_for = for_reason(run, reason, at);
            match slots::taken_by(api, run).await {
                Ok(Some(by)) => waiting_for.message.push_str(&format!(": {by}")),
                Ok(None) => {}
                Err(error) => tracing::debug!("cannot say who has the slots: {}", error.with_causes()),
            }
            waiting_for
        }
        _ => for_reason(run, reason, at),
    }
}

/// Its key may be a new one, for which there is no room.
fn no_room(api: &Api, reason: DeferReason, bucket: &str, setting: &str) -> WaitingFor {
    let bucket = api.backbone.names().bucket(bucket);
    let what = format!("its turn, or for room for its key: bucket {bucket} takes no more keys; raise {setting}");
    said(reason, what)
}

/// The reason of a deferral in words, and when the job is looked at again.
fn for_reason(run: &Run, reason: DeferReason, at: Option<Timestamp>) -> WaitingFor {
    let next = at.map_or_else(String::new, |at| format!(", next at {at}"));
    said(reason, reason.awaited(run.job_type.as_str()) + &next)
}

#[cfg(test)]
mod tests;
