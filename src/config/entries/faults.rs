//! The setting of faults on purpose: `[faults]`.

use crate::config::schema::settings;

settings! {
    /// Faults on purpose, which operators set while the cluster runs: "longshore faults".
    FAULTS: FaultEntries, FAULTS_TABLE;

    /// Whether this node's attempts may meet any, and its API sets them.
    allowed: bool = false;
}
