//! A header that does not parse.

/// A header that does not parse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("header {header}: {reason}")]
pub struct HeaderError {
    /// The header's name.
    pub header: String,
    /// Why it does not parse.
    pub reason: String,
}
