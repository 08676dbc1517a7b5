//! What Longshore promises, one file each. Every test drives the real binary against a nats-server of its own.
//!
//! A test's name is a sentence that is true of the product; it waits on what is told, never on time; failing, it tells
//! the story of its run. A regression goes to the promise that was broken.
#![allow(clippy::unwrap_used, reason = "this whole program is tests; clippy excepts only the functions marked as such")]

mod main_job; // published with any NATS client, it runs, and its story is told in order

use longshore_harness::World;

/// A world whose nodes are the binary that cargo has just built.
async fn world() -> World {
    longshore_harness::use_binary(env!("CARGO_BIN_EXE_longshore"));
    World::new().await
}
