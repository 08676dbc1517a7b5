//! What happens at a time: due jobs into their lanes (`timekeeper`), and those whose schedule did not fire (`sweep`).

pub(crate) mod closed_lanes;
pub(crate) mod due;
pub(crate) mod sweep;
pub(crate) mod timekeeper;
