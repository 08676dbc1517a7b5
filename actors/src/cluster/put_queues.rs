//! Serves the queues that operators put while the cluster runs (`queues.put`), beside those of the configuration.
//!
//! What was put is a run-time setting, which every node reads within a second. A queue that this node is to serve is
//! started; one that is to be served otherwise, or by other nodes, is closed: it takes no more jobs, what runs goes on,
//! and the new way begins at once. A queue that the configuration names is left as that says. Nothing here is about
//! single jobs.
//!
//! Bounds: one queue at a time; as many queues as operators put, [`MAX_PUT`](crate::api::put_queue::MAX_PUT).

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use longshore_backbone::run_time_settings::SettingChange;
use longshore_domain::Queue;
use longshore_domain::setting::{PutQueue, Setting, SettingKey};
use tokio::sync::Notify;

use crate::attempt::node_ports::NodePorts;
use crate::queue::dispatcher::{Dispatcher, SchedulerMessage};
use crate::queue::serve::{Order, QueueMaker, RootAddress};
use crate::runtime::Unpoisoned as _;
use crate::runtime::supervision::{LoopEnd, ticks};

/// How often it looks whether a queue that closes has ended, and tries again what did not work.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How long closing a queue's lanes may take: one round trip to the server.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// How long bringing a queue's lanes into shape may take, as another queue waits.
const DECLARE_WITHIN: Duration = Duration::from_secs(10);

/// The queues that were put, as this node knows them by the cluster's settings. None is ever taken away, so what is
/// known stays, also if the settings should be lost: nothing may keep its jobs waiting for that.
#[derive(Debug, Default)]
pub(crate) struct PutQueues {
    queues: RwLock<BTreeMap<Queue, PutQueue>>,
    changed: Notify,
}

impl PutQueues {
    pub(crate) fn all(&self) -> BTreeMap<Queue, PutQueue> {
        self.queues.read().unpoisoned().clone()
    }

    /// Takes in those of these changes that are about queues.
    pub(crate) fn take_in(&self, changes: &[SettingChange]) {
        let put = |change: &SettingChange| match (&change.key, &change.setting) {
            (Some(SettingKey::Queue(queue)), Some(Setting::Queue(put))) => Some((queue.clone(), put.clone())),
            _ => None,
        };
        let put: Vec<(Queue, PutQueue)> = changes.iter().filter_map(put).collect();
        if !put.is_empty() {
            self.queues.write().unpoisoned().extend(put);
            self.changed.notify_one();
        }
    }
}

#[derive(Clone)]
pub(crate) struct PutQueuesPart {
    pub(crate) put: Arc<PutQueues>,
    pub(crate) maker: QueueMaker,
    pub(crate) root: RootAddress,
}

pub(crate) async fn run(part: PutQueuesPart) -> LoopEnd {
    let NodePorts { lifecycle, routing, .. } = &*part.maker.ports;
    if routing.policies.gateway {
        return std::future::pending().await;
    }
    let mut tick = ticks(CHECK_EVERY);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = part.put.changed.notified() => {}
        }
        if lifecycle.is_draining() {
            // The node closes all its queues.
            return std::future::pending().await;
        }
        for (queue, put) in part.put.all() {
            if !routing.policies.queues.contains_key(&queue) {
                part.bring_in_line(&queue, &put).await;
            }
        }
        for queue in part.maker.served.all().iter().filter(|queue| queue.is_closing()) {
            part.end_if_idle(queue).await;
        }
    }
}

impl PutQueuesPart {
    /// Serves a queue as it was put.
    async fn bring_in_line(&self, queue: &Queue, put: &PutQueue) {
        let QueueMaker { ports, served, .. } = &self.maker;
        let wanted = put.is_for(&ports.identity.node).then(|| put.policy());
        let all = served.all();
        let as_before = all.iter().find(|served| served.name == *queue && !served.is_closing());
        if as_before.map(|before| before.policy) == wanted {
            return;
        }
        if let Some(before) = as_before {
            tracing::info!(%queue, "takes no more jobs as it did: the queue was put anew");
            served.close(before);
        }
        let Some(policy) = wanted else { return };
        if let Err(error) = ports.backbone.declare(queue, true, DECLARE_WITHIN).await {
            tracing::warn!(%queue, "the lanes of a queue that was put are not as they should be, trying again: {}", error.with_causes());
            return;
        }
        tracing::info!(%queue, concurrency = policy.concurrency, "serving a queue that was put");
        self.root.send(Order::Serve(self.maker.make(queue, policy)));
    }

    /// Ends a queue that was closed, once its buffered jobs are returned and its running ones have ended.
    async fn end_if_idle(&self, queue: &Arc<Dispatcher>) {
        let is_drained = queue.scheduler.ask(CLOSE_WITHIN, SchedulerMessage::Drain).await.is_some();
        if !is_drained || queue.running() > 0 {
            return;
        }
        let QueueMaker { ports, served, .. } = &self.maker;
        self.root.send(Order::End(Arc::clone(queue)));
        served.remove(queue);
        let name = queue.name.as_str();
        if !served.all().iter().any(|served| served.name.as_str() == name) {
            // Else its gauges would stay as they were last.
            ports.metrics.workers.with_label_values(&[name]).set(0);
            ports.metrics.busy.with_label_values(&[name]).set(0);
        }
    }
}
