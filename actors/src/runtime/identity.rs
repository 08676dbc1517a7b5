//! Who this node is: its name, this start of it, and the tokens of its writes. It does nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use longshore_backbone::Error;
use longshore_backbone::nodes::Nodes;
use longshore_domain::{SmolStr, Timestamp, format_smolstr};

use crate::runtime::now;

/// A writer's name has so many bits less than 64, so that its first four billion tokens are stored inline (`SmolStr`).
const WRITER_SPARES: u32 = 8;

/// A node, since it was started.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) node: SmolStr,
    /// Identifies this start of the node.
    pub(crate) instance: String,
    pub(crate) started_at: Timestamp,
    /// The part of its write tokens that names this process.
    pub(crate) writer: SmolStr,
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
}

/// Whether this node is the one that works for all: the first by name that is there. Should it go, the next one is.
pub(crate) async fn is_first(nodes: &Nodes, identity: &Identity) -> Result<bool, Error> {
    let nodes = nodes.present(now()).await?;
    Ok(is_first_of(nodes.iter().map(|presence| presence.node.as_str()), &identity.node))
}

/// The same, once it is known which nodes are there: a node that is not among them goes by its name, too.
pub(crate) fn is_first_of<'a>(present: impl Iterator<Item = &'a str>, own: &str) -> bool {
    present.min().is_none_or(|first| first >= own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_works_for_all_that_are_there() {
        let firsts = |present: &[&'static str]| {
            ["n1", "n2", "n3"].into_iter().filter(|own| is_first_of(present.iter().copied(), own)).collect::<Vec<_>>()
        };
        assert_eq!(firsts(&["n2", "n1", "n3"]), ["n1"], "whatever the order");
        assert_eq!(firsts(&["n3", "n2"]), ["n1", "n2"], "n1 is here, though its presence has not been read");
        assert_eq!(firsts(&[]), ["n1", "n2", "n3"], "two at once do no harm, none would");
    }
}
