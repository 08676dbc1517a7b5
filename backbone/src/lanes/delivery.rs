//! A delivered job, and the ack token that settles it.
//!
//! The ack token is an owned value. Settling consumes it, so settling twice does not compile. If it is dropped, in a
//! dead actor's mailbox or a cancelled future, the job goes back to the server at once (NAK) and keeps its place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::{SmolStr, Timestamp};
use tokio::sync::mpsc::UnboundedSender;

use crate::lanes::custody::Custody;
use crate::messages::raw::Raw;
use crate::wire::header::size_of;

/// A message that a consumer delivered.
#[derive(Debug)]
pub struct Delivery {
    /// The subject it was published to.
    pub subject: Subject,
    /// Its headers.
    pub headers: Option<HeaderMap>,
    /// Its payload.
    pub payload: Bytes,
    /// Bytes of its payload and headers, as the server counts them.
    pub size: usize,
    /// Which message, and which delivery of it.
    pub holding: Holding,
    /// How many more messages of its lane the server had to deliver at that moment.
    pub behind: u64,
    /// How long it has been on its way since it was stored, or since this node has asked for jobs of its lane, if that
    /// is later; nothing, if others came before it or the server had more: then it waited for its turn.
    pub on_its_way: Option<Duration>,
    /// The server counts the lease from this moment or later.
    pub leased_from: Instant,
    /// The ack token that settles it.
    pub ack_token: AckToken,
}

impl Delivery {
    /// A stored message as if it had been delivered.
    pub(crate) fn of_stored(
        message: MessageId,
        subject: String,
        payload: Bytes,
        headers: Option<HeaderMap>,
        ack_token: AckToken,
    ) -> Self {
        Self {
            size: payload.len() + headers.as_ref().map_or(0, size_of),
            subject: subject.into(),
            headers,
            payload,
            holding: Holding { message, delivery: 1 },
            behind: 0,
            on_its_way: None,
            leased_from: Instant::now(),
            ack_token,
        }
    }

    /// The same of one that was read byte for byte, with these of its headers.
    pub(crate) fn of_raw(raw: Raw, stream: &str, headers: HeaderMap, ack_token: AckToken) -> Self {
        let message = MessageId { stream: SmolStr::from(stream), sequence: raw.sequence, at: raw.at };
        let headers = (!headers.is_empty()).then_some(headers);
        Self::of_stored(message, raw.subject, raw.payload, headers, ack_token)
    }
}

/// Settles one delivery, once.
#[derive(Debug)]
pub struct AckToken {
    reply: Option<Subject>,
    of: Of,
}

#[derive(Debug)]
enum Of {
    /// A delivery, which this node holds for as long as the ack token lives.
    Delivery(Arc<Custody>, u64),
    /// A stored message that cannot be delivered, or the copy of a job that was taken out of its lane: the request that
    /// deletes it.
    Stored { request: Bytes, is_copy: bool },
    /// Nothing.
    Nothing,
}

/// Acknowledges to the server that the job is done with.
const ACK: &[u8] = b"+ACK";

impl AckToken {
    pub(crate) fn new(reply: Subject, custody: Arc<Custody>, sequence: u64) -> Self {
        custody.take(sequence);
        Self { reply: Some(reply), of: Of::Delivery(custody, sequence) }
    }

    /// Makes ack tokens, each with this reply subject, of deliveries that no connection made: dropped, one sends its
    /// reply subject to `returned`. For tests of what becomes of a delivery.
    pub fn without_connection(returned: UnboundedSender<Subject>) -> impl Fn(&str) -> Self {
        let custody = Arc::new(Custody::new(returned));
        move |reply| Self::new(Subject::from(reply), Arc::clone(&custody), 0)
    }

    /// An ack token that deletes a stored message, or the copy of a job that was taken out of its lane, by `request` to
    /// `subject`. If it is dropped, the message stays.
    pub(crate) fn to_delete(subject: String, request: Bytes, is_copy: bool) -> Self {
        Self { reply: Some(subject.into()), of: Of::Stored { request, is_copy } }
    }

    /// An ack token that settles nothing, for a job that is only inspected.
    pub fn none() -> Self {
        Self { reply: None, of: Of::Nothing }
    }

