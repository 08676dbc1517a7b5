//! The wire forms: every subject, header and JSON body of the contract, read and written. Nothing here uses a server.

pub mod subject;

pub mod header;
pub mod kind_key;

pub mod json;

pub mod event;
pub mod logged;
pub mod record;
pub mod recurring;

pub mod api;
