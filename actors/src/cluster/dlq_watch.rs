//! Warns before the bounds on dead letters delete the oldest of them: a system event, and a line in the log.
//!
//! One node warns for the cluster: the first by name that is there. Should it go, the next one does, and begins with a
//! warning of its own.

use std::time::{Duration, Instant};

use longshore_backbone::Error;
use longshore_backbone::backlog::DeadLetters;
use longshore_domain::retention::{Threat, threat};
use longshore_domain::{DurationText, Timestamp};
use serde_json::json;

use crate::cluster::Watcher;
use crate::runtime::identity::is_first;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};
use crate::runtime::system_events::SystemEvents;

/// How often the dead letters are measured. Shorter than the time in which a failing system fills the last fifth of
/// their stream.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// A warning that still holds is repeated after this.
const AGAIN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) async fn run(watcher: Watcher) -> LoopEnd {
    let mut tick = ticks(CHECK_EVERY);
    let mut warned: Option<(Threat, Instant)> = None;
    loop {
        tick.tick().await;
        match look(&watcher, warned).await {
            Ok(next) => warned = next,
            Err(error) => tracing::debug!("cannot see how many dead letters there are: {}", error.with_causes()),
        }
    }
}

/// Checks once; returns the warning that now stands, and when it was given.
async fn look(watcher: &Watcher, warned: Option<(Threat, Instant)>) -> Result<Option<(Threat, Instant)>, Error> {
    let Watcher { backbone, identity, metrics, system_events, .. } = watcher;
    let DeadLetters { fill, oldest, .. } = backbone.dead_letter_backlog().await?;
    metrics.dlq_fill.set(fill);
    let max_age = backbone.storage().dlq_max_age;
    let Some(threat) = threat(fill, oldest.map(|at| now().since(at)), max_age) else { return Ok(None) };
    let is_repeat = warned.is_some_and(|(threat_then, at)| threat_then == threat && at.elapsed() < AGAIN_AFTER);
    if is_repeat || !is_first(&backbone.nodes(), identity).await? {
        return Ok(warned);
    }
    warn(system_events, threat, fill, oldest, max_age).await;
    Ok(Some((threat, Instant::now())))
}

async fn warn(events: &SystemEvents, threat: Threat, fill: f64, oldest: Option<Timestamp>, max_age: Duration) {
    let percent = (fill * 100.0).round();
    match threat {
        Threat::Room => tracing::warn!(
            "the stream of dead letters is {percent} % full: when it is full the oldest go; replay or discard some, or raise storage.dlq_max_bytes"
        ),
        Threat::Age => tracing::warn!(
            "the oldest dead letter is of {}: dead letters go when they are {} old (storage.dlq_max_age)",
            oldest.unwrap_or_default(),
            DurationText(max_age)
        ),
    }
    let goes_at = oldest.map(|oldest| oldest.plus(max_age));
    let details = json!({"fill_ratio": fill, "oldest_at": oldest, "oldest_goes_at": goes_at});
    events.publish(threat.event(), details).await;
}
