//! The settings of circuit breakers: `breaker` in `[defaults]` and `[types.<name>]`.

use std::time::Duration;

use longshore_domain::breaker::BreakerPolicy;

use toml::Value;

use crate::config::kind::{Kind, shown};
use crate::config::schema::{Entry, settings};

/// If nothing is set, the longest cool-down is so many times the first.
pub(crate) const MAX_TIMES: u32 = 10;

settings! {
    /// Stops starting jobs of a type whose service keeps failing; one per tenant and type, over the whole cluster.
    BREAKER: BreakerEntries of BreakerPolicy, BREAKER_TABLE.optional();

    /// Failures in a row that open it.
    failures: u32, at_least(|| 1), at_most(|| 10_000);
    /// The share of failures within the window that opens it as well. If it is not set, only failures in a row count.
    ratio: Option<f64>, example("0.5"), at_least(|| Some(0.01)), at_most(|| Some(1.0));
    /// The window of ratio.
    window: Duration, at_least(|| Duration::from_secs(1)), at_most(|| Duration::from_secs(3_600));
    /// With fewer attempts than this in the window, ratio opens nothing.
    min_calls: u32, at_least(|| 1);
    /// How long it stays open; each failed probe doubles it.
    cool_down: Duration, at_least(|| Duration::from_millis(1));
    /// How long it stays open at most: ten times cool_down, if nothing is set.
    max_cool_down: Option<Duration> = None, example("\"5m\""), at_least(|| Some(Duration::from_millis(1)));
    /// Jobs let through as a trial once it has cooled down; it closes when so many have succeeded.
    probes: u32, at_least(|| 1), at_most(|| 100);
    /// Permanent errors count as failures of the service, too.
    count_permanent: bool;
    /// Each Longshore-Limit-Key, such as a host, has a breaker of its own.
    per_key: bool;
}

/// No breaker, although `[defaults]` has one.
pub(crate) static OFF: Entry<Off> =
    Entry::new("breaker", || Off, "\"off\": a type has none, although [defaults] has one.");

/// The word `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Off;

impl Kind for Off {
    const IS_TEXT: bool = true;

    fn noun() -> String {
        "\"off\", or a table such as { failures = 5, cool_down = \"30s\" }".to_owned()
    }

    fn read(value: &Value) -> Result<Self, String> {
        match value.as_str() {
            Some("off") => Ok(Self),
            _ => Err(format!("{} is not {}", shown(value), Self::noun())),
        }
    }

    fn write(&self) -> Option<Value> {
        Some(Value::String("off".to_owned()))
    }
}
