//! Due jobs: `timekeeper` moves them into their lanes (`due` is the publish, `closed_lanes` the lanes that take none
//! now); `sweep` recovers those whose schedule did not fire.

pub(crate) mod closed_lanes;
pub(crate) mod due;
pub(crate) mod sweep;
pub(crate) mod timekeeper;
