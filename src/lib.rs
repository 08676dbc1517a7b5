//! Longshore, a distributed job queue on NATS JetStream, as a library: a node of your own with handlers in Rust.
//!
//! The `longshore` program serves jobs by its built-in handlers and by programs that subscribe on NATS. To run a
//! handler inside the node, add it as below: a closure, or a type that implements [`Handler`].
//!
//! ```no_run
//! use longshore::{Configuration, Context, HandlerError, Node, handlers, nats};
//! use serde_json::{Value, json};
//!
//! async fn render(context: Context) -> Result<Value, HandlerError> {
//!     let report: Value = context.json()?; // a payload that is not JSON fails for good
//!     Ok(json!({ "title": report["title"], "attempt": context.attempt }))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let handlers = handlers::built_in().with("report.render", render);
//!     let configuration = Configuration::load(Some("longshore.toml".as_ref()), &[], &handlers)?;
//!     let connection = nats::Options::from_environment()?.connection()?;
//!     let mut node = Node::start(configuration.settings().clone(), connection, handlers).await?;
//!     tokio::select! {
//!         error = node.failed() => return Err(error.into()),
//!         _ = tokio::signal::ctrl_c() => {}
//!     }
//!     Ok(node.drain().await?)
//! }
//! ```

pub mod config;
pub mod handlers;
pub mod http;
mod json_schema;

pub use config::{Configuration, nats};
pub use json_schema::{JsonSchema, SchemaError};
pub use longshore_actors::{Context, Handler, HandlerError, Handlers, Node, Settings, Success};
pub use longshore_backbone::Connection;
