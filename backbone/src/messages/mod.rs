//! Single messages of JetStream: published and confirmed, read, listed, deleted. Nothing here knows what they mean.

pub(crate) mod bucket;
pub(crate) mod get;
pub(crate) mod raw;
pub mod refusal;
pub mod request;
pub mod scan;
pub(crate) mod size_limits;
pub mod window;
