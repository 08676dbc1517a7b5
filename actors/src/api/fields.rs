//! Checks of a request's fields: an error names the field and the reason.

use std::time::Duration;

use longshore_backbone::wire::api::ApiError;
use longshore_domain::duration;

pub(crate) fn wrong(field: &str, reason: impl std::fmt::Display) -> ApiError {
    ApiError::malformed(format!("{field}: {reason}"))
}

/// A span that must not be zero.
pub(super) fn positive(field: &str, ms: u64) -> Result<Duration, ApiError> {
    if ms == 0 { Err(wrong(field, "is zero")) } else { span(field, ms) }
}

pub(super) fn span(field: &str, ms: u64) -> Result<Duration, ApiError> {
    let span = Duration::from_millis(ms);
    if span > duration::MAX_DURATION { Err(wrong(field, "is more than 3650 days")) } else { Ok(span) }
}
