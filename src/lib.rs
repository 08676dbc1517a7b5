//! Longshore.

pub mod config;
