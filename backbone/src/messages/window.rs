//! Confirmed publishes in flight: one inbox for all answers, matched by number.
//!
//! A separate request for each publish costs a subscription look-up, a channel and a task switch; at three publishes
//! per job that is most of the cost. Here the caller keeps the publishes that it waits for in its own map, by number.

use std::task::{Context, Poll, ready};
use std::time::Instant;

use async_nats::{HeaderMap, Message, StatusCode, Subject};
use bytes::Bytes;

use crate::connection::link::Link;
use crate::connection::subscription::Subscription;
use crate::connection::taken_subject::TakenSubject;
use crate::error::Error;
use crate::messages::refusal::Refusal;
use crate::messages::request::PubAck;

/// Sends publishes and reads their answers.
#[derive(Debug)]
pub struct PublishWindow {
    link: Link,
    inbox: String,
    answers: Subscription,
    /// Reply subjects of the same length, one after another, from number `first` on.
    page: Bytes,
    first: u64,
}

/// How many reply subjects a page has.
const PAGE: u64 = 64;
/// Digits of a number, with leading zeros, so that all reply subjects have the same length: enough for ten thousand
/// years at 30,000 a second.
const DIGITS: usize = 16;

/// The server's answer to a numbered publish.
#[derive(Debug)]
pub enum PublishAnswer {
    /// The message is stored, at this sequence.
    Stored(u64),
    /// The message is refused.
    Refused(Refusal),
    /// No stream accepts the message just now: between leaders, or while JetStream starts.
    NoResponders,
}

impl PublishWindow {
    pub(crate) async fn open(link: Link) -> Result<Self, Error> {
        let inbox = link.new_inbox();
        let answers = link.subscribe(format!("{inbox}.*")).await?;
        Ok(Self { link, inbox, answers, page: Bytes::new(), first: 0 })
    }

    /// Publishes; the answer arrives under `number`.
    pub async fn send(&mut self, number: u64, subject: Bytes, headers: HeaderMap, payload: Bytes) {
        let (Ok(subject), Ok(reply)) = (Subject::from_utf8(subject), Subject::from_utf8(self.reply(number))) else {
            return;
        };
        // A failure means that the client is dead: no answer arrives, and the caller is prepared for that.
        let (subject, reply) = (TakenSubject::new(subject), TakenSubject::new(reply));
        let _ = self.link.publish_with_reply_and_headers(subject, reply, headers, payload).await;
    }

    /// What was published to `subject` at `sent` has had no answer yet, although the connection stood.
    pub fn is_silent(&self, subject: &str, sent: Instant) {
        self.link.silent_writes().add(subject, sent, Instant::now());
    }

    /// Whether any write over its connection is known to have had no answer.
    pub fn knows_silence(&self) -> bool {
        self.link.silent_writes().are_any()
    }

    /// What was published to `subject` is stored.
    pub fn is_answered(&self, subject: &str) {
        self.link.silent_writes().answered(subject);
    }

    /// The reply subject for `number`. Numbers mostly follow one another, so a page of subjects is written at once.
    fn reply(&mut self, number: u64) -> Bytes {
        use std::fmt::Write as _;
        let width = self.inbox.len() + 1 + DIGITS;
        let first = number - number % PAGE;
        if self.page.is_empty() || self.first != first {
            let mut page = String::with_capacity(width * PAGE as usize);
            for number in first..first + PAGE {
                // Writing to memory cannot fail.
                let _ = write!(page, "{}.{number:0DIGITS$}", self.inbox);
            }
            (self.first, self.page) = (first, Bytes::from(page));
        }
        let start = (number - first) as usize * width;
        self.page.slice(start..start + width)
    }

    /// The next answer, and its number.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(u64, PublishAnswer)>> {
        while let Some(message) = ready!(self.answers.poll_next(context)) {
            if let Some(read) = read(&message) {
                return Poll::Ready(Some(read));
            }
        }
        Poll::Ready(None)
    }
}

fn read(message: &Message) -> Option<(u64, PublishAnswer)> {
    let number = message.subject.rsplit_once('.')?.1.parse().ok()?;
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Some((number, PublishAnswer::NoResponders));
    }
    let ack: PubAck = serde_json::from_slice(&message.payload).ok()?;
    Some((number, ack.error.map_or(PublishAnswer::Stored(ack.seq), PublishAnswer::Refused)))
}
