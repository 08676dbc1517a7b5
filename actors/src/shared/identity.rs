//! Who this node is: its name, this start of it, and the tokens of its writes. It does nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use longshore_domain::{SmolStr, Timestamp, format_smolstr};

use crate::shared::now;

/// A writer's name has so many bits less than 64, so that its first four billion tokens are stored inline (`SmolStr`).
const WRITER_SPARES: u32 = 8;

/// A node, since it was started.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) node: SmolStr,
    /// Identifies this start of the node.
    pub(crate) instance: String,
    pub(crate) started_at: Timestamp,
    writer: SmolStr,
    writes: AtomicU64,
}

impl Identity {
    /// A node of this name that starts now.
    pub(crate) fn new(node: SmolStr) -> Self {
        Self {
            node,
            instance: uuid::Uuid::now_v7().simple().to_string(),
            started_at: now(),
            writer: format_smolstr!("{:x}", rand::random::<u64>() >> WRITER_SPARES),
            writes: AtomicU64::new(0),
        }
    }

    /// A write token that no other write has, of this process or any other.
    pub(crate) fn token(&self) -> SmolStr {
        format_smolstr!("{}-{:x}", self.writer, self.writes.fetch_add(1, Ordering::Relaxed))
    }

    /// The part of those tokens that names this process.
    pub(crate) fn writer(&self) -> &str {
        &self.writer
    }
}
