//! Renewals of leases, sent as requests over the control connection: a renewal counts once it is confirmed.
//!
//! A confirmation proves little: the server also confirms a renewal of a job that finished long ago. It proves that the
//! server was there and read it, so that no other node was given the job for lack of it.

use async_nats::Subject;
use bytes::Bytes;

use crate::Backbone;
use crate::connection::link::Link;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::lanes::delivery::AckToken;

/// The subject to which a renewal is sent.
#[derive(Debug, Clone)]
pub struct ReplyTo(Subject);

impl ReplyTo {
    /// The subject itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Receives the confirmations of renewals.
#[derive(Debug)]
pub struct Renewals(Subscription);

/// Requests renewals.
#[derive(Debug)]
pub struct Asker {
    link: Link,
    inbox: String,
}

const WORK_IN_PROGRESS: &[u8] = b"+WPI";

impl AckToken {
    /// The subject at which this delivery's lease is renewed.
    pub fn renewal(&self) -> Option<ReplyTo> {
        self.reply().cloned().map(ReplyTo)
    }
}

impl Renewals {
    /// What requests renewals over the control connection, while their confirmations are awaited here.
    ///
    /// # Errors
    /// The inbox cannot be subscribed to.
    pub async fn open(backbone: &Backbone) -> Result<(Asker, Self), Error> {
        let link = backbone.control().clone();
        let inbox = link.new_inbox();
        let answers = link.subscribe(format!("{inbox}.*")).await?;
        Ok((Asker { link, inbox }, Self(answers)))
    }

    /// The number under which the next renewal was requested that is confirmed; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<u64> {
        loop {
            let message = self.0.next().await?;
            // "No responders" says that no server received it: JetStream is not there just now.
            let is_answer = message.status.is_none();
            let number = message.subject.rsplit_once('.').and_then(|(_, number)| number.parse().ok());
            if let Some(number) = number.filter(|_| is_answer) {
                return Some(number);
            }
        }
    }
}

impl Asker {
    /// Requests a renewal, under a number; waits while the connection takes nothing. Dropped meanwhile, it has sent
    /// nothing. Without a renewal it does nothing.
    pub async fn ask(&self, renewal: Option<&(u64, ReplyTo)>) {
        let Some((number, reply)) = renewal else { return };
        let inbox = format!("{}.{number}", self.inbox);
        // A lost request is repeated; if all are lost, the lease runs out, as it must.
        self.link.publish_with_reply(reply.0.clone(), inbox, Bytes::from_static(WORK_IN_PROGRESS)).await;
    }
}
