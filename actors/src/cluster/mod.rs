//! What a node tells the other nodes, and does for all of them: `presence` and `node_name`; `discovery` of handlers;
//! `run_time_settings` and `put_queues`; `system_events`; `readiness`, `counts` and `waiting` (admission by the number of
//! waiting jobs); `dlq_watch`, `records_watch`, `stream_watch` and `unserved`; `tree_answers`; `pressure_watch` by
//! `machine_load`.

pub(crate) mod circuit_breaker;
pub(crate) mod counts;
pub(crate) mod discovery;
pub(crate) mod node_name;
pub(crate) mod offered_handlers;
pub(crate) mod presence;
pub(crate) mod put_queues;
pub(crate) mod readiness;
pub(crate) mod run_time_settings;
pub(crate) mod system_events;
pub(crate) mod waiting;

pub(crate) mod dlq_watch;
pub(crate) mod event_files;
mod machine_load;
pub(crate) mod pressure_watch;
pub(crate) mod records_watch;
pub(crate) mod stream_watch;
pub(crate) mod tree_answers;
pub(crate) mod unserved;
