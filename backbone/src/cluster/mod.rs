//! What nodes know of one another and share: presence, questions, limits, breakers, run-time settings, webhooks,
//! the types that were ever served.

pub mod api_keys;
pub mod breakers;
pub mod bucket_space;
pub mod concurrency;
pub mod control;
pub mod deliveries;
pub mod holders;
pub mod limits;
pub mod nodes;
pub mod questions;
pub mod run_time_settings;
pub mod served_types;
pub mod webhooks;
