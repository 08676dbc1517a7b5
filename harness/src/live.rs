//! Listens to live events: core NATS, so a listener receives only events published after it subscribed.

use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt;
use serde_json::Value;

use crate::wire::Event;
use crate::world::{NAMESPACE, World};

/// How long [`LiveEvents::until`] waits.
const WITHIN: Duration = Duration::from_secs(240);

/// One live event.
#[derive(Debug, Clone)]
pub struct Live {
    /// The subject: `longshore.events.<tenant>.<event>.<queue>.<run_id>.<type…>`.
    pub subject: String,
    /// The body; `null` if it is not JSON.
    pub body: Value,
    /// Whether it had headers, which the contract forbids.
    pub has_headers: bool,
}

impl Live {
    fn of(message: &Message) -> Live {
        Live {
            subject: message.subject.to_string(),
            body: serde_json::from_slice(&message.payload).unwrap_or(Value::Null),
            has_headers: message.headers.is_some(),
        }
    }

    /// The body as a lifecycle event; `None` if it is another kind of event.
    pub fn event(&self) -> Option<Event> {
        serde_json::from_value(self.body.clone()).ok()
    }
}

/// A subscription to live events, and the events received so far.
#[derive(Debug)]
pub struct LiveEvents {
    subscriber: Subscriber,
    received: Vec<Live>,
}

impl World {
    /// Listens to every live event of a tenant, from now on; `*` for all tenants, `_sys` for system events.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn live_events(&self, tenant: &str) -> LiveEvents {
        self.listen(&format!("{NAMESPACE}.events.{tenant}.>")).await
    }

    /// Listens to any subject, such as the filters that the contract names.
    ///
    /// # Panics
    /// If the server cannot be reached.
    pub async fn listen(&self, subject: &str) -> LiveEvents {
        let subscriber = self.client().subscribe(subject.to_owned()).await;
        let subscriber = subscriber.unwrap_or_else(|error| panic!("cannot subscribe to {subject}: {error}"));
        // Only after the flush is it certain that the server knows the subscription.
        self.client().flush().await.unwrap_or_else(|error| panic!("cannot flush: {error}"));
        LiveEvents { subscriber, received: Vec::new() }
    }
}

impl LiveEvents {
    /// Waits for an event that `is_wanted`, for at most a minute; an event received earlier counts, too. Other events
    /// are kept.
    ///
    /// # Panics
    /// If none comes; the message lists the events received.
    pub async fn until(&mut self, what: &str, is_wanted: impl Fn(&Live) -> bool) -> Live {
        if let Some(live) = self.received.iter().find(|live| is_wanted(live)) {
            return live.clone();
        }
        let deadline = tokio::time::Instant::now() + WITHIN;
        loop {
            let Ok(Some(message)) = tokio::time::timeout_at(deadline, self.subscriber.next()).await else {
                let received: Vec<&str> = self.received.iter().map(|live| live.subject.as_str()).collect();
                panic!("listened in vain for {what} ({WITHIN:?}); received:\n{}", received.join("\n"));
            };
            let live = Live::of(&message);
            self.received.push(live.clone());
            if is_wanted(&live) {
                return live;
            }
        }
    }

    /// Waits for the event of this name for this run.
    ///
    /// # Panics
    /// As [`LiveEvents::until`].
    pub async fn until_published(&mut self, event: &str, run: &str) -> Live {
        let what = format!("`{event}` of {run}");
        self.until(&what, |live| live.body["event"] == event && live.body["run_id"] == run).await
    }

    /// Waits for the next event of any kind, without a time limit; the event is not kept.
    ///
    /// # Panics
    /// If the client was closed.
    pub async fn next(&mut self) -> Live {
        Live::of(&self.subscriber.next().await.expect("the client lives as long as the world"))
    }

    /// Every event received while waiting so far, in order.
    pub fn received(&self) -> &[Live] {
        &self.received
    }
}
