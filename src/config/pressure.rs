//! How a node watches for want of processor and memory.

use longshore_actors::PressureSettings;
use longshore_domain::pressure::PressureLimits;

use super::entries::pressure as entry;
use super::raw::Tree;
use super::section::section;

/// How it watches; `None`: it does not.
pub(crate) fn of(tree: &Tree) -> Option<PressureSettings> {
    let section = section(tree, "pressure");
    section.get(&entry::WATCH).then(|| PressureSettings {
        root: section.get(&entry::ROOT).0.into(),
        limits: PressureLimits {
            cpu: section.get(&entry::CPU),
            memory: section.get(&entry::MEMORY),
            memory_stall: section.get(&entry::MEMORY_STALL),
        },
    })
}
