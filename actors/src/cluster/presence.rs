//! Presence: publishes every two seconds that this node is there and how busy it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use longshore_backbone::Error;
use longshore_backbone::control::{PRESENCE_EVERY, Presence, QueueLoad};

use crate::cluster::records_watch::look_at_records;
use crate::shared::{Shared, now};
use crate::supervision::LoopEnd;

/// This node's presence now.
pub(crate) fn of(shared: &Shared, queues: BTreeMap<String, QueueLoad>) -> Presence {
    Presence {
        node: shared.node.to_string(),
        version: crate::VERSION.to_owned(),
        started_at: shared.started_at,
        seen_at: now(),
        state: if shared.draining.is_cancelled() { "draining" } else { "running" }.to_owned(),
        queues,
    }
}

/// Publishes this node's presence until the process ends.
pub(crate) async fn run(shared: Arc<Shared>, loads: impl Fn() -> BTreeMap<String, QueueLoad>) -> LoopEnd {
    let mut tick = tokio::time::interval(PRESENCE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tight = false;
    loop {
        tick.tick().await;
        look_at_records(&shared, &mut tight).await;
        if let Err(error) = shared.backbone.announce(&of(&shared, loads())).await {
            tracing::warn!("cannot say that this node is there: {}", error.with_causes());
        }
    }
}

/// Whether this node is the one that works for all nodes: the first by name that is there. Should it go, the next one
/// is.
pub(crate) async fn is_first(shared: &Shared) -> Result<bool, Error> {
    let nodes = shared.backbone.nodes(now()).await?;
    Ok(nodes.iter().map(|presence| presence.node.as_str()).min().is_none_or(|first| first >= &*shared.node))
}
