//! Time: jobs that the server publishes later, recurring schedules, and the search for what did not fire.

pub mod recurring;
pub mod schedule;
pub mod sweep;
