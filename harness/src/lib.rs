//! Real servers, real nodes and faults for tests, benches and chaos runs; and the checker that judges the result.
//!
//! A [`World`] is one temporary folder with its own nats-server and a client connected to it. A test uses the world to
//! start [`Node`]s (the real binary, started with `longshore serve`) and remote [`Handler`]s, to publish jobs, and to
//! read everything that can be observed: run records, the event log, live events, dead letters, the depth of lanes.
//! [`history`] takes all of that and reports what is wrong with it; it is pure and knows nothing of the other modules.
//!
//! Its law: it reads the wire contract and nothing else. It uses no type, name or constant of the product, so that a
//! mistake in the product cannot hide behind the same mistake in its test. For the same reason it does not use `toml`:
//! settings are text.
//!
//! The methods that a test calls panic when they cannot keep their promise, and print what is known of the run so far.
//! A handle that is dropped, also by a panic, ends what it started; if the test's process is killed, everything it
//! started dies with it.
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

mod api;
mod bytes;
pub mod chaos;
mod cluster;
pub mod collector;
mod connect;
mod eventually;
pub mod false_clock;
pub mod history;
pub mod http;
mod live;
pub mod load;
mod node;
mod observe;
mod proxy;
mod publish;
mod read;
mod remote;
pub mod repeated_calls;
mod run_report;
mod scrape;
mod settings;
mod slow_link;
pub mod standstill;
mod stored;
mod usage;
mod wire;
mod world;

pub use api::ApiError;
pub use bytes::Bytes;
pub use cluster::{SERVERS, ServerCluster, free_ports};
pub use connect::ROOM;
pub use eventually::eventually;
pub use live::{Live, LiveEvents};
pub use longshore_natsd as natsd;
pub use node::{Node, NodeBuilder, Refusal};
pub use proxy::{Direction, Proxy};
pub use publish::{Publish, Receipt, Refused};
pub use read::{Extent, Line, Reader};
pub use remote::{Asked, Handler, HandlerBuilder, Job, Reply};
pub use run_report::reads;
pub use scrape::{Scrape, Series};
pub use slow_link::SlowLink;
pub use stored::{DeadLetter, Logged};
pub use usage::Usage;
pub use wire::{Event, EventName, Failure, Record, Tried};
pub use world::{World, use_binary};
