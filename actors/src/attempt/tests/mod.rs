//! Attempts against a server in memory: what the record and the delivery say, and what is then written, published and
//! acknowledged. No NATS, no clock, no chance.
//!
//! `server` is what all nodes share, `node` one node. Everything that is sent is noted in the order in which it takes
//! effect, as short lines such as `record running 1/1` or `ack 7`: a test compares them with what it expects.
//!
//! `submit`, `reschedule` and `dead_letter` drive what the API does to the same records: jobs with a key or a time,
//! runs that start at another time, dead letters.

mod node;
mod server;

mod begin;
mod conclude;
mod follow_up;
mod holders;
mod keys;
mod line;
mod lost;
mod order;

mod replay;
mod reschedule;
mod submit;

use std::time::Duration;

use futures_util::FutureExt as _;
use longshore_domain::outcome::Outcome;
use longshore_domain::run::RunResult;
use longshore_domain::{ErrorKind, Failure};

/// Leases of these tests.
const LEASE: Duration = Duration::from_secs(30);

/// The result of something that never has to wait here.
fn done<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("nothing waits for anything outside")
}

fn completed() -> Outcome {
    Outcome::Completed(RunResult::None)
}

fn failed(kind: ErrorKind) -> Outcome {
    Outcome::Failed { failure: Failure::new(kind, "no"), retry_after: None }
}

/// A failure that asks for its retry after so long.
fn failed_for(wait: Duration) -> Outcome {
    Outcome::Failed { failure: Failure::new(ErrorKind::Retryable, "no"), retry_after: Some(wait) }
}
