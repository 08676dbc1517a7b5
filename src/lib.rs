//! Longshore.

pub mod config;
pub mod handlers;
