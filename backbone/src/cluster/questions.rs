//! Questions among nodes, over core NATS: which node has this name, which node saw this run's end. A node that knows
//! answers; that no node answers is an answer, too.

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;

use crate::Backbone;
use crate::cluster::nodes::Nodes;
use crate::connection::subscription::Subscription;
use crate::error::Error;

/// The wait before nodes are asked again that have not answered.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Questions as they arrive.
#[derive(Debug)]
pub struct Questions {
    backbone: Backbone,
    messages: Subscription,
}

/// A question.
#[derive(Debug)]
pub struct Question {
    /// Its subject, which says what it is about.
    pub subject: String,
    /// What the asking node says.
    pub payload: Bytes,
    reply: Option<Subject>,
}

impl Questions {
    /// The next one; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Question> {
        let message = self.messages.next().await?;
        let reply = message.reply.filter(|reply| self.backbone.may_answer(reply));
        Some(Question { subject: message.subject.to_string(), payload: message.payload, reply })
    }
}

impl Nodes {
    /// Asks the other nodes; returns the first answer, if there is one `within` that time. If no node listens, the
    /// server says so at once.
    pub async fn ask(&self, subject: String, payload: Bytes, within: Duration) -> Option<Bytes> {
        let request = async_nats::Request::new().payload(payload).timeout(Some(within));
        self.0.control().request(subject, request).await.ok().map(|answer| answer.payload)
    }

    /// Asks every node, until each of `asked` has answered with its name, at most for `within`. Asks again, as messages
    /// may be lost. Returns the nodes that have not answered.
    pub(crate) async fn ask_each(
        &self,
        subject: String,
        payload: Bytes,
        asked: Vec<String>,
        within: Duration,
    ) -> Result<Vec<String>, Error> {
        let link = self.0.control();
        let inbox = link.new_inbox();
        let mut answers = link.subscribe(inbox.clone()).await?;
        let until = tokio::time::Instant::now() + within;
        let (mut again, mut silent) = (tokio::time::interval(ASK_AGAIN_AFTER), asked);
        loop {
            tokio::select! {
                _ = again.tick() => link.publish_with_reply(subject.clone().into(), inbox.clone(), payload.clone()).await,
                answer = answers.next() => match answer {
                    Some(answer) => silent.retain(|node| node.as_bytes() != &answer.payload[..]),
                    None => return Ok(silent),
                },
                () = tokio::time::sleep_until(until) => return Ok(silent),
            }
            if silent.is_empty() {
                return Ok(silent);
            }
        }
    }

    /// Listens for questions.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn listen(&self, subject: String) -> Result<Questions, Error> {
        let messages = self.0.control().subscribe(subject).await?;
        Ok(Questions { backbone: self.0.clone(), messages })
    }

    /// Answers a question.
    pub async fn answer(&self, question: Question, answer: Bytes) {
        if let Some(reply) = question.reply {
            self.0.control().publish(reply, answer).await;
        }
    }
}
