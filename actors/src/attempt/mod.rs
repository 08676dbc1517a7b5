//! One attempt, in the order of its steps:
//!
//! * `assignment` reads a delivery as a job; `running` holds the attempt's state.
//! * `begin` starts it or claims it first: with `keys` (idempotency), `line` and `order` (of a concurrency key),
//!   `holders` (who else may work on it) and `cancelled`.
//! * `announce` publishes its start.
//! * `perform` calls the handler, or `remote` if the handler is elsewhere; `watch` waits for it. `stop` says what ends
//!   its work and how the attempt ends then, `clock` has its time limit, `progress` takes what it reports, from a
//!   handler inside the node by `reporter`, `steps` what it has finished. `faults` is `perform` while faults on purpose
//!   are set.
//! * `conclude` has its end judged.
//!
//! `permits` are what its gates gave it; `ports` is what the steps ask of their node, `node_ports` a real node's
//! answers.

pub(crate) mod assignment;
pub(crate) mod node_ports;
pub(crate) mod permits;
pub(crate) mod ports;
pub(crate) mod running;

pub(crate) mod begin;
pub(crate) mod cancelled;
pub(crate) mod holders;
pub(crate) mod keys;

pub(crate) mod announce;
pub(crate) mod clock;
mod faults;
pub(crate) mod perform;
pub(crate) mod progress;
pub(crate) mod remote;
pub(crate) mod reporter;
pub(crate) mod steps;
pub(crate) mod stop;
pub(crate) mod watch;

pub(crate) mod conclude;

pub(crate) mod first_claims;
pub(crate) mod recently_cancelled;
pub(crate) mod shed;
pub(crate) mod unclear_claims;
pub(crate) mod unstored_ends;

#[cfg(test)]
mod tests;
