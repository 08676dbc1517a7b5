//! The node: root of the supervision tree.

use longshore_backbone::Connection;

use crate::{Handlers, Settings};

/// Why a node could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Placeholder.
    #[error("not yet")]
    NotYet,
}

/// A running node.
#[derive(Debug)]
pub struct Node;

impl Node {
    /// Connects, brings streams and consumers into shape, starts the tree and takes work.
    ///
    /// # Errors
    /// Says what could not be done.
    pub async fn start(settings: Settings, connection: Connection, handlers: Handlers) -> Result<Self, Error> {
        let _ = (settings, connection, handlers);
        Err(Error::NotYet)
    }

    /// Resolves when the node has ended by itself, which is always a failure.
    pub async fn failed(&mut self) -> Error {
        std::future::pending().await
    }

    /// Stops pulling, lets running jobs end within the grace time, hands back the rest, flushes, and ends.
    ///
    /// # Errors
    /// Says what could not be flushed.
    pub async fn drain(self) -> Result<(), Error> {
        Ok(())
    }
}