    /// The subject to which a renewal of the lease is sent.
    pub fn reply(&self) -> Option<&Subject> {
        self.reply.as_ref().filter(|_| matches!(self.of, Of::Delivery(..)))
    }

    /// Whether the stored message that it deletes is the copy of a job; `None`: it deletes none.
    pub(crate) fn deletes_copy(&self) -> Option<bool> {
        if let Of::Stored { is_copy, .. } = &self.of { Some(*is_copy) } else { None }
    }

    /// Settles the job as done: the subject and the payload of the acknowledgement. `None` if it settles nothing.
    #[must_use]
    pub fn into_ack(mut self) -> Option<(Subject, Bytes)> {
        let how = match &self.of {
            Of::Stored { request, .. } => request.clone(),
            _ => Bytes::from_static(ACK),
        };
        Some((self.reply.take()?, how))
    }

    /// Gives the delivery up: the subject to which its answer is sent. `None` if it is not for a delivery.
    pub(crate) fn into_reply(mut self) -> Option<Subject> {
        self.reply.take().filter(|_| matches!(self.of, Of::Delivery(..)))
    }

    /// Returns the job to the server at once; the job keeps its place.
    pub fn nak(self) {
        drop(self);
    }

    /// Sends nothing: another node has the delivery by now, or soon will.
    pub fn abandon(mut self) {
        self.reply = None;
    }
}

impl Drop for AckToken {
    fn drop(&mut self) {
        if let Of::Delivery(custody, sequence) = &self.of {
            custody.give_up(*sequence, self.reply.take());
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AckInfo<'a> {
    pub(crate) stream: &'a str,
    pub(crate) delivered: u64,
    pub(crate) sequence: u64,
    pub(crate) at: Timestamp,
    pub(crate) pending: u64,
}

impl<'a> AckInfo<'a> {
    /// Reads `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time ns>.<pending>`, also in its
    /// longer form with domain and account hash in front (ADR-15).
    pub(crate) fn read(reply: &'a str) -> Option<Self> {
        let rest = reply.strip_prefix("$JS.ACK.")?;
        let mut tokens = rest.split('.');
        if rest.bytes().filter(|byte| *byte == b'.').count() >= 8 {
            tokens.nth(1)?;
        }
        let stream = tokens.next()?;
        let delivered = tokens.nth(1)?.parse().ok()?;
        let sequence = tokens.next()?.parse().ok()?;
        let nanos: i64 = tokens.nth(1)?.parse().ok()?;
        let pending = tokens.next()?.parse().ok()?;
        Some(Self { stream, delivered, sequence, at: Timestamp::from_millis(nanos / 1_000_000), pending })
    }

    /// Whether it is the first delivery of a message that no other stands behind.
    pub(crate) fn is_alone(&self) -> bool {
        self.delivered == 1 && self.pending == 0
    }

    pub(crate) fn holding(&self, stream: &SmolStr) -> Holding {
        let message = MessageId { stream: stream.clone(), sequence: self.sequence, at: self.at };
        Holding { message, delivery: self.delivered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_an_ack_subject_are_read() {
        let at = Timestamp::from_millis(1_700_000_000_123);
        let wanted = AckInfo { stream: "S", delivered: 2, sequence: 77, at, pending: 5 };
        let short = "$JS.ACK.S.work.2.77.80.1700000000123456789.5";
        let long = "$JS.ACK.hub.ABCDEF.S.work.2.77.80.1700000000123456789.5.x1";
        assert_eq!(AckInfo::read(short), Some(wanted.clone()));
        assert_eq!(AckInfo::read(long), Some(wanted));
        assert_eq!(AckInfo::read("_INBOX.x"), None);
    }

    #[test]
    fn a_dropped_ack_token_returns_its_job_and_a_used_one_does_not() {
        let (returns, mut returned) = tokio::sync::mpsc::unbounded_channel();
        let custody = Arc::new(Custody::new(returns));
        let ack_token = |name: &'static str| AckToken::new(Subject::from_static(name), Arc::clone(&custody), 7);
        drop(ack_token("dropped"));
        let (subject, said) = ack_token("acked").into_ack().unwrap();
        assert_eq!((subject.as_str(), said.as_ref()), ("acked", ACK));
        ack_token("left").abandon();
        assert_eq!(returned.try_recv().ok().as_deref(), Some("dropped"));
        assert!(returned.try_recv().is_err());
    }
}
