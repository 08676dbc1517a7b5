//! The supervision tree of a Longshore node: who lives, who watches whom, and what is carried out of what the rules
//! decide.
//!
//! The way of a job, in the order of the files: `scheduler` pulls and orders, `assignment` reads, `worker` does one
//! attempt in the steps `begin` → `perform` (or `remote`) → `conclude`, and hands a `commit` to the `committer`, which tells
//! it and acknowledges the delivery last (`carry_out`).
//!
//! Laws: nothing here names `async_nats`, TOML, HTTP or a terminal. A mailbox is mortal: what must not be lost is in
//! JetStream, in a value that goes back when dropped, or in a place that outlives its actor. No actor is called per job.

// The way of a job, and then what is around it.
mod queue;

mod attempt;

mod commit;

mod time;

mod api;

mod cluster;

// What all of them stand on.
mod coalesce;
mod lease_keeper;
mod node;
mod settings;
mod shared;
mod supervision;

pub mod fail_point;
pub mod handler;
pub mod metrics;

pub use handler::{Context, Handler, HandlerError, Handlers, Success};
pub use node::{Error, Node};
pub use settings::Settings;

pub use queue::unresponsive::SPARE_THREADS;

/// This build's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
