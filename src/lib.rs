//! Longshore.
