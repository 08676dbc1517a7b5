//! Presence: says every two seconds that this node is there and how busy it is, and asks remote handlers what they
//! announce.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::Error;
use longshore_backbone::control::{PRESENCE_EVERY, Presence, QueueLoad};
use longshore_domain::{DurationText, Queue};

use crate::carry_out::chain;
use crate::queue::QueueState;
use crate::shared::{Shared, now};

/// How long services have to answer a census.
const CENSUS_WAIT: Duration = Duration::from_millis(500);

/// What this node is like just now.
pub(crate) fn of(shared: &Shared, queues: &[Arc<QueueState>]) -> Presence {
    let load = |queue: &Arc<QueueState>| {
        let load = QueueLoad { concurrency: queue.policy.concurrency, running: queue.running() };
        (queue.name.to_string(), load)
    };
    Presence {
        node: shared.node.to_string(),
        version: crate::VERSION.to_owned(),
        started_at: shared.started_at,
        seen_at: now(),
        state: if shared.draining.is_cancelled() { "draining" } else { "running" }.to_owned(),
        queues: queues.iter().map(load).collect::<BTreeMap<_, _>>(),
    }
}

/// Says that this node is there until it drains.
pub(crate) async fn run(shared: Arc<Shared>, queues: Vec<Arc<QueueState>>) {
    let mut tick = tokio::time::interval(PRESENCE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tight = false;
    loop {
        tick.tick().await;
        look_at_records(&shared, &mut tight).await;
        if let Err(error) = shared.backbone.announce(&of(&shared, &queues)).await {
            tracing::warn!("cannot say that this node is there: {}", chain(&error));
        }
    }
}

/// Notes how full the room for run records is, and says so when completed ones are kept for shorter, and no longer.
async fn look_at_records(shared: &Shared, tight: &mut bool) {
    let fill = match shared.backbone.measure_records().await {
        Ok(fill) => fill,
        Err(error) => return tracing::debug!("cannot see how full the records are: {}", chain(&error)),
    };
    shared.metrics.records_fill.set(fill);
    shared.records_full.store(fill >= FULL, Ordering::Relaxed);
    let kept = shared.backbone.completed_kept();
    let is_tight = kept < shared.backbone.storage().completed_max_age;
    if std::mem::replace(tight, is_tight) != is_tight {
        let percent = (fill * 100.0).round();
        if is_tight {
            tracing::warn!(
                "the room for run records is {percent} % full: completed ones are kept for {} now; storage.runs_max_records sets it",
                DurationText(kept)
            );
        } else {
            tracing::info!(
                "the room for run records is {percent} % full: completed ones are kept for as long as is set again"
            );
        }
    }
}

/// From here on the next records may be refused, and with them all work.
const FULL: f64 = 0.98;

/// Tells the cluster of a system event, such as `node_joined`; `details` are fields of its own.
pub(crate) async fn tell(shared: &Shared, event: &str, details: serde_json::Value) {
    tell_of(shared, event, "_", details).await;
}

/// The same of one that is about a queue, such as `lane_full`.
pub(crate) async fn tell_of_queue(shared: &Shared, event: &str, queue: &Queue, details: serde_json::Value) {
    tell_of(shared, event, queue.as_str(), details).await;
}

async fn tell_of(shared: &Shared, event: &str, queue: &str, details: serde_json::Value) {
    let at = now();
    let id = format!("_sys/{}/{event}/{}", shared.node, at.millis());
    let mut body = serde_json::json!({"v": 1, "id": id, "event": event, "node": &*shared.node, "at": at});
    if let (Some(body), serde_json::Value::Object(details)) = (body.as_object_mut(), details) {
        body.extend(details);
    }
    let body = Bytes::from(body.to_string());
    let subject = shared.backbone.names().system_event(event, queue, &shared.node, "_");
    shared.backbone.tell(subject, body).await;
}

/// Whether it is this node that does what one does for all: the first by name that is there. Should it go, the next one
/// does.
pub(crate) async fn is_first(shared: &Shared) -> Result<bool, Error> {
    let nodes = shared.backbone.nodes(now()).await?;
    Ok(nodes.iter().map(|presence| presence.node.as_str()).min().is_none_or(|first| first >= &*shared.node))
}

/// Asks remote handlers what they announce, every few seconds in which there was a job for one.
pub(crate) async fn census(shared: Arc<Shared>) {
    let mut tick = tokio::time::interval(PRESENCE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if !shared.take_remote_seen() {
            continue;
        }
        match shared.backbone.census(CENSUS_WAIT).await {
            Ok(announced) => *shared.census.write().unwrap_or_else(PoisonError::into_inner) = announced,
            Err(error) => tracing::debug!("no census of handlers: {}", chain(&error)),
        }
    }
}
