//! The settings of rate limits: of types, of tenants, and those that types share.

use std::time::Duration;

use longshore_domain::limit::{RateLimit, Window};
use toml::Value;

use crate::config::kind::{Kind as _, check_token};
use crate::config::schema::{Named, Table};
use crate::config::section::settings;

settings! {
    /// How many jobs of the type may start, in the whole cluster. Each Longshore-Limit-Key of a tenant has a limit of
    /// its own; a job takes as many tokens as its Longshore-Cost says.
    RATE_LIMIT: RateLimitEntries, RATE_LIMIT_TABLE.optional();

    /// Tokens in each span of time: one for each job, unless it says otherwise.
    rate: u32 = 100, at_least(|| 1);
    /// The span.
    per: Duration = Duration::from_secs(1), at_least(|| Duration::from_millis(100));
    /// At most so many at once after a quiet time, if window is "bucket". If it is not set, as many as rate.
    burst: Option<u32>, example("100"), at_least(|| Some(1));
    /// How they are counted. "bucket": they flow in steadily; "fixed": in windows that follow each other; "sliding": in
    /// every span of that length.
    window: Window = Window::Bucket;
}

pub(crate) static TENANT_RATE_LIMIT_TABLE: Table = Table::of(
    "How many jobs the tenant may submit by the API, in the whole cluster: submit answers 429 beyond that. Jobs that are \
     published to the queue itself are not counted.",
    RATE_LIMIT_TABLE.fields,
)
.optional();

// [limits.<name>]

pub(crate) static LIMITS: Named = Named {
    name: "limits",
    doc: "Rate limits that several types share, each by its setting limit.",
    example: ("crm", &["rate", "per", "burst", "window"]),
    check: check_token,
    table: &SHARED_LIMIT_TABLE,
    fallback: None,
};

static SHARED_LIMIT_TABLE: Table = Table::of("", RATE_LIMIT_TABLE.fields);

/// A limit as it is written.
pub(crate) fn written(limit: &RateLimit) -> Value {
    let burst = (limit.window == Window::Bucket).then_some(limit.burst);
    let values = [
        (RATE_LIMIT.rate.name, limit.rate.write()),
        (RATE_LIMIT.per.name, limit.per.write()),
        (RATE_LIMIT.burst.name, burst.write()),
        (RATE_LIMIT.window.name, limit.window.write()),
    ];
    Value::Table(values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}
