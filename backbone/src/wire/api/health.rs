//! Health of the node that answers, or of another.

use serde::{Deserialize, Serialize};

use super::request::read;
use super::{ApiError, Endpoint};

/// `health`: whether a node takes work, and why not.
#[derive(Debug)]
pub struct Health;

impl Endpoint for Health {
    const NAME: &'static str = "health";
    type Request = HealthRequest;
    type Answer = HealthStatus;

    fn read(body: &[u8]) -> Result<HealthRequest, ApiError> {
        // Anything that is no object asks for nothing in particular.
        if body.trim_ascii_start().starts_with(b"{") { read(body) } else { Ok(HealthRequest::default()) }
    }
}

/// Which node's health.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthRequest {
    /// The node of this name; any node if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
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
