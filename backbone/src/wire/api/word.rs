//! Words of the contract's lists, such as states, as they appear in answers.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A word of one of the contract's lists. A newer node may answer with one that this program does not know yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Word<T> {
    /// One that this program knows.
    Known(T),
    /// Any other.
    Other(String),
}

impl<T> Word<T> {
    /// The word's meaning, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(word) => Some(word),
            Self::Other(_) => None,
        }
    }
}

impl<T> From<T> for Word<T> {
    fn from(word: T) -> Self {
        Self::Known(word)
    }
}

impl<T: Serialize> fmt::Display for Word<T> {
    /// The word as it is written on the wire.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => f.write_str(&word),
            _ => Err(fmt::Error),
        }
    }
}
