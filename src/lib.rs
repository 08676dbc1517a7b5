//! Longshore, a distributed job queue on NATS JetStream, as a library: a node with handlers of one's own in Rust
//! ([`node()`]), and a client ([`Client`]).
//!
//! ```no_run
//! use longshore::{Context, HandlerError, RunError, typed};
//!
//! #[derive(serde::Deserialize)]
//! struct Report { pages: u32 }
//!
//! async fn render(report: Report, context: Context) -> Result<String, HandlerError> {
//!     for page in 1..=report.pages {
//!         context.progress(&serde_json::json!({"page": page})).await;
//!     }
//!     let text = tokio::fs::read_to_string("template.txt").await?; // any error: tried again later
//!     Ok(text)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), RunError> {
//!     longshore::node().handler("report.render", typed(render)).run_until_signal().await
//! }
//! ```
//!
//! Nodes of one queue may have different handlers: where a node lacks one, it has the job done by a node that has it.
//!
//! Features: `program` (default) is what the `longshore` program needs, `http` are probes and metrics, `traces` are
//! those by OTLP. A program with handlers of its own takes `default-features = false`, and `http` or `traces` if it
//! wants those.

mod audit_files;
mod client;
pub mod config;
pub mod handlers;
#[cfg(feature = "http")]
pub mod http;
mod json_schema;
#[cfg(feature = "http")]
mod outbound;
mod own_node;
pub mod signals;
#[cfg(feature = "traces")]
pub mod traces;
#[cfg(feature = "http")]
mod webhooks;

pub use client::{Client, ClientError, Event, NewJob};
pub use config::{Configuration, nats};
pub use json_schema::{JsonSchema, SchemaError};
pub use longshore_actors::{Context, Handler, HandlerError, Handlers, Node, Settings, Success, typed};
pub use longshore_backbone::Connection;
pub use longshore_backbone::wire::api::{ApiError, Record, SubmitRequest, Submitted};
pub use longshore_domain::{RunId, RunState};
pub use own_node::{NodeBuilder, RunError, RunningNode, node};
