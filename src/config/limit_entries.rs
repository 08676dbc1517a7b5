//! The settings of rate limits: of types, of tenants, and those that types share. What holds for all settings stands in
//! `entries`.

use std::time::Duration;

use longshore_domain::limit::{RateLimit, Window};
use toml::Value;

use super::kind::{Kind as _, Token, check_token};
use super::schema::Field::Setting as One;
use super::schema::{Entry, Named, Table};

pub(crate) static RATE_LIMIT: Table = Table::of(
    "How many jobs of the type may start, in the whole cluster. Each Longshore-Limit-Key of a tenant has a limit of its \
     own; a job takes as many tokens as its Longshore-Cost says.",
    &[One(&RATE), One(&RATE_PER), One(&RATE_BURST), One(&RATE_WINDOW)],
)
.optional();

pub(crate) static RATE: Entry<u32> =
    Entry::new("rate", || 100, "Tokens in each span of time: one for each job, unless it says otherwise.")
        .at_least(|| 1);

pub(crate) static RATE_PER: Entry<Duration> =
    Entry::new("per", || Duration::from_secs(1), "The span.").at_least(|| Duration::from_millis(100));

pub(crate) static RATE_BURST: Entry<Option<u32>> = Entry::new(
    "burst",
    || None,
    "At most so many at once after a quiet time, if window is \"bucket\". If it is not set, as many as rate.",
)
.example("100")
.at_least(|| Some(1));

pub(crate) static RATE_WINDOW: Entry<Window> = Entry::new(
    "window",
    || Window::Bucket,
    "How they are counted. \"bucket\": they flow in steadily; \"fixed\": in windows that follow each other; \"sliding\": in \
     every span of that length.",
);

pub(crate) static LIMIT: Entry<Option<Token>> = Entry::new(
    "limit",
    || None,
    "The name of a limit under [limits] that the type shares with others, beside its own. If the type has none of its \
     own, each Longshore-Limit-Key has one of these.",
)
.example("\"crm\"");

// [limits.<name>]

pub(crate) static LIMITS: Named = Named {
    name: "limits",
    doc: "Rate limits that several types share, each by its setting limit.",
    example: ("crm", &["rate", "per", "burst", "window"]),
    check: check_token,
    table: &SHARED_LIMIT,
    fallback: None,
};

static SHARED_LIMIT: Table = Table::of("", &[One(&RATE), One(&RATE_PER), One(&RATE_BURST), One(&RATE_WINDOW)]);

pub(crate) static TENANT_RATE_LIMIT: Table = Table::of(
    "How many jobs the tenant may submit by the API, in the whole cluster: submit answers 429 beyond that. Jobs that are \
     published to the queue itself are not counted.",
    &[One(&RATE), One(&RATE_PER), One(&RATE_BURST), One(&RATE_WINDOW)],
)
.optional();

/// A limit as it is written.
pub(crate) fn written(limit: &RateLimit) -> Value {
    let burst = (limit.window == Window::Bucket).then_some(limit.burst);
    let values = [
        (RATE.name, limit.rate.write()),
        (RATE_PER.name, limit.per.write()),
        (RATE_BURST.name, burst.and_then(|burst| burst.write())),
        (RATE_WINDOW.name, limit.window.write()),
    ];
    Value::Table(values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}
