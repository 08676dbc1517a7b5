//! Presence: publishes every two seconds, and when its queues change, that this node is there and how busy it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::control::{MAX_MISSING, PRESENCE_EVERY, Presence};
use longshore_backbone::nodes::Nodes;
use longshore_backbone::{Backbone, Error, clock};
use longshore_domain::repeats::Repeats;
use tokio_util::sync::CancellationToken;

use crate::cluster::records_watch::check_records;
use crate::cluster::waiting::WaitingJobs;
use crate::metrics::Metrics;
use crate::queue::served::ServedQueues;
use crate::shared::health::Health;
use crate::shared::identity::Identity;
use crate::shared::now;
use crate::shared::routing::Routing;
use crate::shared::run_time_settings::RunTimeSettings;
use crate::supervision::{LoopEnd, ticks};

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
        let check = check_records((&part.backbone, &part.metrics, &part.health), &mut tight);
        // The next presence must not wait for it.
        let _ = tokio::time::timeout(ANSWER_WITHIN, check).await;
    }
}

/// Whether this node is the one that works for all nodes: the first by name that is there. Should it go, the next one
/// is.
pub(crate) async fn is_first(nodes: &Nodes, identity: &Identity) -> Result<bool, Error> {
    let nodes = nodes.present(now()).await?;
    Ok(is_first_of(nodes.iter().map(|presence| presence.node.as_str()), &identity.node))
}

/// The same, once it is known which nodes are there: a node that is not among them goes by its name, too.
pub(crate) fn is_first_of<'a>(present: impl Iterator<Item = &'a str>, own: &str) -> bool {
    present.min().is_none_or(|first| first >= own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_works_for_all_that_are_there() {
        let firsts = |present: &[&'static str]| {
            ["n1", "n2", "n3"].into_iter().filter(|own| is_first_of(present.iter().copied(), own)).collect::<Vec<_>>()
        };
        assert_eq!(firsts(&["n2", "n1", "n3"]), ["n1"], "whatever the order");
        assert_eq!(firsts(&["n3", "n2"]), ["n1", "n2"], "n1 is here, though its presence has not been read");
        assert_eq!(firsts(&[]), ["n1", "n2", "n3"], "two at once do no harm, none would");
    }
}
