//! What the parts of a node stand on: actors and small values, each with one purpose. The node makes the values and
//! gives each part those that it needs and no others, so that a part's fields say what it may do. There is no value
//! that has them all.
//!
//! * Actors: `supervision` (loops as actors, limits on restarts), `address` (messages to them), `coalesce` (lets other
//!   ready tasks run first), `fail_point` (where a test has the node die).
//! * The node itself: `identity`, `clock` (what time it is), `lifecycle` (whether it drains), `pressure` (how short its
//!   machine is of memory and processor), `health`, and what it says: `system_events`, `log_run`.
//! * Jobs that wait: their `kind`, `gate_news` (some may start now), `permits` for those that are parked, which
//!   `park_permits` gives, `deferred` (why one was put off).

use std::sync::{LockResult, PoisonError};

use longshore_domain::{SmolStr, format_smolstr};

pub(crate) mod address;
pub(crate) mod coalesce;
pub mod fail_point;
pub(crate) mod supervision;

pub(crate) mod clock;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod lifecycle;
pub(crate) mod log_run;
pub(crate) mod pressure;
pub(crate) mod system_events;

pub(crate) mod deferred;
pub(crate) mod gate_news;
pub(crate) mod kind;
pub(crate) mod last_added;
pub(crate) mod park_permits;
pub(crate) mod permits;

pub(crate) use clock::now;

/// This build's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a lock guards, also after a holder of it panicked.
pub(crate) trait Unpoisoned {
    type Guard;

    fn unpoisoned(self) -> Self::Guard;
}

impl<G> Unpoisoned for LockResult<G> {
    type Guard = G;

    fn unpoisoned(self) -> G {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A seal, or the token of an attempt: proves that a node wrote a message of a run, or that a caller had that message,
/// because it cannot be guessed.
pub(crate) fn new_seal() -> SmolStr {
    format_smolstr!("{:016x}", rand::random::<u64>())
}
