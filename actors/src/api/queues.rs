//! The endpoint `queues.list`: what waits and runs in each queue, and for what.
//!
//! A fixed number of questions per queue, however many jobs there are. Jobs that wait for a time are counted at once if
//! they are few; else by the sweep, which reads all of them anyway: what it has counted may be as old as one of its
//! passes takes.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use longshore_backbone::Error;
use longshore_backbone::backlog::{Several, Timed};
use longshore_backbone::control::{MissingHandler, Presence, QueueLoad};
use longshore_backbone::wire::api::{ApiError, Encoded, NoHandler, PausedType, QueueStatus, Queues, QueuesRequest};
use longshore_domain::run::whole_millis;
use longshore_domain::setting::{Pause, PauseOf};
use longshore_domain::{JobType, Priority, Queue, QueueLane, Tenant, Timestamp};

use crate::api::{Answered, Api, filter};
use crate::cluster::counts::{StoredQueue, counts_of, stored};
use crate::runtime::now;

pub(crate) async fn list(api: &Api, asker: &str, QueuesRequest { queue, tenant }: QueuesRequest) -> Answered<Queues> {
    let tenant = filter::whose(asker, tenant.as_ref())?;
    let only = queue.as_deref().map(Queue::parse).transpose();
    let only = only.map_err(|error| ApiError::malformed(format!("queue: {error}")))?;
    let backbone = &api.backbone;
    let read = tokio::try_join!(backbone.declared_queues(), present(api), backbone.timed());
    let (mut queues, nodes, timed) = read?;
    if let Some(only) = &only {
        queues.retain(|queue| queue == only);
        if queues.is_empty() {
            return Err(ApiError::not_found(format!("queue: {:?} is not declared", only.as_str())));
        }
    }
    let each = queues.iter().map(|queue| stored(backbone, queue, tenant.as_ref()));
    let stored = try_join_all(each).await?;
    let parked = |tenant: &Tenant, job_type: &JobType| -> u64 {
        let kinds = stored.iter().flat_map(|stored| stored.parked.iter().chain(&stored.returned));
        kinds.filter(|kind| kind.tenant == *tenant && kind.job_type == *job_type).map(|kind| kind.jobs).sum()
    };
    let mut no_handler = missing(&nodes, tenant.as_ref());
    for missing in &mut no_handler {
        // One that was just tried waits for its next try.
        let tried = timed.as_ref().map_or(0, |timed| timed.without_handler(&missing.tenant, &missing.job_type));
        missing.jobs = parked(&missing.tenant, &missing.job_type) + tried;
        missing.subject = backbone.names().work(&missing.tenant, &missing.job_type);
        let never_served = api.routing.never_served(&missing.tenant, &missing.job_type);
        (missing.never_served, missing.did_you_mean) = (never_served.is_some(), never_served.and_then(|of| of.nearest));
    }
    let pauses = api.run_time_settings.pauses();
    let statuses = queues.iter().zip(&stored).map(|(queue, stored)| {
        let timed = timed.as_ref().and_then(|timed| timed.of(queue, tenant.as_ref()));
        QueueState { queue, stored, nodes: &nodes, timed, pauses: &pauses }.status(tenant.as_ref(), now())
    });
    Ok(Encoded::of(&Queues { no_handler, queues: statuses.collect() }))
}

/// The nodes that are there. What this node says of itself is newer than what it last published.
pub(crate) async fn present(api: &Api) -> Result<Vec<Presence>, Error> {
    let mut nodes = api.backbone.nodes().present(now()).await?;
    if let Some(own) = nodes.iter_mut().find(|presence| presence.node == *api.identity.node) {
        own.queues = api.waiting.queues.loads();
        own.missing_handlers = api.routing.discovery.missing_handlers();
    }
    Ok(nodes)
}

/// What was read of a queue.
struct QueueState<'a> {
    queue: &'a Queue,
    stored: &'a StoredQueue,
    nodes: &'a [Presence],
    /// Unknown until the schedules were read once, and of some tenants where there are many.
    timed: Option<Timed>,
    pauses: &'a [(PauseOf, Pause)],
}

