//! Keeps this process's clock at the cluster's time, and says how far the machine's own clock is off.
//!
//! It asks the server every few seconds, whatever the node does meanwhile: one question that reads nothing and writes
//! nothing. Between two answers it looks once a second, without asking, whether the machine was suspended: then the
//! monotonic clock, which carries the cluster's time on, stood still.

use std::time::{Duration, Instant};

use longshore_backbone::clock;
use longshore_domain::cluster_clock::{Skew, Wrong};
use serde_json::json;

use crate::cluster::Watcher;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How often it looks at the machine's clocks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often it asks the server.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Between two looks the machine's clocks move apart by more than this, in microseconds, only if one of them was set or
/// stood still.
const MOVED: u64 = 100_000;

pub(crate) async fn run(watcher: Watcher) -> LoopEnd {
    let mut tick = ticks(LOOK_EVERY);
    let (mut asked, mut own) = (None::<Instant>, clock::own_ahead());
    loop {
        tick.tick().await;
        let before = std::mem::replace(&mut own, clock::own_ahead());
        if asked.is_some_and(|at| at.elapsed() < ASK_EVERY) && own.abs_diff(before) < MOVED {
            continue;
        }
        match watcher.backbone.set_clock().await {
            Ok(skew) => {
                asked = Some(Instant::now());
                found(&watcher, skew).await;
            }
            Err(error) => tracing::debug!("the server does not say what time it is: {error}"),
        }
    }
}

/// Shows how far the machine's clock is off, and says so once for each change.
async fn found(Watcher { health, metrics, system_events, .. }: &Watcher, skew: Skew) {
    metrics.clock_ahead.set(skew.seconds());
    let before = health.set_clock(skew);
    let (wrong, text) = health.clock();
    if wrong == before {
        return;
    }
    let details = json!({"ahead_seconds": skew.seconds()});
    match (wrong, text) {
        (Wrong::No, _) | (_, None) => {
            tracing::info!("this machine's clock is right again");
            system_events.publish("clock_right", details).await;
        }
        (_, Some(text)) => {
            let consequence = if wrong == Wrong::FarOff { "; until then this node is not ready" } else { "" };
            tracing::warn!("{text}{consequence}");
            system_events.publish("clock_off", details).await;
        }
    }
}
