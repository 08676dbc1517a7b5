//! Remote handlers: how they are called, what they send back, and what they announce of themselves.

mod announced;
mod calls;
mod open_calls;
mod receivers;
mod reply;
mod second_replies;

pub use announced::{Announced, falls_under};
pub use calls::{Call, Caller, SignalAnswer};
pub use open_calls::{Reply, Signal, SignalKind};
pub use reply::{HandlerReply, ServiceError};

pub(crate) use announced::{HEARTBEAT, SLOTS};
pub(crate) use second_replies::SecondReplies;
