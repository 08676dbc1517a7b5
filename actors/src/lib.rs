//! The supervision tree of a Longshore node. It carries out what the rules in `domain` decide, by means of `backbone`.
//! ARCHITECTURE.md says what each folder holds, and by which files a job goes.
//!
//! Laws: nothing here names `async_nats`, TOML, HTTP or a terminal. A mailbox is mortal: what must not be lost is in
//! JetStream, in a value that returns the job when it is dropped, or in state that outlives its actor. No actor is
//! called per job.

// The way of a job, then the parts beside it.
mod attempt;
mod commit;
mod queue;

mod api;
mod batches;
mod cluster;
mod limits;
mod node;
mod pull;
mod service;
mod streams;
mod time;
mod webhooks;

// What all of them use.
mod audit;
mod handlers;
mod lease_keeper;
mod ports;
mod request;
mod runtime;
mod settings;

#[cfg(test)]
mod tests;

pub mod metrics;
pub mod trace;

pub use api::keys::KeyCheck;
pub use api::limits::TenantRate;
pub use attempt::progress::HANDLER_LOG;
pub use handlers::handler::{self, Context, Handler, HandlerError, Handlers, Success, typed};
pub use node::observer::Observer;
pub use node::{Error, Node};
pub use queue::unresponsive::SPARE_THREADS;
pub use runtime::{VERSION, fail_point};
pub use service::handle::ApiHandle;
pub use settings::{
    AuditFile, DeclaredSchedules, EventFile, LogControl, Posted, PressureSettings, Settings, WEBHOOK_WITHIN,
    WebhookCaller, WebhookSettings,
};
pub use streams::{EventStream, EventStreams, From as StreamFrom, Logline, Position, StreamItem};
pub use time::schedules::check_schedule;
