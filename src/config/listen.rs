//! Where a node serves HTTP, and to whom, as `[http]` says.

use std::net::SocketAddr;

/// Who may ask the API over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Everybody who reaches the listener, as the operator.
    Off,
    /// Who has an API key, as its tenant.
    Keys,
}

/// Where to serve HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// There, as somebody has set it: it is an error if the port is taken.
    At(SocketAddr),
    /// There, as nothing is set: at a free port of the same address if the port is taken, so that several nodes start
    /// on one machine without any settings.
    AtOrFree(SocketAddr),
}
