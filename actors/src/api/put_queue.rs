//! Declares queues while the cluster runs.
//!
//! The lanes come first, so that no node serves what is not there; then the run-time setting, which every node reads,
//! also after a restart. Whatever dies between the two, a repeat goes on. Nothing is ever taken away: a queue that is
//! put again is served otherwise, and its lanes stay.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use longshore_backbone::control::Presence;
use longshore_backbone::wire::api::{ApiError, Code, Encoded, PutQueueRequest, QueuePut};
use longshore_domain::Queue;
use longshore_domain::setting::{PutQueue, Setting, SettingKey};

use crate::api::pauses::write;
use crate::api::{Answered, Api};
use crate::runtime::now;

/// At most so many queues can be put: each costs ten streams, and each node that serves it as many workers as it says.
pub(crate) const MAX_PUT: usize = 256;
/// How long its lanes may take: an election fits in.
const DECLARED_WITHIN: Duration = Duration::from_secs(10);
/// How long the answer waits for the nodes.
const SERVED_WITHIN: Duration = Duration::from_secs(3);
/// How often it looks whether they serve it.
const CHECK_EVERY: Duration = Duration::from_millis(50);

pub(crate) async fn put(api: &Api, asked: PutQueueRequest) -> Answered<QueuePut> {
    let wanted = asked.setting()?;
    // What stands for an unreadable queue can be named, but not made.
    let queue = Queue::parse(asked.queue.as_str());
    let queue = queue.map_err(|error| ApiError::malformed(format!("queue: {}", error.reason)))?;
    let known = api.put_queues.all();
    if known.len() >= MAX_PUT && !known.contains_key(&queue) {
        let message = format!(
            "queue: {MAX_PUT} queues were put, which is as many as may be: name others in nodes' configurations"
        );
        return Err(ApiError::new(Code::WrongState, message));
    }
    // Nodes that serve it may still hold jobs of lanes that were deleted.
    let is_known = known.contains_key(&queue) || api.policies.queues.contains_key(&queue);
    let serves = |node: &Presence| node.queues.contains_key(queue.as_str());
    let again = is_known || api.backbone.nodes().present(now()).await?.iter().any(serves);
    api.backbone.declare(&queue, again, DECLARED_WITHIN).await?;
    let key = SettingKey::Queue(queue.clone());
    let stored = write(api, &key, Some(Setting::Queue(wanted.clone())), |_| false).await?;
    let until = Instant::now() + SERVED_WITHIN;
    let nodes = api.backbone.nodes().present(now()).await?.into_iter().map(|presence| presence.node).collect();
    let silent = api.backbone.run_time_settings().announce(stored.revision, nodes, SERVED_WITHIN).await?;
    let (served_by, missing) = served(api, &queue, &wanted, until).await?;
    let unconfirmed: BTreeSet<String> = silent.into_iter().chain(missing).collect();
    let PutQueue { concurrency, aging_ms, nodes, fair_by } = wanted;
    let unconfirmed = unconfirmed.into_iter().collect();
    Ok(Encoded::of(&QueuePut { aging_ms, concurrency, fair_by, nodes, queue, served_by, unconfirmed }))
}

/// Waits until the nodes serve the queue that are to; says which do, and which do not.
async fn served(
    api: &Api,
    queue: &Queue,
    wanted: &PutQueue,
    until: Instant,
) -> Result<(Vec<String>, Vec<String>), ApiError> {
    loop {
        let present = api.backbone.nodes().present(now()).await?;
        // A node that serves nothing is a gateway, and will not.
        let works = |node: &Presence| node.state == "running" && !node.queues.is_empty();
        let is_to = |node: &&Presence| works(node) && wanted.is_for(&node.node);
        let name = |node: &Presence| node.node.clone();
        let missing: Vec<String> = present.iter().filter(is_to).filter(|node| !node.serves(queue)).map(name).collect();
        if missing.is_empty() || Instant::now() >= until {
            return Ok((present.iter().filter(|node| node.serves(queue)).map(name).collect(), missing));
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
