//! A point in time: milliseconds since 1970 UTC, written as RFC 3339 with exactly three digits after the second.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use jiff::civil::{self, DateTime};
use jiff::fmt::temporal::Pieces;
use serde::{Serialize, Serializer};

use crate::schema::{reads, schema};

/// Milliseconds since 1970-01-01T00:00:00Z. Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(i64);

/// 9999-12-31T23:59:59.999Z: the last moment that RFC 3339 can write.
const LATEST: i64 = 253_402_300_799_999;
/// 1970-01-01T00:00:00, from which milliseconds are counted.
const EPOCH: DateTime = civil::datetime(1970, 1, 1, 0, 0, 0, 0);

/// A text that is not a valid RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid RFC 3339 time, such as 2027-01-31T09:30:00Z or 2027-01-31T10:30:00+01:00")]
pub struct TimestampError(pub String);

impl Timestamp {
    /// 2262-04-11T23:47:16.854Z: the last moment that the server's schedules can hold, in nanoseconds since 1970.
    pub const LAST_SCHEDULE: Self = Self(i64::MAX / 1_000_000);

    /// From milliseconds since 1970 UTC; a moment before 1970 or after the year 9999 becomes that bound.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, LATEST))
    }

    /// Milliseconds since 1970 UTC.
    #[must_use]
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Reads an RFC 3339 time with any offset; fractions of a millisecond are cut off. A moment before 1970 or after
    /// the year 9999 becomes that bound.
    ///
    /// # Errors
    /// Refuses everything else, also times without an offset.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let millis = match text.parse::<jiff::Timestamp>() {
            Ok(at) => Some(at.as_millisecond()),
            Err(_) => last_hours(text),
        };
        millis.map(Self::from_millis).ok_or_else(|| TimestampError(text.chars().take(100).collect()))
    }

    /// `duration` later.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self::from_millis(self.0.saturating_add(millis))
    }

    /// `duration` earlier.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self::from_millis(self.0.saturating_sub(millis))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// The time as text, in ASCII.
    ///
    /// Written by hand, because every job's record and events contain three to six of these. Most fall into the same
    /// minute as the one before; then only seconds and milliseconds are written anew.
    #[must_use]
    pub fn text(self) -> [u8; 24] {
        thread_local! {
            static LAST: Cell<(i64, [u8; 24])> = const { Cell::new((-1, [0; 24])) };
        }
        let minute = self.0 / 60_000;
        let (last, text) = LAST.get();
        if last == minute {
            return within_minute(text, self.0);
        }
        let text = self.written();
        LAST.set((minute, text));
        text
    }

    /// The same, written completely.
    fn written(self) -> [u8; 24] {
        let at = EPOCH.saturating_add(SignedDuration::from_millis(self.0));
        let mut text = *b"0000-00-00T00:00:00.000Z";
        put(&mut text, 0, at.year() / 100);
        put(&mut text, 2, at.year() % 100);
        put(&mut text, 5, at.month().into());
        put(&mut text, 8, at.day().into());
        put(&mut text, 11, at.hour().into());
        put(&mut text, 14, at.minute().into());
        within_minute(text, self.0)
    }
}

/// Reads a time of the last hours of the year 9999, which people write for "never" and nodes for what is later still,
/// in milliseconds since 1970 UTC. `jiff` leaves these 26 hours out, so that a moment has a local time in any zone.
fn last_hours(text: &str) -> Option<i64> {
    let pieces = Pieces::parse(text).ok()?;
    let local = pieces.date().to_datetime(pieces.time()?);
    let offset = i64::from(pieces.to_numeric_offset()?.seconds());
    let millis = i64::try_from(local.duration_since(EPOCH).as_millis()).ok()? - 1_000 * offset;
    (millis > jiff::Timestamp::MAX.as_millisecond()).then_some(millis)
}

/// The text of a time, with the seconds and milliseconds of another time in the same minute.
fn within_minute(mut text: [u8; 24], millis: i64) -> [u8; 24] {
    let (second, millis) = (millis / 1_000 % 60, millis % 1_000);
    put(&mut text, 17, second as i16);
    put(&mut text, 20, (millis / 10) as i16);
    text[22] = b'0' + (millis % 10) as u8;
    text
}

/// Writes the two digits of a number below 100.
fn put(text: &mut [u8; 24], at: usize, number: i16) {
    text[at] = b'0' + (number / 10) as u8;
    text[at + 1] = b'0' + (number % 10) as u8;
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.text();
        serializer.serialize_str(std::str::from_utf8(&text).map_err(serde::ser::Error::custom)?)
    }
}

reads!(Timestamp => |text| Self::parse(text));
schema!(Timestamp { "type": "string", "format": "date-time" });

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn offsets_are_read_and_their_lack_refused() {
        assert_eq!(Timestamp::parse("2027-01-31T10:30:00+01:00").unwrap().to_string(), "2027-01-31T09:30:00.000Z");
        assert_eq!(Timestamp::parse("2024-02-29T23:59:59.9999Z").unwrap().to_string(), "2024-02-29T23:59:59.999Z");
        for wrong in ["", "now", "2027-01-31", "2027-01-31T10:30:00", "2027-13-31T10:30:00Z", "1769850600"] {
            assert!(Timestamp::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    /// People write the end of the year 9999 for "never".
    #[test]
    fn the_year_9999_is_read_to_its_end() {
        let read = |text: &str| Timestamp::parse(text).unwrap().to_string();
        assert_eq!(read("9999-12-30T22:00:01Z"), "9999-12-30T22:00:01.000Z");
        assert_eq!(read("9999-12-31T23:59:59Z"), "9999-12-31T23:59:59.000Z");
        assert_eq!(read("9999-12-31T23:59:59.9999Z"), "9999-12-31T23:59:59.999Z");
        assert_eq!(read("9999-12-31T23:59:59+02:00"), "9999-12-31T21:59:59.000Z");
        assert_eq!(read("9999-12-31T23:59:59-02:00"), "9999-12-31T23:59:59.999Z");
        for wrong in ["9999-12-31", "9999-12-31T23:59:59", "9999-12-32T23:59:59Z", "10000-01-01T00:00:00Z"] {
            assert!(Timestamp::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(millis in prop_oneof![0..=LATEST, LATEST - 200_000_000..=LATEST]) {
            let at = Timestamp::from_millis(millis);
            prop_assert_eq!(Timestamp::parse(&at.to_string()), Ok(at));
        }

        #[test]
        fn what_was_written_before_does_not_matter(before in 0i64..200_000, millis in 0i64..200_000) {
            let _ = Timestamp::from_millis(before).text();
            let at = Timestamp::from_millis(millis);
            prop_assert_eq!(at.text(), at.written());
        }
    }
}
