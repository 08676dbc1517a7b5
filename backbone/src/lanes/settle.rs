//! How a delivery is settled: acknowledged, or returned to the server. Each takes the ack token, so that no delivery is
//! settled twice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::{Request, Subject};
use bytes::Bytes;

use crate::Backbone;
use crate::connection::taken_subject::TakenSubject;
use crate::lanes::delivery::AckToken;
use crate::lanes::poison;

impl Backbone {
    /// Acknowledges a job: the last step of its way. Not confirmed: if the acknowledgement is lost, the server only
    /// redelivers the job, and the record answers that delivery; a job whose type keeps none may run again.
    pub async fn ack(&self, ack_token: AckToken) {
        let deletes_copy = ack_token.deletes_copy();
        match (ack_token.into_ack(), deletes_copy) {
            (Some((subject, request)), Some(is_copy)) => {
                drop(tokio::spawn(poison::delete(self.clone(), subject, request, is_copy)));
            }
            (Some((subject, how)), None) => self.client().publish(TakenSubject::new(subject), how).await,
            (None, _) => {}
        }
    }

    /// Returns the job to the server (NAK), which redelivers it after `after` at the earliest.
    pub async fn nak_after(&self, ack_token: AckToken, after: Duration) {
        if let Some(reply) = ack_token.into_reply() {
            let nak = format!(r#"-NAK {{"delay":{}}}"#, after.as_nanos().max(1));
            self.client().publish(TakenSubject::new(reply), Bytes::from(nak)).await;
        }
    }

    /// Returns jobs of one lane to the server (NAK), and waits until it has them back, but not for long: a node that
    /// pulls before that gets the jobs behind them.
    pub async fn nak_confirmed(&self, ack_tokens: Vec<AckToken>) {
        /// A NAK whose confirmation takes longer is lost; nothing but the order depends on it. A busy server may take a
        /// second.
        const WITHIN: Duration = Duration::from_secs(2);
        let nak = |reply: Subject| {
            let request = Request::new().payload(Bytes::from_static(b"-NAK")).timeout(Some(WITHIN));
            self.client().request(reply, request)
        };
        // They are sent in this order, which is that in which they come again.
        let replies = ack_tokens.into_iter().filter_map(AckToken::into_reply);
        futures_util::future::join_all(replies.map(nak)).await;
    }

    /// From now on, jobs whose ack tokens are dropped come again also if the server ends before it has delivered them:
    /// for the last node, after which the server may end as well. Where another node waits for them, a return is
    /// quicker without.
    pub fn return_for_later(&self) {
        self.0.outlasts.store(true, Ordering::Relaxed);
    }
}
