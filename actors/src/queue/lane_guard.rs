//! The lane-guard: removes messages from the lanes that no client library can read, and creates deleted consumers
//! again.
//!
//! After every loss of the jobs' connection it has all lanes of this node and the due jobs inspected. A message that
//! cannot be read becomes a dead letter of kind `invalid`, by the same steps as any unreadable job
//! ([`crate::attempt::begin`]): the record decides, so that several nodes may find the same message; its deletion comes
//! last. Jobs that were lost with the connection are returned. The lane-guard has no mailbox; it works on at most
//! [`AT_ONCE`] broken messages at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::poison::{Pending, Poison};
use longshore_domain::{Lane, Queue, RunId, SmolStr};
use tokio::sync::mpsc;

use crate::attempt::assignment::{Assignment, Start};
use crate::attempt::begin;
use crate::attempt::node_ports::NodePorts;
use crate::ports::RunPorts as _;
use crate::queue::served::ServedQueues;
use crate::runtime::log_run::log_run;
use crate::runtime::now;
use crate::runtime::supervision::{LoopEnd, ticks};

/// Broken messages that it works on at once.
const AT_ONCE: usize = 16;
/// How often it checks for consumers that no server answers for, and for connections that were made anew.
const TICK: Duration = Duration::from_millis(250);
/// A consumer that exists and does not answer is checked again after this long.
const RESTORE_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A lane that could not be inspected is tried again after this long, at most this often.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(250);
const LOOKS: usize = 20;
/// How often in a row it tries, until every node has said what it holds; then the lease brings the lost jobs back.
const CLEARINGS: usize = 5;

#[derive(Clone)]
pub(crate) struct LaneGuardPart {
    pub(crate) ports: Arc<NodePorts>,
    pub(crate) served: Arc<ServedQueues>,
}

pub(crate) async fn run(LaneGuardPart { ports, served }: LaneGuardPart) -> LoopEnd {
    let mut connected = ports.backbone.connected();
    let mut questions = ports.backbone.custody_questions().await.map_err(|error| error.with_causes())?;
    let mut tick = ticks(TICK);
    let mut asked = BTreeMap::new();
    let clear = async {
        loop {
            if connected.changed().await.is_err() {
                return;
            }
            let streams = ports.backbone.job_streams(served.names().iter());
            for _ in 0..CLEARINGS {
                if clear(&ports, &streams).await {
                    break;
                }
                tokio::time::sleep(LOOK_AGAIN_AFTER).await;
            }
        }
    };
    let keep = async {
        loop {
            tick.tick().await;
            count(&ports);
            restore(&ports, &mut asked).await;
        }
    };
    let answer = async {
        while let Some(question) = questions.next().await {
            ports.backbone.answer_custody(question, ports.node()).await;
        }
    };
    tokio::join!(clear, keep, answer);
    Ok(())
}

/// Inspects all streams at once, and returns the lost jobs; false if other nodes have not said what they hold.
async fn clear(ports: &NodePorts, streams: &[SmolStr]) -> bool {
    let (found, mut poison) = mpsc::channel(AT_ONCE);
    let look = async {
        let looks = streams.iter().map(|stream| find_poison(ports, stream, found.clone()));
        let pending = futures_util::future::join_all(looks).await;
        drop(found);
        pending
    };
    let remove = async {
        while let Some(poison) = poison.recv().await {
            remove(ports, poison).await;
        }
    };
    let look = async { return_lost(ports, look.await).await };
    tokio::join!(look, remove).0
}

async fn find_poison(ports: &NodePorts, stream: &str, found: mpsc::Sender<Poison>) -> Option<Pending> {
    for _ in 0..LOOKS {
        match ports.backbone.find_poison(stream, &found).await {
            Ok(pending) => return pending,
            Err(error) => tracing::debug!(stream, "cannot be inspected: {}", error.with_causes()),
        }
        tokio::time::sleep(LOOK_AGAIN_AFTER).await;
    }
    tracing::warn!(stream, "could not be inspected for unreadable messages");
    None
}

/// A message that cannot be read becomes a dead letter, and is deleted.
async fn remove(ports: &NodePorts, poison: Poison) {
    let Poison { reason, delivery } = poison;
    let message = delivery.holding.message.clone();
    let is_due = *message.stream == ports.backbone.names().schedules_stream();
    let mut assignment = Assignment::read(delivery, ports.backbone.names(), u64::MAX, usize::MAX);
    if is_due && assignment.arrival.has_derived_id {
        // Sequences of the due jobs' stream are not those of a lane.
        let due = Queue::parse("due").unwrap_or_else(|_| Queue::main());
        let run_id = RunId::derived(&Lane::new(&due, assignment.job.priority), message.sequence);
        assignment.rename(run_id);
    }
    assignment.start = Start::Invalid(reason);
    log_run!(warn, assignment.about(), stream = %message.stream, sequence = message.sequence,
        "a message that cannot be read is taken out");
    begin::begin(ports, Box::new(assignment)).await;
}

/// Returns the jobs that were lost with the connection, once every node has said what it holds; false if some have not.
async fn return_lost(ports: &NodePorts, pending: Vec<Option<Pending>>) -> bool {
    let nodes = match ports.backbone.nodes().present(now()).await {
        Ok(nodes) => nodes.into_iter().map(|presence| presence.node).collect::<Vec<_>>(),
        Err(error) => {
            tracing::debug!("the nodes cannot be read: {}", error.with_causes());
            return false;
        }
    };
    let lost = pending.into_iter().flatten().map(async |pending| {
        let handed = ports.backbone.nak_lost(pending, ports.node(), &nodes).await;
        handed.unwrap_or_else(|error| {
            tracing::debug!("the other nodes cannot be asked: {}", error.with_causes());
            None
        })
    });
    let handed = futures_util::future::join_all(lost).await;
    let jobs: usize = handed.iter().flatten().sum();
    if jobs > 0 {
        tracing::info!(jobs, "returned the jobs that were lost with the connection");
    }
    handed.iter().all(Option::is_some)
}

async fn restore(ports: &NodePorts, asked: &mut BTreeMap<SmolStr, Instant>) {
    let unanswered = ports.backbone.unanswered();
    asked.retain(|stream, _| unanswered.contains(stream));
    for stream in unanswered {
        if asked.get(&stream).is_some_and(|at| at.elapsed() < RESTORE_AGAIN_AFTER) {
            continue;
        }
        match ports.backbone.restore(&stream).await {
            Ok(true) => tracing::warn!(%stream, "its consumer was gone and has been made anew"),
            Ok(false) => tracing::debug!(%stream, "its consumer is there"),
            Err(error) => tracing::warn!(%stream, "no server answers for its consumer: {}", error.with_causes()),
        }
        asked.insert(stream, Instant::now());
    }
}

/// Updates the counts of removed messages and of connections made anew.
fn count(ports: &NodePorts) {
    let removed = &ports.metrics.poison_removed;
    removed.inc_by(ports.backbone.poison_removed().saturating_sub(removed.get()));
    for link in ports.backbone.connections() {
        let counter = ports.metrics.connections_rebuilt.with_label_values(&[link.name()]);
        counter.inc_by(link.rebuilt().saturating_sub(counter.get()));
    }
}
