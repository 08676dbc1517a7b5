//! Streams, buckets and consumers: their wanted shapes, how they get them, and what is wrong with them while nodes run.

pub(crate) mod format;
pub(crate) mod info;
pub(crate) mod provision;
pub mod remake;
pub mod shape;
pub mod snapshot;
pub mod stream_faults;
pub(crate) mod wanted;
