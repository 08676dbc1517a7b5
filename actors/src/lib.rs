//! The supervision tree of a Longshore node.

pub mod handler;
mod node;
mod settings;

pub use handler::{Context, Handler, HandlerError, Handlers, Success};
pub use node::{Error, Node};
pub use settings::Settings;
