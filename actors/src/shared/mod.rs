//! What several parts of a node use: small values, each with one purpose. The node makes them (`node.rs`) and gives
//! each part those that it needs and no others, so that a part's fields say what it may do. There is no value that has
//! them all.

use longshore_domain::{SmolStr, format_smolstr};

// The node itself: `lifecycle` says whether it drains, `pressure` how short its machine is of memory and processor,
// `clock` what time it is.
pub(crate) mod clock;
pub(crate) mod health;
pub(crate) mod identity;
pub(crate) mod lifecycle;
pub(crate) mod pressure;
pub(crate) mod system_events;

// Where jobs go, and how many at once. `breakers` and `run_time_settings` are what the node knows of its circuit
// breakers and of pauses, and for how long that counts; `faults` are those on purpose; `served_types` is which types
// were ever served; `shed` is how much time jobs with a deadline need, and how many came too late.
pub(crate) mod breakers;
pub(crate) mod capacity;
pub(crate) mod discovery;
pub(crate) mod faults;
pub(crate) mod gate_news;
pub(crate) mod kind;
pub(crate) mod log_run;
pub(crate) mod park_permits;
pub(crate) mod permits;
pub(crate) mod run_time_settings;
pub(crate) mod served_types;
pub(crate) mod shed;

// What a node remembers of runs, and of other nodes' calls of its handlers (`offered_calls`).
pub(crate) mod deferred;
pub(crate) mod first_claims;
pub(crate) mod offered_calls;
pub(crate) mod put_queues;
pub(crate) mod recently_cancelled;
pub(crate) mod unclear_claims;
pub(crate) mod unstored_ends;
pub(crate) mod waits;

/// A seal, or the token of an attempt: proves that a node wrote a message of a run, or that a caller had that message,
/// because it cannot be guessed.
pub(crate) fn new_seal() -> SmolStr {
    format_smolstr!("{:016x}", rand::random::<u64>())
}

pub(crate) use clock::now;
