//! A private nats-server: found, provisioned, started, watched and ended.
//!
//! Read in this order: [`find_or_provision`] (which binary), [`Options`] and [`Server`] (one server and its life), and
//! below them [`Process`] (a child that cannot outlive this process) and [`Log`] (its output, and waiting for more of
//! it).
//!
//! This crate knows the nats-server *program* and nothing else: it does not speak NATS, knows no subject and no stream,
//! and ends only what it started itself, by its own handle. `longshore dev`, the tests and the benches use it.
//!
//! Unix only: it is built on process groups and signals.

mod error;
mod find;
mod log;
mod options;
mod process;
mod provision;
mod server;
mod version;

pub use error::Error;
pub use find::find_or_provision;
pub use log::Log;
pub use options::Options;
pub use process::{LineSink, Process, Signal};
pub use server::{Server, free_port};
pub use version::{OLDEST, Version};
