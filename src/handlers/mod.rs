//! The handlers that come with Longshore, inside the node.
//!
//! Each is an ordinary [`longshore_actors::Handler`] and can do no more than a handler of the user's own.

use longshore_actors::Handlers;

mod trial;

/// The handlers that every node has: `noop`, `echo`, `sleep` and `fail`.
#[must_use]
pub fn built_in() -> Handlers {
    trial::add(Handlers::new())
}
