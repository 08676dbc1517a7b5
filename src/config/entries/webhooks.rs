//! The settings `[webhooks]`: how events are delivered to URLs.

use longshore_domain::Queue;

use crate::config::kind::{Text, Token};
use crate::config::schema::settings;

settings! {
    /// Webhooks: deliveries are jobs of type "longshore.webhook"; settings of that type apply to them, too.
    WEBHOOKS: WebhookEntries, WEBHOOKS_TABLE;

    /// The queue of the deliveries.
    queue: Token = Token(Queue::main().to_string());
    /// Their priority: 1, the most urgent, to 9.
    priority: u32 = 5, at_least(|| 1), at_most(|| 9);
    /// Deliveries at once in the whole cluster; no limit if it is not set.
    concurrency: Option<u32>, at_least(|| Some(1)), example("20");
    /// Networks, addresses and host names that may be called beyond the globally routable ones.
    allow: Vec<Text>, example("[\"10.0.0.0/8\", \"hooks.internal\"]");
}
