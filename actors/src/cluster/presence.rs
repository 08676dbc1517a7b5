//! Presence: publishes every two seconds, and when its queues change, that this node is there and how busy it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::control::{MAX_MISSING, PRESENCE_EVERY, Presence};
use longshore_backbone::{Backbone, clock};
use longshore_domain::repeats::Repeats;
use tokio_util::sync::CancellationToken;

use crate::cluster::records_watch::check_records;
use crate::cluster::waiting::WaitingJobs;
use crate::handlers::routing::Routing;
use crate::limits::settings::RunTimeSettings;
use crate::metrics::Metrics;
use crate::queue::served::ServedQueues;
use crate::runtime::health::Health;
use crate::runtime::identity::Identity;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How long an answer may take: then it is said again, as an election may have swallowed it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What presence needs.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) backbone: Backbone,
    pub(crate) identity: Arc<Identity>,
    pub(crate) draining: CancellationToken,
    /// The queues whose load it publishes.
    pub(crate) queues: Arc<ServedQueues>,
    /// Whose running jobs it publishes as well.
    pub(crate) waiting: Arc<WaitingJobs>,
    /// Which handlers it does not find.
    pub(crate) routing: Arc<Routing>,
    /// What the node knows of run-time settings counts only while other nodes know that it is there.
    pub(crate) run_time_settings: Arc<RunTimeSettings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<Health>,
}

/// This node's presence now.
fn of(part: &Part) -> Presence {
    let mut missing = part.routing.discovery.missing_handlers();
    missing.truncate(MAX_MISSING);
    Presence {
        node: part.identity.node.to_string(),
        version: crate::VERSION.to_owned(),
        started_at: part.identity.started_at,
        seen_at: clock::own(),
        state: if part.draining.is_cancelled() { "draining" } else { "running" }.to_owned(),
        queues: part.queues.loads(),
        running_of: part.waiting.running_of(),
        missing_handlers: missing,
    }
}

fn warn(repeats: &mut Repeats, why: &str) {
    if let Some(line) = repeats.line(&format!("cannot say that this node is there: {why}"), Instant::now()) {
        tracing::warn!("{line}");
    }
}

/// Publishes this node's presence until the process ends.
pub(crate) async fn run(part: Part) -> LoopEnd {
    let mut tick = ticks(PRESENCE_EVERY);
    let (mut tight, mut repeats) = (false, Repeats::default());
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = part.queues.changed() => {}
        }
        part.metrics.keep(now());
        let sent = Instant::now();
        let nodes = part.backbone.nodes();
        match tokio::time::timeout(ANSWER_WITHIN, nodes.announce(&of(&part))).await {
            Ok(Ok(())) => {
                repeats.end();
                part.run_time_settings.is_present(sent);
            }
            Ok(Err(error)) => warn(&mut repeats, &error.with_causes()),
            Err(_) => warn(&mut repeats, &format!("no answer within {ANSWER_WITHIN:?}")),
        }
        let check = check_records(&part.backbone, &part.metrics, &part.health, &mut tight);
        // The next presence must not wait for it.
        let _ = tokio::time::timeout(ANSWER_WITHIN, check).await;
    }
}
