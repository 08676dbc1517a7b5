//! A subscription that outlives its client: when a dead client is replaced, the new one is subscribed in its place
//! before anything can be published over it, and the messages continue here.

use std::task::{Context, Poll, ready};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

#[derive(Debug)]
pub(crate) struct Subscription {
    messages: Subscriber,
    next: mpsc::UnboundedReceiver<Subscriber>,
    closed: bool,
}

/// What the connection keeps of a subscription, to repeat it on a new client.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) subject: String,
    pub(crate) group: Option<&'static str>,
    /// Unbounded, but with one entry per client; the old ones are read to their end first.
    next: mpsc::UnboundedSender<Subscriber>,
}

impl Slot {
    pub(crate) fn is_wanted(&self) -> bool {
        !self.next.is_closed()
    }

    pub(crate) fn fill(&self, messages: Subscriber) {
        let _ = self.next.send(messages);
    }
}

impl Subscription {
    pub(crate) fn new(subject: String, group: Option<&'static str>, messages: Subscriber) -> (Slot, Self) {
        let (sender, next) = mpsc::unbounded_channel();
        (Slot { subject, group, next: sender }, Self { messages, next, closed: false })
    }

    /// The next message; `None` once the subscription is closed, or the connection is gone for good.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        loop {
            match self.messages.poll_next_unpin(context) {
                Poll::Ready(None) if self.closed => return Poll::Ready(None),
                Poll::Ready(None) => match ready!(self.next.poll_recv(context)) {
                    Some(messages) => self.messages = messages,
                    None => return Poll::Ready(None),
                },
                came => return came,
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Message> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Ends the subscription; messages that are on their way still arrive.
    pub(crate) async fn unsubscribe(&mut self) {
        self.closed = true;
        let _ = self.messages.unsubscribe().await;
    }
}

/// The next message of any of these, those that stand first going first; `None` once one has ended.
pub(crate) async fn next_of(subscriptions: &mut [Subscription]) -> Option<Message> {
    std::future::poll_fn(|context| {
        for subscription in subscriptions.iter_mut() {
            if let Poll::Ready(message) = subscription.poll_next(context) {
                return Poll::Ready(message);
            }
        }
        Poll::Pending
    })
    .await
}
