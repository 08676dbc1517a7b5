//! The id of the trace that a run belongs to, in the terms of W3C Trace Context.

use serde::{Serialize, Serializer};

use crate::schema::{reads, schema};

/// A trace's id. Written as 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub u128);

/// Writes two hexadecimal digits for each byte; `out` has room for twice as many. A tenth of the work of the standard
/// formatter, which each traced job would call several times.
pub fn write_hex(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, digits) in bytes.iter().zip(out.chunks_exact_mut(2)) {
        digits.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

impl std::fmt::Display for TraceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut digits = [0; 32];
        write_hex(&self.0.to_be_bytes(), &mut digits);
        f.pad(std::str::from_utf8(&digits).unwrap_or_default())
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

reads!(TraceId => |text| u128::from_str_radix(text, 16).map(Self));
schema!(TraceId { "type": "string", "pattern": "^[0-9a-f]{1,32}$" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_written_with_all_its_digits_and_read_again() {
        let id = TraceId(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
        assert_eq!(id.to_string(), format!("{:032x}", id.0));
        let id = TraceId(0x00f0_67aa);
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, r#""00000000000000000000000000f067aa""#);
        assert_eq!(serde_json::from_str::<TraceId>(&text).unwrap(), id);
        assert!(serde_json::from_str::<TraceId>(r#""trace""#).is_err());
    }
}
