//! One attempt: `assignment` reads a delivery as a job, `begin` claims it (with `keys`, `line` and
//! `order` of a concurrency key, `holders` and `cancelled`), `announce` publishes its start, `perform` calls the handler (`remote` if the handler is elsewhere; `clock` has its
//! time limit; `progress` takes what it reports, from a handler inside the node by `reporter`) and `conclude` has its end
//! judged. `running` holds its state.

pub(crate) mod assignment;
pub(crate) mod running;

pub(crate) mod begin;
pub(crate) mod cancelled;
pub(crate) mod holders;
pub(crate) mod keys;
pub(crate) mod line;
pub(crate) mod order;

pub(crate) mod announce;
pub(crate) mod clock;
pub(crate) mod perform;
pub(crate) mod progress;
pub(crate) mod remote;
pub(crate) mod reporter;

pub(crate) mod conclude;

#[cfg(test)]
mod tests;
