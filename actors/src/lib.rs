//! The supervision tree of a Longshore node. It carries out what the rules in `domain` decide, by means of `backbone`.
//!
//! The modules stand in the order of a job's way:
//!
//! * `queue`: from the lanes to a worker. `scheduler` pulls deliveries and reads each as an `assignment`, `buffer`
//!   keeps them in order, `gates` say whether a job may start, `dispatcher` gives it to an idle `worker`.
//! * `attempt`: one attempt, in the steps `begin` → `announce` → `perform` (or `remote`) → `conclude`.
//! * `commit`: what was decided. `committer` stores the record and publishes the events; `follow_up` writes the
//!   schedule, the parked job or the dead letter, and acknowledges the delivery last.
//!
//! Beside that way:
//!
//! * `time`: moves due jobs into their lanes and recovers schedules that did not fire.
//! * `api`: answers clients.
//! * `cluster`: publishes this node's presence to the others, and watches the storage that all nodes share.
//!
//! * `limits`: rate limits, concurrency limits, circuit breakers, pauses: what this node has of them, and the actors
//!   that get it.
//! * `handlers`: what they are, and which of them is a job's.
//! * `trace`, `metrics`: what monitoring sees.
//! * `streams`: events for clients that follow them, from the event log.
//! * `node` starts and drains; in it, `tree` is the root of the supervision tree, and `parts` says what each part is
//!   given.
//!
//! What all of these use: `runtime` (actors, and small values, each with one purpose), `lease_keeper` (renews the
//! leases of running jobs), `ports` (what an attempt asks of all that is outside it), `request` (what a submission
//! says, read).
//!
//! Laws: nothing here names `async_nats`, TOML, HTTP or a terminal. A mailbox is mortal: what must not be lost is in
//! JetStream, in a value that returns the job when it is dropped, or in state that outlives its actor. No actor is
//! called per job.

// The way of a job, then the parts beside it.
mod queue;

mod attempt;

mod commit;

mod limits;
mod time;

mod api;
mod service;

mod batches;
mod cluster;
mod pull;
mod streams;
mod webhooks;

mod node;

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

pub use api::limits::TenantRate;
pub use attempt::progress::HANDLER_LOG;
pub use handlers::handler::{self, Context, Handler, HandlerError, Handlers, Success, typed};
pub use node::observer::Observer;
pub use node::{Error, Node};
pub use runtime::fail_point;
pub use service::handle::ApiHandle;
pub use settings::{
    AuditFile, DeclaredSchedules, EventFile, LogControl, Posted, PressureSettings, Settings, WEBHOOK_WITHIN,
    WebhookCaller, WebhookSettings,
};
pub use streams::{EventStream, EventStreams, From as StreamFrom, Logline, Position, StreamItem};

pub use queue::unresponsive::SPARE_THREADS;

/// This build's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
