//! What the handler of a completed run returned, as far as the record keeps it.

use serde_json::value::RawValue;

/// A run's result, as the record keeps it.
#[derive(Debug, Clone, Default)]
pub enum RunResult {
    /// There is none.
    #[default]
    None,
    /// JSON, kept as it is.
    Json(Box<RawValue>),
    /// Anything else.
    Other {
        /// The bytes, in base64.
        base64: String,
        /// Their content type.
        content_type: Option<String>,
    },
    /// Too large to keep.
    TooLarge {
        /// Its size: of the result as it came or, if it was kept at first, as it stood in the record.
        bytes: u64,
        /// Its content type, if it was kept at first and is not JSON.
        content_type: Option<String>,
    },
}

impl RunResult {
    /// Forgets the result itself and keeps its size; false if there is nothing to forget.
    pub(super) fn forget(&mut self) -> bool {
        let (bytes, content_type) = match self {
            Self::None | Self::TooLarge { .. } => return false,
            Self::Json(json) => (json.get().len(), None),
            Self::Other { base64, content_type } => (base64.len(), content_type.take()),
        };
        *self = Self::TooLarge { bytes: bytes as u64, content_type };
        true
    }

    /// Removes what its handler said; the size of a result that was not kept stays.
    pub(super) fn erase(&mut self) {
        *self = match self {
            Self::TooLarge { bytes, .. } => Self::TooLarge { bytes: *bytes, content_type: None },
            _ => Self::None,
        };
    }
}
