//! From the lanes to a worker, once per queue of a node.
//!
//! `served` has the queues of a node, `serve` makes what each is served by. `supervisor` watches the scheduler and the
//! workers. `scheduler` pulls jobs from the lanes into `buffer`, which keeps them in order, and puts back what has waited
//! there for too long (`returning`); `lookahead` knows which lanes have a more urgent job on its way, and
//! `high_water_marks` from where on a lane's delivery counts can be trusted. `gates` say whether a job may start, and `blocked` keeps those that may not
//! yet, within the bounds of `held`. `dispatcher` gives jobs to idle workers (`idle_workers`), as many as there are wake permits (`wake_permits`);
//! `worker` does one attempt after the other, and `unresponsive` finds handlers that block their thread. `parking`
//! takes back jobs that could not start, and `lane_guard` removes messages that cannot be read. `fairness` sees that no
//! tenant's flood keeps the others waiting: by what it knows of `deliveries` it has jobs moved `forward`.

pub(crate) mod serve;
pub(crate) mod served;
pub(crate) mod supervisor;

pub(crate) mod blocked;
pub(crate) mod buffer;
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

pub(crate) mod deliveries;
pub(crate) mod fairness;
pub(crate) mod forward;

pub(crate) mod lane_guard;
pub(crate) mod parking;
