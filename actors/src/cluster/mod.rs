//! What a node says to the others, and does for all of them.

pub(crate) mod discovery;
pub(crate) mod node_name;
pub(crate) mod presence;
pub(crate) mod system_events;

pub(crate) mod dlq_watch;
pub(crate) mod records_watch;
