//! A node's settings, already checked: actors never see a file, an environment variable or a terminal.

use std::time::Duration;

use longshore_backbone::Storage;
use longshore_domain::policy::Policies;

/// All settings of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The node's name, unique in the cluster: a token of its event subjects.
    pub name: String,
    /// How long running jobs may take to end after a drain began; the rest is released.
    pub shutdown_grace: Duration,
    /// Queues, types and presets.
    pub policies: Policies,
    /// What to store, where and for how long.
    pub storage: Storage,
}
