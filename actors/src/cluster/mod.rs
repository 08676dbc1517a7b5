//! What a node publishes to the other nodes, and does for all of them.
//!
//! * That it is there: `presence`, `node_name`, `readiness` with `node_health` (who may read it), `tree_answers`
//!   (whether its supervisors answer).
//! * What it learns from the cluster: `discovery` (of handlers), `served_types` (which were ever online),
//!   `run_time_settings`, `put_queues`, `counts` (the cluster's jobs, for monitoring), `waiting` (admission by how
//!   many wait).
//! * What it does for others: `offered_handlers` runs its own handlers for nodes that lack them.
//! * What it watches: `clock_watch` (keeps the cluster's time, and sees how far the machine's clock is off),
//!   `dlq_watch` and `records_watch` (how full they are), `stream_watch` (streams that others deleted or altered; makes
//!   again what decides nothing), `unserved` (queues without a node) with `standstill` (lanes that deliver nothing),
//!   `pressure_watch` by `machine_load` (the node takes fewer jobs while its machine is short of memory or processor).
//! * `event_files` writes the event log into files of this node.

use std::sync::Arc;

use longshore_backbone::Backbone;

use crate::metrics::Metrics;
use crate::runtime::health::Health;
use crate::runtime::identity::Identity;
use crate::runtime::system_events::SystemEvents;

pub(crate) mod clock_watch;
pub(crate) mod counts;
pub(crate) mod discovery;
pub(crate) mod dlq_watch;
pub(crate) mod event_files;
mod machine_load;
pub(crate) mod node_health;
pub(crate) mod node_name;
pub(crate) mod offered_handlers;
pub(crate) mod presence;
pub(crate) mod pressure_watch;
pub(crate) mod put_queues;
pub(crate) mod readiness;
pub(crate) mod records_watch;
pub(crate) mod run_time_settings;
pub(crate) mod served_types;
mod standstill;
pub(crate) mod stream_watch;
pub(crate) mod tree_answers;
pub(crate) mod unserved;
pub(crate) mod waiting;

/// What a watch of what all nodes share may use: it looks, and says what it finds.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) backbone: Backbone,
    pub(crate) identity: Arc<Identity>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) system_events: SystemEvents,
}
