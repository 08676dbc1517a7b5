//! Confirmed publishes in flight: one inbox for all answers, matched by number.
//!
//! A request of its own for each publish costs a subscription look-up, a channel and a task switch; at three publishes
//! a job that is most of the way. Here the caller keeps what it waits for in a map of its own, by the number.

use std::task::{Context, Poll};

use async_nats::{Client, HeaderMap, Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;

use crate::error::Error;
use crate::request::{PubAck, Refusal};

/// Sends publishes and reads their answers.
#[derive(Debug)]
pub struct Window {
    client: Client,
    inbox: String,
    answers: Subscriber,
}

/// What the server said to a numbered publish.
#[derive(Debug)]
pub enum Answer {
    /// It is stored, at this sequence.
    Stored(u64),
    /// It is not.
    Refused(Refusal),
    /// No stream takes it, just now: between leaders, or while JetStream starts.
    Nobody,
}

impl Window {
    /// A window on `client`.
    ///
    /// # Errors
    /// The inbox cannot be subscribed to.
    pub async fn open(client: Client) -> Result<Self, Error> {
        let inbox = client.new_inbox();
        let subject = format!("{inbox}.*");
        let answers = client
            .subscribe(subject.clone())
            .await
            .map_err(|error| Error::Subscribe { subject, source: Box::new(error) })?;
        Ok(Self { client, inbox, answers })
    }

    /// Publishes; the answer comes under `number`.
    pub async fn send(&self, number: u64, subject: String, headers: Option<HeaderMap>, payload: Bytes) {
        let reply = format!("{}.{number}", self.inbox);
        // A failure means that the client was closed: no answer comes, which is what the caller is prepared for.
        let _ = match headers {
            Some(headers) => self.client.publish_with_reply_and_headers(subject, reply, headers, payload).await,
            None => self.client.publish_with_reply(subject, reply, payload).await,
        };
    }

    /// The next answer, and its number.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(u64, Answer)>> {
        loop {
            match self.answers.poll_next_unpin(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(message)) => {
                    if let Some(read) = read(&message) {
                        return Poll::Ready(Some(read));
                    }
                }
            }
        }
    }
}

fn read(message: &Message) -> Option<(u64, Answer)> {
    let number = message.subject.rsplit_once('.')?.1.parse().ok()?;
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Some((number, Answer::Nobody));
    }
    let ack: PubAck = serde_json::from_slice(&message.payload).ok()?;
    Some((number, ack.error.map_or(Answer::Stored(ack.seq), Answer::Refused)))
}
