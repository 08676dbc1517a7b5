//! Jobs in their lanes: pulled, held and settled; looked at and counted; moved out of the way and back.

pub mod backlog;
pub(crate) mod custody;
pub mod delivery;
pub mod forward;
pub mod in_order;
pub mod lane_queries;
pub mod parked;
pub mod poison;
pub mod pull;
pub mod renewal;
mod settle;
pub mod standstill;
