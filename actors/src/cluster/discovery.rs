//! Handler discovery: asks remote handlers what they announce.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::control::{MissingHandler, PRESENCE_EVERY};
use longshore_backbone::handlers::Announced;
use longshore_backbone::scan::Source;
use longshore_backbone::{Backbone, Error};

use crate::handlers::routing::Routing;
use crate::queue::dispatcher::SchedulerMessage;
use crate::queue::served::ServedQueues;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How long services have to answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct DiscoveryPart {
    pub(crate) backbone: Backbone,
    pub(crate) routing: Arc<Routing>,
    /// Their schedulers are notified when there may be more capacity than before, or less.
    pub(crate) queues: Arc<ServedQueues>,
}

/// Of types without handler of which no job was tried for so long it is asked whether any waits: those that wait are
/// tried sooner, unless they wait for a retry.
const UNTRIED_FOR: Duration = Duration::from_secs(15);

/// Asks remote handlers what they announce: at once when there is a job whose handlers were not asked yet, and every
/// few seconds if there was a job for remote handlers since the last time.
pub(crate) async fn run(part: DiscoveryPart) -> LoopEnd {
    let DiscoveryPart { backbone, routing, queues } = part;
    let mut tick = ticks(PRESENCE_EVERY);
    let mut warned = HashSet::new();
    loop {
        tokio::select! {
            _ = tick.tick() => {
                if let Err(error) = forget_those_without_jobs(&backbone, &routing).await {
                    tracing::debug!("what waits for a handler cannot be read: {}", error.with_causes());
                }
                if !routing.discovery.take_remote_seen() {
                    continue;
                }
            }
            () = routing.discovery.new_subject_met.notified() => tick.reset(),
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
            queue.scheduler.send(SchedulerMessage::CapacityChanged);
        }
    }
}

/// Of the types without handler forgets those of which no job is left. Costs nothing while there are none, or while
/// their jobs are tried.
async fn forget_those_without_jobs(backbone: &Backbone, routing: &Routing) -> Result<(), Error> {
    let at = now().minus(UNTRIED_FOR);
    let untried = routing.discovery.untried_since(at);
    if untried.is_empty() {
        return Ok(());
    }
    let Some(timed) = backbone.timed().await?.filter(|timed| timed.counted_from >= at) else { return Ok(()) };
    for MissingHandler { tenant, job_type, .. } in untried {
        if timed.may_have_tried(&tenant, &job_type) {
            continue;
        }
        let parked = backbone.names().parked_where(Some(&tenant), None, Some(&job_type));
        if backbone.next_of(&Source::Parked, &parked, 1).await?.is_none() {
            routing.discovery.none_waits(&routing.subject_of(&tenant, &job_type), at);
        }
    }
    Ok(())
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
