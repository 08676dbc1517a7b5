//! Questions among nodes, over core NATS: which node has this name, which node saw this run's end. A node that knows
//! answers; that no node answers is an answer, too.

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;

use crate::Backbone;
use crate::error::Error;
use crate::nodes::Nodes;
use crate::subscription::Subscription;

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
