//! Replies that the server may not have read yet: if the connection is lost before, they are sent again, as an attempt
//! whose reply is lost is used up. One question asks about all that were sent before it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::Backbone;
use crate::services::offers::ReplyTo;

/// No reply is sent again after this time: its attempt counts as lost by then.
const KEPT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(super) struct SentReply {
    pub(super) to: ReplyTo,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
    pub(super) at: Instant,
    /// How often the connection had been lost before.
    pub(super) losses: u64,
}

impl SentReply {
    pub(super) async fn send(&self) {
        let (subject, headers, payload) = (self.to.subject.clone(), self.headers.clone(), self.payload.clone());
        self.to.backbone.work().publish_with_headers(subject, headers, payload).await;
    }

    async fn send_again(self) {
        // Its caller may have it, and would take it for the reply of another handler.
        if self.to.beat().await != Some(true) {
            self.send().await;
        }
    }
}

/// They stand in the order in which they were sent. Bounded by the calls of the last minute.
#[derive(Debug, Default)]
pub(crate) struct UnreadReplies(Mutex<Unread>);

#[derive(Debug, Default)]
struct Unread {
    replies: Vec<SentReply>,
    is_watched: bool,
}

impl UnreadReplies {
    /// Looks after a reply that was sent.
    pub(super) fn add(&self, reply: SentReply) {
        let backbone = reply.to.backbone.clone();
        let is_watched = self.with(|unread| {
            unread.replies.push(reply);
            std::mem::replace(&mut unread.is_watched, true)
        });
        if !is_watched {
            tokio::spawn(watch(backbone));
        }
    }

    fn with<T>(&self, then: impl FnOnce(&mut Unread) -> T) -> T {
        then(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Until the server has read them all.
async fn watch(backbone: Backbone) {
    let (link, unread) = (backbone.work(), &backbone.0.unread_replies);
    loop {
        let losses = link.losses();
        let (sent, lost) = unread.with(|unread| {
            unread.replies.retain(|reply| reply.at.elapsed() < KEPT);
            let lost = unread.replies.iter_mut().filter(|reply| reply.losses != losses);
            let lost: Vec<_> = lost.map(|reply| (reply.losses = losses, reply.clone()).1).collect();
            (unread.replies.len(), lost)
        });
        futures_util::future::join_all(lost.into_iter().map(SentReply::send_again)).await;
        let are_read = link.settled().await.is_ok() && link.losses() == losses;
        let is_done = unread.with(|unread| {
            unread.replies.drain(..if are_read { sent } else { 0 });
            unread.is_watched = !unread.replies.is_empty();
            !unread.is_watched
        });
        if is_done {
            return;
        }
    }
}
