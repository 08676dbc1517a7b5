//! The one clock of this crate that is not monotonic.

use std::time::{SystemTime, UNIX_EPOCH};

use longshore_domain::Timestamp;

/// The time of this machine.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
