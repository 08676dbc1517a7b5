//! The supervision tree of a Longshore node: who lives, who watches whom, and what is carried out of what the rules
//! decide.
//!
//! The way of a job, in the order of the files: `scheduler` pulls and orders, `assignment` reads, `worker` does one
//! attempt in the steps `begin` → `perform` (or `remote`) → `conclude`, and hands a `story` to the `herald`, which tells
//! it and acknowledges the delivery last (`carry_out`).
//!
//! Laws: nothing here names `async_nats`, TOML, HTTP or a terminal. A mailbox is mortal: what must not be lost is in
//! JetStream, in a value that goes back when dropped, or in a place that outlives its actor. No actor is called per job.

pub mod handler;

mod settings;

mod node;

mod supervision;

mod blocked;
mod parking;
mod queue;
mod ready;
mod turns;
mod waits;

mod gather;
mod marks;
mod pool;
mod scheduler;
mod slots;

mod ask;
mod assignment;

mod worker;

mod begin;
mod deaf;
mod holders;
mod keys;
mod perform;
mod progress;
mod remote;

mod coming;
mod conclude;

mod story;

mod batches;
mod cancel;
mod carry_out;
mod herald;

mod lane_guard;
mod lease_keeper;
mod lines;

mod closed_lanes;
mod due;
mod sweep;
mod timekeeper;

mod control;
mod intake;
mod runs;

mod dlq;
mod dlq_watch;
mod erase;
mod replay;

mod namesake;
mod presence;

mod shared;

pub mod fail_point;
pub mod metrics;

pub use handler::{Context, Handler, HandlerError, Handlers, Success};
pub use node::{Error, Node};
pub use settings::Settings;

pub use deaf::SPARE_THREADS;

/// This build's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
