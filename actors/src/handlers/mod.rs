//! Handlers: what they are (`handler`), and where jobs find theirs. `routing` knows those of this node, `discovery`
//! those that serve from elsewhere with their `capacity`, `served_types` which types were ever served, `offered_calls`
//! the calls of this node's handlers by other nodes.

pub(crate) mod capacity;
pub(crate) mod discovery;
pub mod handler;
pub(crate) mod offered_calls;
pub(crate) mod routing;
pub(crate) mod served_types;
