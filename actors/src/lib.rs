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
//! * `limits`, `concurrency`: what this node has of rate limits and concurrency limits, and the actors that get it.
//! * `trace`, `metrics`, `observer`: what monitoring sees.
//! * `streams`: events for clients that follow them, from the event log.
//!
//! What all of these use: `shared` (small values, each with one purpose), `lease_keeper` (renews the leases of running
//! jobs), `supervision` (loops as actors, limits on restarts), `address` (messages to them), `ports` (what an attempt
//! asks of all that is outside it), `request` (what a submission says, read), `coalesce` (lets other ready tasks run
//! first).
//!
//! `node` starts and drains, `tree` is the root of the supervision tree, `parts` says what each part is given.
//!
//! Laws: nothing here names `async_nats`, TOML, HTTP or a terminal. A mailbox is mortal: what must not be lost is in
//! JetStream, in a value that returns the job when it is dropped, or in state that outlives its actor. No actor is
//! called per job.

// The way of a job, then the parts beside it.
mod queue;

mod attempt;

mod commit;

mod time;

mod api;
mod service;

mod batches;
mod cluster;
mod pull;

// What all of them use.
mod address;
mod audit;
mod coalesce;
mod concurrency;
mod lease_keeper;
mod limits;
mod node;
mod observer;
mod parts;
mod ports;
mod request;
mod routing;
mod settings;
mod shared;
mod streams;
mod supervision;
mod tree;
mod webhooks;

#[cfg(test)]
mod tests;

pub mod fail_point;
pub mod handler;
pub mod metrics;
pub mod trace;

pub use api::limits::TenantRate;
pub use attempt::progress::HANDLER_LOG;
pub use handler::{Context, Handler, HandlerError, Handlers, Success, typed};
pub use node::{Error, Node};
pub use observer::Observer;
pub use service::handle::ApiHandle;
pub use settings::{
    AuditFile, DeclaredSchedules, EventFile, LogControl, Posted, PressureSettings, Settings, WEBHOOK_WITHIN,
    WebhookCaller, WebhookSettings,
};
pub use streams::{EventStream, EventStreams, From as StreamFrom, Logline, Position, Step};

pub use queue::unresponsive::SPARE_THREADS;

/// This build's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
