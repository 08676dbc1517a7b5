//! The settings of circuit breakers: `breaker` in `[defaults]` and `[types.<name>]`.

use std::time::Duration;

use longshore_domain::breaker::BreakerPolicy;

use toml::Value;

use crate::config::kind::{Kind, shown};
use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

/// The table's name.
pub(crate) const BREAKER_NAME: &str = "breaker";
/// If nothing is set, the longest cool-down is so many times the first.
pub(crate) const MAX_TIMES: u32 = 10;

pub(crate) static BREAKER: Table = Table::of(
    "Stops starting jobs of a type whose service keeps failing; one per tenant and type, over the whole cluster.",
    &[
        One(&FAILURES),
        One(&RATIO),
        One(&WINDOW),
        One(&MIN_CALLS),
        One(&COOL_DOWN),
        One(&MAX_COOL_DOWN),
        One(&PROBES),
        One(&COUNT_PERMANENT),
        One(&PER_KEY),
    ],
)
.optional();

/// No breaker, although `[defaults]` has one.
pub(crate) static OFF: Entry<Off> =
    Entry::new(BREAKER_NAME, || Off, "\"off\": a type has none, although [defaults] has one.");

/// The word `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Off;

impl Kind for Off {
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

    fn from_environment(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}

pub(crate) static FAILURES: Entry<u32> =
    Entry::new("failures", || BreakerPolicy::default().failures, "Failures in a row that open it.")
        .at_least(|| 1)
        .at_most(|| 10_000);

pub(crate) static RATIO: Entry<Option<f64>> = Entry::new(
    "ratio",
    || BreakerPolicy::default().ratio,
    "The share of failures within the window that opens it as well. If it is not set, only failures in a row count.",
)
.example("0.5")
.at_least(|| Some(0.01))
.at_most(|| Some(1.0));

pub(crate) static WINDOW: Entry<Duration> =
    Entry::new("window", || BreakerPolicy::default().window, "The window of ratio.")
        .at_least(|| Duration::from_secs(1))
        .at_most(|| Duration::from_secs(3_600));

pub(crate) static MIN_CALLS: Entry<u32> = Entry::new(
    "min_calls",
    || BreakerPolicy::default().min_calls,
    "With fewer attempts than this in the window, ratio opens nothing.",
)
.at_least(|| 1);

pub(crate) static COOL_DOWN: Entry<Duration> = Entry::new(
    "cool_down",
    || BreakerPolicy::default().cool_down,
    "How long it stays open; each failed probe doubles it.",
)
.at_least(|| Duration::from_millis(1));

pub(crate) static MAX_COOL_DOWN: Entry<Option<Duration>> =
    Entry::new("max_cool_down", || None, "How long it stays open at most: ten times cool_down, if nothing is set.")
        .example("\"5m\"")
        .at_least(|| Some(Duration::from_millis(1)));

pub(crate) static PROBES: Entry<u32> = Entry::new(
    "probes",
    || BreakerPolicy::default().probes,
    "Jobs let through as a trial once it has cooled down; it closes when so many have succeeded.",
)
.at_least(|| 1)
.at_most(|| 100);

pub(crate) static COUNT_PERMANENT: Entry<bool> = Entry::new(
    "count_permanent",
    || BreakerPolicy::default().count_permanent,
    "Permanent errors count as failures of the service, too.",
);

pub(crate) static PER_KEY: Entry<bool> = Entry::new(
    "per_key",
    || BreakerPolicy::default().per_key,
    "Each Longshore-Limit-Key, such as a host, has a breaker of its own.",
);
