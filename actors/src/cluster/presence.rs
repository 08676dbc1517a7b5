//! Presence: publishes every two seconds, and when its queues change, that this node is there and how busy it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::clock;
use longshore_backbone::control::{MAX_MISSING, PRESENCE_EVERY, Presence};
use longshore_domain::repeats::Repeats;

use crate::cluster::readiness::Readiness;
use crate::cluster::records_watch::check_records;
use crate::cluster::waiting::WaitingJobs;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How long an answer may take: then it is said again, as an election may have swallowed it.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct PresencePart {
    /// What the node knows of itself.
    pub(crate) node: Readiness,
    /// Whose running jobs it publishes as well.
    pub(crate) waiting: Arc<WaitingJobs>,
}

fn of(PresencePart { node, waiting }: &PresencePart) -> Presence {
    let mut missing = node.routing.discovery.missing_handlers();
    missing.truncate(MAX_MISSING);
    Presence {
        node: node.identity.node.to_string(),
        version: crate::runtime::VERSION.to_owned(),
        started_at: node.identity.started_at,
        seen_at: clock::own(),
        state: if node.lifecycle.is_draining() { "draining" } else { "running" }.to_owned(),
        queues: node.queues.loads(),
        running_of: waiting.running_of(),
        missing_handlers: missing,
    }
}

fn warn(repeats: &mut Repeats, why: &str) {
    if let Some(line) = repeats.line(&format!("cannot say that this node is there: {why}"), Instant::now()) {
        tracing::warn!("{line}");
    }
}

pub(crate) async fn run(part: PresencePart) -> LoopEnd {
    let Readiness { backbone, queues, run_time_settings, metrics, health, .. } = &part.node;
    let mut tick = ticks(PRESENCE_EVERY);
    let (mut tight, mut repeats) = (false, Repeats::default());
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = queues.changed.notified() => {}
        }
        metrics.keep(now());
        let sent = Instant::now();
        let nodes = backbone.nodes();
        match tokio::time::timeout(ANSWER_WITHIN, nodes.announce(&of(&part))).await {
            Ok(Ok(())) => {
                repeats.end();
                health.server_full.set(false);
                // What the node knows of run-time settings counts only while other nodes know that it is there.
                run_time_settings.is_present(sent);
            }
            Ok(Err(error)) => {
                health.server_full.set(error.is_server_full());
                warn(&mut repeats, &error.with_causes());
            }
            Err(_) => warn(&mut repeats, &format!("no answer within {ANSWER_WITHIN:?}")),
        }
        let check = check_records(backbone, metrics, health, &mut tight);
        // The next presence must not wait for it.
        let _ = tokio::time::timeout(ANSWER_WITHIN, check).await;
    }
}