impl QueueState<'_> {
    fn status(self, tenant: Option<&Tenant>, now: Timestamp) -> QueueStatus {
        let Self { queue, stored, nodes, timed, pauses } = self;
        let serving = nodes.iter().filter_map(|node| Some((node, node.queues.get(queue.as_str())?)));
        let loads: Vec<QueueLoad> = serving.clone().map(|(_, load)| load.clone()).collect();
        let counts = counts_of(stored, &loads, tenant, now);
        let served_by = serving.filter(|(node, _)| node.serves(queue)).map(|(node, _)| node.node.clone());
        let served_by: Vec<String> = served_by.collect();
        let mut depths = by_priority(stored.lanes.iter().map(|lane| lane.messages));
        for parked in &stored.parked {
            *depths.entry(parked.priority.to_string()).or_default() += parked.jobs;
        }
        let returned = stored.lanes[QueueLane::Returned.index()].messages;
        let oldest = stored.lanes.iter().filter_map(|lane| lane.oldest).chain(stored.oldest_parked).min();
        let age = |since: Timestamp| whole_millis(now.since(since));
        let waits = counts.waiting.iter().any(|waiting| *waiting > 0);
        let waiting_for = waits.then(|| ("waiting", whole_millis(counts.oldest)));
        let several = timed.iter().flat_map(|timed| {
            [("scheduled", timed.scheduled), ("retrying", timed.retrying), ("deferred", timed.deferred)]
        });
        let aged = several.filter_map(|(state, several): (_, Several)| Some((state, age(several.since?))));
        let pause = pauses.iter().find(|(of, _)| *of == PauseOf::Queue(queue.clone())).map(|(_, pause)| pause);
        QueueStatus {
            concurrency: loads.iter().map(|load| load.concurrency as u64).sum(),
            deferred: timed.as_ref().map(|timed| timed.reasons.clone()),
            depth: depths.values().sum::<u64>() + returned,
            depths,
            oldest_age_ms: oldest.map(age),
            oldest_ms: waiting_for.into_iter().chain(aged).map(|(state, age)| (state.to_owned(), age)).collect(),
            paused: pause.is_some(),
            paused_types: paused_types(pauses, queue),
            paused_until: pause.and_then(|pause| pause.until),
            queue: queue.clone(),
            retrying: timed.as_ref().map(|timed| timed.retrying.count),
            running: counts.running,
            scheduled: timed.as_ref().map(|timed| timed.scheduled.count),
            served: !served_by.is_empty(),
            served_by,
            waiting: by_priority(counts.waiting.into_iter()),
        }
    }
}

fn by_priority(counts: impl Iterator<Item = u64>) -> BTreeMap<String, u64> {
    Priority::all().zip(counts).map(|(priority, count)| (priority.to_string(), count)).collect()
}

/// The types for which some node finds no handler, by tenant and type: since the first of them has found none.
fn missing(nodes: &[Presence], tenant: Option<&Tenant>) -> Vec<NoHandler> {
    let mut types: BTreeMap<(Tenant, JobType), NoHandler> = BTreeMap::new();
    let all = nodes.iter().flat_map(|node| &node.missing_handlers);
    for missing in all.filter(|missing| tenant.is_none_or(|tenant| *tenant == missing.tenant)) {
        let MissingHandler { tenant, job_type, since, looked_at } = missing.clone();
        let known = types.entry((tenant.clone(), job_type.clone())).or_insert(NoHandler {
            did_you_mean: None,
            jobs: 0,
            looked_at,
            never_served: false,
            since,
            subject: String::new(),
            tenant,
            job_type,
        });
        (known.since, known.looked_at) = (known.since.min(since), known.looked_at.max(looked_at));
    }
    let mut types: Vec<NoHandler> = types.into_values().collect();
    types.sort_by_key(|missing| missing.since);
    types
}

/// The types whose jobs are paused in a queue.
fn paused_types(pauses: &[(PauseOf, Pause)], queue: &Queue) -> Vec<PausedType> {
    let here = pauses.iter().filter(|(of, _)| of.queue().is_none_or(|of| of == queue));
    let here = here.filter_map(|(of, pause)| Some(PausedType { job_type: of.job_type()?.clone(), until: pause.until }));
    here.collect()
}
