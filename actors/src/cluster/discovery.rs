//! Handler discovery: asks remote handlers what they announce.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Backbone;
use longshore_backbone::control::PRESENCE_EVERY;
use longshore_backbone::handlers::Announced;

use crate::queue::dispatcher;
use crate::queue::served::ServedQueues;
use crate::shared::routing::Routing;
use crate::supervision::LoopEnd;

/// How long services have to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// What discovery needs.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) backbone: Backbone,
    pub(crate) routing: Arc<Routing>,
    /// Their schedulers are notified when there may be more capacity than before, or less.
    pub(crate) queues: Arc<ServedQueues>,
}

/// Asks remote handlers what they announce: at once when there is a job whose handlers were not asked yet, and every
/// few seconds if there was a job for remote handlers since the last time.
pub(crate) async fn run(part: Part) -> LoopEnd {
    let Part { backbone, routing, queues } = part;
    let mut tick = tokio::time::interval(PRESENCE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut warned = HashSet::new();
    loop {
        tokio::select! {
            _ = tick.tick() => if !routing.discovery.take_remote_seen() { continue },
            () = routing.discovery.met_new_subject() => tick.reset(),
        }
        let at = Instant::now();
        let announced = match backbone.ask_handlers(ANSWERS_WITHIN).await {
            Ok(announced) => announced,
            Err(error) => {
                tracing::debug!("remote handlers cannot be asked: {}", error.with_causes());
                continue;
            }
        };
        for handler in &announced {
            warn_of(handler, &mut warned);
        }
        routing.saw(&announced);
        routing.discovery.replace(announced, at);
        routing.capacity.changed();
        for queue in queues.all().iter() {
            queue.scheduler.send(dispatcher::Message::CapacityChanged);
        }
    }
}

/// Maximum number of handlers that are remembered as warned of.
const MAX_WARNED: usize = 1_024;

/// Warns once of an announcement that cannot be read.
fn warn_of(handler: &Announced, warned: &mut HashSet<(String, String)>) {
    for wrong in &handler.wrong {
        if warned.len() >= MAX_WARNED {
            warned.clear();
        }
        if warned.insert((handler.service.clone(), wrong.clone())) {
            tracing::warn!(service = %handler.service, subject = %handler.subject,
                "a handler announces what cannot be read, so the type's own setting holds: {wrong}");
        }
    }
}
