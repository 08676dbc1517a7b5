//! Where a node is seen beside NATS: HTTP, and the files of the audit.

use crate::audit_files::{AuditFiles, EventFiles};

use super::entries::{audit as audit_entry, http as http_entry};
use super::listen::{Auth, Listen};
use super::problem::Problem;
use super::raw::Tree;
use super::section::section;

/// Where to serve HTTP.
pub(crate) fn http(tree: &Tree) -> Listen {
    let section = section(tree, "http");
    match section.get(&http_entry::HTTP_LISTEN).0 {
        None => Listen::Off,
        Some(address) if section.node(http_entry::HTTP_LISTEN.name).is_some() => Listen::At(address),
        Some(address) => Listen::AtOrFree(address),
    }
}

/// Who may ask over HTTP.
pub(crate) fn auth(tree: &Tree) -> Auth {
    section(tree, "http").get(&http_entry::HTTP_AUTH)
}

/// An API that others could ask without a key is no oversight, but said.
pub(crate) fn open(tree: &Tree) -> Option<Problem> {
    let section = section(tree, "http");
    let address = section.get(&http_entry::HTTP_LISTEN).0.filter(|address| !address.ip().is_loopback())?;
    let is_open = section.get(&http_entry::HTTP_AUTH) == Auth::Off && !section.get(&http_entry::HTTP_ALLOW_OPEN);
    let reason = format!(
        "{address} is reached by other machines, and every client would be the operator: set http.auth = \"keys\", a \
         loopback address, or http.allow_open = true"
    );
    is_open.then(|| section.problem(http_entry::HTTP_LISTEN.name, reason))
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
