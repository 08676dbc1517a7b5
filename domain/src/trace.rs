//! The id of the trace that a run belongs to, in the terms of W3C Trace Context.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A trace's id. Written as 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_written_with_all_its_digits_and_read_again() {
        let id = TraceId(0x00f0_67aa);
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, r#""00000000000000000000000000f067aa""#);
        assert_eq!(serde_json::from_str::<TraceId>(&text).unwrap(), id);
        assert!(serde_json::from_str::<TraceId>(r#""trace""#).is_err());
    }
}
