//! Where a node is seen beside NATS: HTTP, and the files of the audit.

use crate::audit_files::{AuditFiles, EventFiles};

use super::entries::{self as entry, audit as audit_entry};
use super::listen::Listen;
use super::raw::Tree;
use super::section::section;

/// Where to serve HTTP.
pub(crate) fn http(tree: &Tree) -> Listen {
    let section = section(tree, "http");
    match section.get(&entry::HTTP_LISTEN).0 {
        None => Listen::Off,
        Some(address) if section.node(entry::HTTP_LISTEN.name).is_some() => Listen::At(address),
        Some(address) => Listen::AtOrFree(address),
    }
}

/// The files that the audit is written to as well.
pub(crate) fn audit_files(tree: &Tree) -> Option<AuditFiles> {
    let section = section(tree, "audit");
    let path = section.get(&audit_entry::FILE)?.0;
    let (max_bytes, files) = (section.get(&audit_entry::FILE_MAX_BYTES).0, section.get(&audit_entry::FILES));
    Some(AuditFiles::new(path, max_bytes, files))
}

/// The files that the event log is written to as well.
pub(crate) fn event_files(tree: &Tree) -> Option<EventFiles> {
    let section = section(tree, "audit");
    let path = section.get(&audit_entry::EVENTS_FILE)?.0;
    let (max_bytes, files) = (section.get(&audit_entry::FILE_MAX_BYTES).0, section.get(&audit_entry::FILES));
    Some(EventFiles::new(path, max_bytes, files))
}
