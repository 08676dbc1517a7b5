//! Due jobs: `timekeeper` moves them into their lanes (`due` is the publish, `closed_lanes` the lanes that take none
//! now); `sweep` recovers those whose schedule did not fire, `stranded` says which runs nothing can bring on. Recurring schedules: `firing` makes runs of what is due,
//! `recurring` keeps them as the configuration declares them and recovers lost ticks.

pub(crate) mod closed_lanes;
pub(crate) mod due;
pub(crate) mod firing;
pub(crate) mod recurring;
pub(crate) mod stranded;
pub(crate) mod sweep;
pub(crate) mod timekeeper;
