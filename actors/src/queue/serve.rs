//! What serves one queue on a node: its state, its supervisor, and the loops beside it. Made here for the queues of the
//! configuration and for those that are put while the node runs.

use std::sync::{Arc, OnceLock};

use longshore_domain::Queue;
use longshore_domain::policy::QueuePolicy;
use ractor::ActorRef;

use crate::attempt::node_ports::NodePorts;
use crate::queue::buffer::JobBuffer;
use crate::queue::dispatcher::{Dispatcher, QueuePart};
use crate::queue::gates::Gates;
use crate::queue::served::ServedQueues;
use crate::queue::supervisor::QueueSupervisor;
use crate::queue::wake_permits::WakePermits;
use crate::queue::{fairness, parking};
use crate::runtime::health::Health;
use crate::runtime::pressure::MachinePressure;
use crate::runtime::supervision::{ChildSpec, Question};

/// What is sent to the root of the tree. It is not about single jobs: as many messages as queues are put.
pub(crate) enum Order {
    Serve(QueueChildren),
    /// End the children of this queue, which is closed and idle.
    End(Arc<Dispatcher>),
    /// Answer, and pass it on to the supervisors of the queues.
    Answer(Question),
}

/// Where orders go. Cheap to clone; before the root has started they go nowhere.
#[derive(Clone, Default)]
pub(crate) struct RootAddress(Arc<OnceLock<ActorRef<Order>>>);

impl RootAddress {
    pub(crate) fn leads_to(&self, root: ActorRef<Order>) {
        let _ = self.0.set(root);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    /// Orders something. Without a root the node ends.
    pub(crate) fn send(&self, order: Order) {
        if let Some(root) = self.0.get() {
            let _ = root.cast(order);
        }
    }
}

/// What serves one queue: its loops, which do not stand in the way of a job, and its supervisor.
pub(crate) struct QueueChildren {
    pub(crate) queue: Arc<Dispatcher>,
    pub(crate) children: [ChildSpec; 3],
}

#[derive(Clone)]
pub(crate) struct QueueMaker {
    pub(crate) ports: Arc<NodePorts>,
    pub(crate) gates: Gates,
    pub(crate) health: Arc<Health>,
    pub(crate) pressure: Arc<MachinePressure>,
    pub(crate) served: Arc<ServedQueues>,
}

impl QueueMaker {
    /// What serves this queue; from now on it counts as served.
    pub(crate) fn make(&self, name: &Queue, policy: QueuePolicy) -> QueueChildren {
        let Self { ports, gates, health, pressure, served } = self;
        ports.metrics.expect_types(name, ports.routing.policies.types.keys());
        let (lease, closing) = (ports.backbone.storage().lease, ports.lifecycle.draining.child_token());
        let buffer = JobBuffer::new(name.clone(), policy, lease, gates.clone(), closing);
        let queue = Dispatcher::new(name.clone(), policy, buffer, WakePermits::of_runtime(), Arc::clone(pressure));
        let queue = Arc::new(queue);
        served.add(Arc::clone(&queue));
        let part = QueuePart { ports: Arc::clone(ports), queue: Arc::clone(&queue), health: Arc::clone(health) };
        let children = [
            ChildSpec::new("parking", part.clone(), parking::run),
            ChildSpec::new("fairness", part.clone(), fairness::run),
            QueueSupervisor::spec(part),
        ];
        QueueChildren { queue, children }
    }
}
