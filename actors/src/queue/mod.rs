//! From the lanes to a worker: one room for each queue of a node.
//!
//! `supervisor` watches the scheduler and the workers. `scheduler` pulls jobs from the lanes into `buffer`, which keeps
//! them in order, with `lookahead`; `gates` say whether one may start, and `blocked` keeps those that may not yet; `dispatcher` gives them to idle workers, as many as there are wake
//! permits for; `worker` does one attempt after the other. `parking` brings back jobs that could not start, `lane_guard`
//! takes out what cannot be read, `unresponsive` finds handlers that block their thread.

pub(crate) mod supervisor;

pub(crate) mod blocked;
pub(crate) mod buffer;
pub(crate) mod gates;
pub(crate) mod high_water_marks;
pub(crate) mod lookahead;
pub(crate) mod scheduler;

pub(crate) mod dispatcher;
pub(crate) mod idle_workers;
pub(crate) mod unresponsive;
pub(crate) mod wake_permits;
pub(crate) mod worker;

pub(crate) mod lane_guard;
pub(crate) mod parking;
