//! From the lanes to a worker, once per queue of a node. In the order of a job's way:
//!
//! * `served` has the queues of a node, `serve` makes what each is served by, `supervisor` watches the scheduler and
//!   the workers.
//! * `scheduler` pulls jobs from the lanes, as many as `demand` says, into `buffer`, which keeps them in order.
//!   `high_water_marks` knows from where on a lane's delivery counts can be trusted, `lookahead` which lanes have a
//!   more urgent job on its way. What has waited in the buffer for too long goes back (`returning`).
//! * `gates` say whether a job may start; `blocked` keeps those that may not yet, within the bounds of `held`.
//! * `dispatcher` gives jobs to idle workers (`idle_workers`), as many as there are wake permits (`wake_permits`).
//!   `worker` does one attempt after the other; `unresponsive` finds handlers that block their thread.
//!
//! Beside that way: `parking` takes back jobs that could not start. `fairness` sees that no tenant's flood keeps the
//! others waiting. `due` publishes what comes back into a
//! lane. `lane_guard` removes messages that cannot be read.

pub(crate) mod serve;
pub(crate) mod served;
pub(crate) mod supervisor;

pub(crate) mod blocked;
pub(crate) mod buffer;
pub(crate) mod demand;
pub(crate) mod gates;
pub(crate) mod held;
pub(crate) mod high_water_marks;
pub(crate) mod lookahead;
pub(crate) mod returning;
pub(crate) mod scheduler;

pub(crate) mod dispatcher;
pub(crate) mod idle_workers;
pub(crate) mod unresponsive;
pub(crate) mod wake_permits;
pub(crate) mod worker;

pub(crate) mod due;
pub(crate) mod fairness;

pub(crate) mod lane_guard;
pub(crate) mod parking;

#[cfg(test)]
mod tests;
