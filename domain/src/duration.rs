//! Durations as people write them: `500ms`, `30s`, `5m`, `2h`, `7d`.
//!
//! The wire contract allows these five units and one unit per text. This crate has its own parser, because the
//! libraries accept more than the contract does (`1M` as a month, negative values), and formats drift when a reader
//! accepts more than the writer writes.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::schema::{reads, schema};

const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The longest accepted duration: 3,650 days. Longer ones are typing errors and would overflow time stamps.
pub const MAX_DURATION: Duration = Duration::from_secs(3_650 * 86_400);

/// A text that is not a valid duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid duration; write a whole number and a unit, such as 500ms, 30s, 5m, 2h or 7d (3650d at most)"
)]
pub struct DurationError(pub String);

/// Reads `500ms`, `30s`, `5m`, `2h` or `7d`.
///
/// # Errors
/// Refuses fractions, signs, other units, several units and more than [`MAX_DURATION`].
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let refuse = || DurationError(text.chars().take(100).collect());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, millis)| *millis).ok_or_else(refuse)?;
    let total = number.parse::<u64>().ok().and_then(|n| n.checked_mul(millis)).ok_or_else(refuse)?;
    let duration = Duration::from_millis(total);
    if duration > MAX_DURATION { Err(refuse()) } else { Ok(duration) }
}

/// A duration that is read and written in the contract's form. Fractions of a millisecond are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DurationText(pub Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let fits = |unit: &&(&str, u64)| millis.is_multiple_of(u128::from(unit.1));
        match UNITS.iter().rev().find(fits) {
            Some((unit, size)) if millis > 0 => write!(f, "{}{unit}", millis / u128::from(*size)),
            _ => f.write_str("0s"),
        }
    }
}

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

reads!(DurationText => |text| parse(text).map(Self));
schema!(DurationText { "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$", "maxLength": 20 });

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_contracts_form_is_read() {
        assert_eq!(parse("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "5", "s", "-3s", "+3s", "1.5s", "1M", "1w", "1h30m", " 1s", "99999999999999999999s", "3651d"]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(millis in 0u64..=315_360_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&DurationText(duration).to_string()), Ok(duration));
        }
    }
}
