//! A private nats-server: found, provisioned, started, watched and ended.
//!
//! Read in this order: [`find_or_provision`] (which binary), [`Options`] and [`Server`] (one server and its life), and
//! below them [`Process`] (a child that cannot outlive us) and [`Log`] (what it said, and waiting for it to say more).
//!
//! This room knows the nats-server *program* and nothing else: it speaks no NATS, knows no subject and no stream, and
//! ends only what it started itself, by its own handle. `longshore dev`, the tests and the benches stand on it.
//!
//! Unix only: process groups and signals are what it is made of.

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
pub use server::Server;
pub use version::{OLDEST, Version};
