//! Health of the node that answers.

use serde::{Deserialize, Serialize};

use super::{ApiError, Endpoint, Nothing};

/// `health`: whether the node that answers takes work, and why not.
#[derive(Debug)]
pub struct Health;

impl Endpoint for Health {
    const NAME: &'static str = "health";
    type Request = Nothing;
    type Answer = HealthStatus;

    fn read(_body: &[u8]) -> Result<Nothing, ApiError> {
        Ok(Nothing {})
    }
}

/// The health of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthStatus {
    /// Whether it can work at all.
    pub live: bool,
    /// Its name.
    pub node: String,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// Whether it takes work.
    pub ready: bool,
    /// Why it takes no work; empty if it does.
    pub reasons: Vec<String>,
    /// Its version.
    pub version: String,
    /// Problems that do not keep it from work: lanes that are full.
    pub warnings: Vec<String>,
}
