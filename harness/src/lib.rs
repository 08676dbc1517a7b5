//! Real servers, real nodes and faults, for tests, benches and chaos runs; and the checker that judges what came of them.
//!
//! A [`World`] is one temporary folder with a nats-server of its own and a client to it. From it come [`Node`]s (the real
//! binary, started with `longshore serve`), published jobs, remote [`Handler`]s, and everything that can be observed:
//! run records, the event log, live events, dead letters, the depth of lanes. [`history`] takes all of that and says
//! what is wrong with it; it is pure and knows nothing of the rest.
//!
//! Its law: it reads the wire contract and nothing else. No type, name or constant of the product is used here, so that
//! a mistake in the product cannot hide behind the same mistake in its test. Hence also no `toml`: settings are text.
//!
//! The verbs of a test panic when what they promise does not come to pass, with the story so far. Everything a test
//! started is ended by its own handle when dropped, also by a panic, and dies with the test's process if that is killed.
//!
//! ```no_run
//! # use longshore_harness::World;
//! # use serde_json::json;
//! # async fn test() {
//! let world = World::new().await;
//! let node = world.node().with("types.flaky", "handler = 'fail'").start().await;
//! let run = world.publish("flaky").json(json!({"times": 2})).await;
//!
//! let record = world.wait(&run).await;
//!
//! assert_eq!(record.state, "completed");
//! assert_eq!(record.attempt, 3);
//! # }
//! ```

pub mod again;
mod api;
mod bytes;
pub mod chaos;
mod cluster;
mod eventually;
pub mod history;
mod live;
pub mod load;
mod node;
mod observe;
mod proxy;
mod publish;
mod read;
mod remote;
mod settings;
mod slow_link;
pub mod standstill;
mod story;
mod usage;
mod wire;
mod world;

pub use api::ApiError;
pub use bytes::Bytes;
pub use cluster::{SERVERS, ServerCluster};
pub use eventually::eventually;
pub use live::{Live, LiveEvents};
pub use longshore_natsd as natsd;
pub use node::{Node, NodeBuilder, Refusal};
pub use observe::{Letter, Logged};
pub use proxy::{Direction, Proxy};
pub use publish::{Publish, Receipt, Refused};
pub use read::{Extent, Reader};
pub use remote::{Asked, Handler, HandlerBuilder, Job, Reply};
pub use slow_link::SlowLink;
pub use story::reads;
pub use usage::Usage;
pub use wire::{Event, EventName, Failure, Record, Tried};
pub use world::{ROOM, World, use_binary};
