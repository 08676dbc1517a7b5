//! The only room of Longshore that knows NATS.

pub mod settings;

pub use settings::{Connection, Storage};
