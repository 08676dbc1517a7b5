//! The connections to NATS: each survives whatever it receives, and says what the server refused or left unanswered.
//! Nothing here knows a job or a stream.

pub(crate) mod address;
pub(crate) mod filter;
pub(crate) mod frames;
pub mod link;
mod options;
pub(crate) mod refusals;
pub(crate) mod silent_writes;
pub(crate) mod subscription;
pub(crate) mod taken_subject;
