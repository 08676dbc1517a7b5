//! Says that jobs wait in a queue that no node serves: a system event, a line in the log, a warning in `health`.
//!
//! One node looks for the cluster: the first by name that is there. A queue counts as unserved once two looks in a row
//! have found it so, since a node that is started again is away for a moment. Should the first node go, the next one
//! begins anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::{Backbone, Error};
use longshore_domain::{Queue, Timestamp};
use serde_json::json;

use crate::cluster::counts::{counts_of, stored};
use crate::cluster::presence;
use crate::cluster::system_events::SystemEvents;
use crate::shared::health::Health;
use crate::shared::identity::Identity;
use crate::shared::now;
use crate::supervision::LoopEnd;

/// How often it looks: two questions, and some for each queue that no node serves.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// An event that still holds is repeated after this.
const AGAIN_AFTER: Duration = Duration::from_secs(60 * 60);

/// What the watch of queues needs.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) backbone: Backbone,
    pub(crate) identity: Arc<Identity>,
    pub(crate) health: Arc<Health>,
    pub(crate) system_events: SystemEvents,
}

/// A queue that is not served, as far as the last look saw.
struct Unserved {
    since: Timestamp,
    /// When that was published; `None`: not yet.
    told: Option<Instant>,
}

/// Watches until the process ends.
pub(crate) async fn run(part: Part) -> LoopEnd {
    let mut tick = tokio::time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut known = BTreeMap::new();
    loop {
        tick.tick().await;
        if let Err(error) = look(&part, &mut known).await {
            tracing::debug!("cannot see whether every queue is served: {}", error.with_causes());
        }
    }
}

/// Looks once, and tells what two looks have found.
async fn look(part: &Part, known: &mut BTreeMap<Queue, Unserved>) -> Result<(), Error> {
    let found = match presence::is_first(&part.backbone.nodes(), &part.identity).await? {
        true => unserved(&part.backbone).await?,
        false => BTreeMap::new(),
    };
    known.retain(|queue, _| found.contains_key(queue));
    let mut warnings = Vec::new();
    for (queue, waiting) in found {
        let Some(before) = known.get_mut(&queue) else {
            known.insert(queue, Unserved { since: now(), told: None });
            continue;
        };
        let since = before.since;
        if before.told.is_none_or(|told| told.elapsed() >= AGAIN_AFTER) {
            before.told = Some(Instant::now());
            tracing::warn!(%queue, waiting, "jobs wait in a queue that no node serves: start a node whose configuration names it");
            part.system_events
                .publish_of_queue("queue_unserved", &queue, json!({"queue": queue, "waiting": waiting, "since": since}))
                .await;
        }
        warnings.push(format!("no node serves queue {queue} since {since}: {waiting} jobs wait in it"));
    }
    part.health.set_unserved(warnings);
    Ok(())
}

/// The queues without a node, and how many jobs wait to start in each: those of which there are any.
async fn unserved(backbone: &Backbone) -> Result<BTreeMap<Queue, u64>, Error> {
    let nodes = backbone.nodes();
    let (queues, nodes) = tokio::try_join!(backbone.declared_queues(), nodes.present(now()))?;
    let is_served = |queue: &Queue| nodes.iter().any(|node| node.serves(queue));
    let mut found = BTreeMap::new();
    for queue in queues.into_iter().filter(|queue| !is_served(queue)) {
        let counts = counts_of(&stored(backbone, &queue, None).await?, &[], None, now());
        let waiting: u64 = counts.waiting.iter().sum();
        if waiting > 0 {
            found.insert(queue, waiting);
        }
    }
    Ok(found)
}
