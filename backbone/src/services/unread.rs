//! Replies that the server may not have read yet: if the connection is lost before, they are sent again, as an attempt
//! whose reply is lost is used up. One question asks about all that were sent before it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::Backbone;
use crate::services::offers::ReplyTo;

/// No reply is kept for longer, however long the server does not answer.
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

/// They stand in the order in which they were sent, and are watched as long as there are any. Bounded by the calls of
/// the last minute.
#[derive(Debug, Default)]
pub(crate) struct UnreadReplies(Mutex<Vec<SentReply>>);

impl UnreadReplies {
    /// Looks after a reply that was sent.
    pub(super) fn add(&self, reply: SentReply) {
        let backbone = reply.to.backbone.clone();
        let mut replies = self.lock();
        if replies.is_empty() {
            tokio::spawn(watch(backbone));
        }
        replies.push(reply);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SentReply>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until the server has read them all, or they are too old.
async fn watch(backbone: Backbone) {
    let (link, unread) = (backbone.work(), &backbone.0.unread_replies);
    loop {
        let losses = link.losses();
        let (mut sent, mut lost) = (0, Vec::new());
        for reply in unread.lock().iter_mut() {
            sent += 1;
            if reply.losses != losses {
                reply.losses = losses;
                lost.push(reply.clone());
            }
        }
        futures_util::future::join_all(lost.into_iter().map(SentReply::send_again)).await;
        let are_read = link.settled().await.is_ok() && link.losses() == losses;
        let mut replies = unread.lock();
        replies.drain(..if are_read { sent } else { 0 });
        replies.retain(|reply| reply.at.elapsed() < KEPT);
        if replies.is_empty() {
            return;
        }
    }
}
