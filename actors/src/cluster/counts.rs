//! The jobs of the whole cluster by queue, priority and state, for monitoring.
//!
//! Counted when a client asks, and at most every [`FRESH_FOR`], by a fixed number of questions per queue: it costs
//! nothing while no client asks, and no more when a million jobs wait. Each node counts for itself, so that all show
//! the same. Jobs that wait for a time stand by run and not by queue; the sweep, which reads all of them anyway,
//! publishes how many there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use longshore_backbone::backlog::LaneBacklog;
use longshore_backbone::control::QueueLoad;
use longshore_backbone::parked::ParkedKind;
use longshore_backbone::{Backbone, Error};
use longshore_domain::limit::{LimitId, Scope};
use longshore_domain::{Priority, Queue, QueueLane, Tenant, Timestamp};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::limits::rate::Limits;
use crate::metrics::cluster::{ClusterCounts, QueueCounts};
use crate::runtime::now;

/// For how long counts are shown again without asking the servers.
const FRESH_FOR: Duration = Duration::from_secs(3);
/// For how long older counts are shown when the servers do not answer.
const SHOWN_FOR: Duration = Duration::from_secs(30);
/// How long a client that asks is kept waiting.
const WITHIN: Duration = Duration::from_secs(2);
/// Rate limits whose tokens are counted at most: each costs a question.
const MAX_LIMITS: usize = 100;

/// The last counts, and when they were tried and made.
#[derive(Debug, Default)]
struct Last {
    tried: Option<Instant>,
    counted: Option<(Instant, Arc<ClusterCounts>)>,
}

/// The counts, shared by all who ask: one of them asks the servers, the others wait for that.
#[derive(Debug, Default)]
pub(crate) struct SharedCounts(Mutex<Last>);

impl SharedCounts {
    /// The counts now; `None`: the servers have not answered for a while. `own` is how busy this node is.
    pub(crate) async fn now(
        &self,
        backbone: &Backbone,
        limits: &Limits,
        node: &str,
        own: BTreeMap<String, QueueLoad>,
    ) -> Option<Arc<ClusterCounts>> {
        let mut last = self.0.lock().await;
        if last.tried.is_none_or(|tried| tried.elapsed() >= FRESH_FOR) {
            match tokio::time::timeout(WITHIN, count(backbone, limits, node, own)).await {
                Ok(Ok(counts)) => last.counted = Some((Instant::now(), Arc::new(counts))),
                Ok(Err(error)) => tracing::debug!("cannot count the cluster's jobs: {}", error.with_causes()),
                Err(_) => tracing::debug!("cannot count the cluster's jobs within {} s", WITHIN.as_secs()),
            }
            last.tried = Some(Instant::now());
        }
        let shown = last.counted.as_ref().filter(|(at, _)| at.elapsed() < SHOWN_FOR);
        shown.map(|(_, counts)| Arc::clone(counts))
    }
}

async fn count(
    backbone: &Backbone,
    limits: &Limits,
    node: &str,
    own: BTreeMap<String, QueueLoad>,
) -> Result<ClusterCounts, Error> {
    let nodes = backbone.nodes();
    let (queues, nodes, dead, timed, tokens) = tokio::try_join!(
        backbone.declared_queues(),
        nodes.present(now()),
        backbone.dead_letter_backlog(),
        backbone.timed(),
        tokens(backbone, limits),
    )?;
    // What this node says of itself is newer than what it last published.
    let others = nodes.into_iter().filter(|presence| presence.node != node).map(|presence| presence.queues);
    let loads: Vec<BTreeMap<String, QueueLoad>> = others.chain([own]).collect();
    let each = try_join_all(queues.into_iter().map(|queue| async {
        let loads: Vec<QueueLoad> = loads.iter().filter_map(|load| load.get(queue.as_str()).cloned()).collect();
        let stored = stored(backbone, &queue, None).await?;
        let mut counts = counts_of(&stored, &loads, None, now());
        counts.timed = timed.as_ref().map(|timed| timed.of(&queue, None).unwrap_or_default());
        Ok::<_, Error>((queue, counts))
    }));
    Ok(ClusterCounts { queues: each.await?.into_iter().collect(), dead_letters: dead.count, tokens })
}

/// Asks what is left of the rate limits of types and names. Tenants' limits are not among them, as no label holds a
/// tenant, nor are those of keys, which any client may invent.
async fn tokens(backbone: &Backbone, limits: &Limits) -> Result<BTreeMap<Scope, u64>, Error> {
    let scopes = limits.scopes().into_iter().filter(|scope| !matches!(scope, Scope::Tenant(_)));
    let limited = scopes.filter_map(|scope| Some((limits.limit_of(&scope)?, scope))).take(MAX_LIMITS);
    let each = try_join_all(limited.map(|(limit, scope)| async move {
        let id = LimitId { scope, key: None };
        let (record, _) = backbone.read_limit(&id).await?;
        let left = record.map_or(limit.capacity() as u64, |record| record.left(&limit, now()));
        Ok::<_, Error>((id.scope, left))
    }));
    Ok(each.await?.into_iter().collect())
}

/// What the streams have of a queue, of one tenant or of all.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoredQueue {
    /// By lane.
    pub(crate) lanes: Vec<LaneBacklog>,
    pub(crate) parked: Vec<ParkedKind>,
    /// Those that were taken back; a lane has them as well.
    pub(crate) returned: Vec<ParkedKind>,
    pub(crate) oldest_parked: Option<Timestamp>,
}

