//! One attempt: `assignment` reads a delivery as a job, `begin` claims it, `announce` publishes its start, `perform` calls
//! the handler (`remote` where that is elsewhere) and `conclude` has its end judged.

pub(crate) mod assignment;
pub(crate) mod running;

pub(crate) mod begin;
pub(crate) mod cancelled;
pub(crate) mod holders;
pub(crate) mod keys;

pub(crate) mod announce;
pub(crate) mod perform;
pub(crate) mod progress;
pub(crate) mod remote;

pub(crate) mod conclude;
