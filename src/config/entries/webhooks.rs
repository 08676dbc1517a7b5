//! The settings `[webhooks]`: how events are delivered to URLs.

use longshore_domain::Queue;

use crate::config::kind::{Text, Token};
use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

pub(crate) static WEBHOOKS: Table = Table::of(
    "Webhooks: deliveries are jobs of type \"longshore.webhook\"; settings of that type apply to them, too.",
    &[One(&QUEUE), One(&PRIORITY), One(&CONCURRENCY), One(&ALLOW)],
);

pub(crate) static QUEUE: Entry<Token> =
    Entry::new("queue", || Token(Queue::main().to_string()), "The queue of the deliveries.");

pub(crate) static PRIORITY: Entry<u32> =
    Entry::new("priority", || 5, "Their priority: 1, the most urgent, to 9.").at_least(|| 1).at_most(|| 9);

pub(crate) static CONCURRENCY: Entry<Option<u32>> =
    Entry::new("concurrency", || None, "Deliveries at once in the whole cluster; no limit if it is not set.")
        .at_least(|| Some(1))
        .example("20");

pub(crate) static ALLOW: Entry<Vec<Text>> = Entry::new(
    "allow",
    Vec::new,
    "Networks, addresses and host names that may be called beyond the globally routable ones.",
)
.example("[\"10.0.0.0/8\", \"hooks.internal\"]");