/// Asks what the streams have of a queue: some questions per lane, however many jobs there are.
pub(crate) async fn stored(backbone: &Backbone, queue: &Queue, tenant: Option<&Tenant>) -> Result<StoredQueue, Error> {
    let (lanes, parked) = tokio::try_join!(
        try_join_all(QueueLane::all().map(|lane| backbone.lane_backlog(queue, lane, tenant))),
        backbone.parked_kinds(queue, tenant),
    )?;
    let returned = match lanes[QueueLane::Returned.index()].messages {
        0 => Vec::new(),
        _ => backbone.returned_kinds(queue, tenant).await?,
    };
    let oldest_parked = if parked.is_empty() { None } else { backbone.oldest_parked(queue, tenant).await? };
    Ok(StoredQueue { lanes, parked, returned, oldest_parked })
}

/// Puts together what was asked. Lanes hold running jobs as well, until their end.
pub(crate) fn counts_of(
    stored: &StoredQueue,
    loads: &[QueueLoad],
    tenant: Option<&Tenant>,
    now: Timestamp,
) -> QueueCounts {
    let mut counts = QueueCounts::default();
    for (waiting, lane) in counts.waiting.iter_mut().zip(&stored.lanes) {
        *waiting = lane.messages;
    }
    for kind in stored.parked.iter().chain(&stored.returned) {
        counts.waiting[QueueLane::Of(kind.priority).index()] += kind.jobs;
    }
    let mut running_of = [0; Priority::COUNT];
    for load in loads {
        let (running, by_priority) = match tenant {
            None => (load.running, load.by_priority),
            Some(tenant) => {
                let by_priority = load.by_tenant.get(tenant).copied().unwrap_or_default();
                (by_priority.iter().sum(), by_priority)
            }
        };
        counts.running += running as u64;
        for ((waiting, all), running) in counts.waiting.iter_mut().zip(&mut running_of).zip(by_priority) {
            *waiting = waiting.saturating_sub(running as u64);
            *all += running;
        }
    }
    // Where no job of a lane runs, all of them wait, also those that were delivered and came back, such as those of a
    // node that has ended.
    let first = stored.lanes.iter().zip(QueueLane::all()).filter_map(|(lane, of)| {
        // Those of the lane of returned jobs are of any priority.
        let some_run = running_of.get(of.index()).map_or(counts.running > 0, |running| *running > 0);
        if some_run { lane.oldest_undelivered } else { lane.oldest }
    });
    // Which tenant's job a node has buffered for longest, it does not say.
    let buffered = loads.iter().filter(|_| tenant.is_none()).filter_map(|load| load.oldest_buffered);
    let oldest = first.chain(buffered).chain(stored.oldest_parked).min();
    counts.oldest = oldest.map(|oldest| now.since(oldest)).unwrap_or_default();
    counts
}

#[cfg(test)]
mod tests {
    use longshore_backbone::wire::kind_key::KindKey;
    use longshore_domain::JobType;

    use super::*;

    #[test]
    fn what_runs_does_not_wait_and_what_is_parked_does() {
        let at = Timestamp::from_millis;
        let lane = |messages, oldest: Option<i64>| {
            let oldest = oldest.map(at);
            LaneBacklog { messages, delivered: 0, oldest, oldest_undelivered: oldest }
        };
        let mut lanes = vec![lane(0, None); QueueLane::COUNT];
        (lanes[0], lanes[4]) = (lane(2, None), lane(10, Some(7_000)));
        let parked = ParkedKind {
            tenant: Tenant::parse("acme").unwrap(),
            queue: Queue::main(),
            priority: Priority::new(9).unwrap(),
            job_type: JobType::parse("a").unwrap(),
            key: KindKey::default(),
            jobs: 4,
        };
        let load = |running, by_priority, oldest: Option<i64>| QueueLoad {
            concurrency: 8,
            running,
            by_priority,
            oldest_buffered: oldest.map(at),
            by_tenant: [(Tenant::parse("acme").unwrap(), [0, 0, 0, 0, running, 0, 0, 0, 0])].into(),
        };
        let loads = [load(3, [1, 0, 0, 0, 2, 0, 0, 0, 0], Some(6_000)), load(1, [1, 0, 0, 0, 0, 0, 0, 0, 0], None)];
        let stored = StoredQueue { lanes, parked: vec![parked], returned: Vec::new(), oldest_parked: Some(at(5_000)) };
        let counts = counts_of(&stored, &loads, None, at(10_000));
        assert_eq!(
            counts,
            QueueCounts {
                waiting: [0, 0, 0, 0, 8, 0, 0, 0, 4],
                running: 4,
                timed: None,
                oldest: Duration::from_secs(5),
            }
        );
        let of_tenant = counts_of(&stored, &loads, Some(&Tenant::parse("acme").unwrap()), at(10_000));
        assert_eq!((of_tenant.waiting, of_tenant.running), ([2, 0, 0, 0, 6, 0, 0, 0, 4], 4));
        let lanes = vec![LaneBacklog { oldest: Some(at(4_000)), ..lane(10, Some(7_000)) }; QueueLane::COUNT];
        let came_back = StoredQueue { lanes, parked: Vec::new(), returned: Vec::new(), oldest_parked: None };
        let oldest = |loads: &[QueueLoad]| counts_of(&came_back, loads, None, at(10_000)).oldest;
        assert_eq!(oldest(&[load(0, [0; 9], None)]), Duration::from_secs(6), "all of them wait");
        assert_eq!(oldest(&[load(9, [1; 9], None)]), Duration::from_secs(3), "the first one may run");
        let nothing = StoredQueue { lanes: vec![lane(0, None); QueueLane::COUNT], ..StoredQueue::default() };
        let nothing = counts_of(&nothing, &[], None, at(10_000));
        assert_eq!(nothing, QueueCounts::default());
    }
}
