//! Jobs that waited for their time.
//!
//! * `timekeeper` moves due jobs into their lanes: `closed_lanes` knows the lanes that take none now.
//! * `sweep` recovers jobs whose schedule did not fire.
//! * `firing` makes runs of what is due of a recurring schedule; `recurring` keeps these schedules as the configuration
//!   declares them, and recovers lost ticks; `schedules` are their endpoints.

pub(crate) mod closed_lanes;
pub(crate) mod firing;
pub(crate) mod recurring;
pub(crate) mod schedules;
pub(crate) mod sweep;
pub(crate) mod timekeeper;
