//! The NATS micro services that a node is: the API, and its own handlers for nodes that lack them.

pub(crate) mod micro;
pub mod offers;
pub mod pulls;
pub mod service;
mod unread;

pub(crate) use unread::UnreadReplies;
