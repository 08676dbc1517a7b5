//! Asking the node that a record names whether it still holds the job.
//!
//! A server that was killed hands jobs out again though their holders are well. Who gets such a delivery asks the holder;
//! where that does not answer, its presence says when it was last there.

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;
use longshore_domain::SmolStr;
use longshore_domain::run::MessageId;
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::control::Presence;
use crate::error::Error;
use crate::request;
use crate::subscription::Subscription;

/// What a node says of a job that it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderAnswer {
    /// Which process answers: the part of its records' tokens that names it.
    pub writer: SmolStr,
    /// Whether it works on the job.
    pub holds: bool,
}

/// Questions of other nodes, as they come.
#[derive(Debug)]
pub struct Questions {
    backbone: Backbone,
    messages: Subscription,
}

/// Another node asks whether this one holds a job.
#[derive(Debug)]
pub struct Question {
    /// Which.
    pub message: MessageId,
    answer_to: Subject,
}

impl Questions {
    /// The next one; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Question> {
        loop {
            let message = self.messages.next().await?;
            let answer_to = message.reply.filter(|reply| self.backbone.may_answer(reply));
            let read = serde_json::from_slice(&message.payload).ok();
            if let (Some(message), Some(answer_to)) = (read, answer_to) {
                return Some(Question { message, answer_to });
            }
        }
    }
}

impl Backbone {
    /// Listens for other nodes' questions to this one.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn holder_questions(&self, node: &str) -> Result<Questions, Error> {
        let subject = self.names().holder(node);
        let messages = self.control().subscribe(subject.clone()).await;
        let messages = messages.map_err(|error| Error::Subscribe { subject, source: Box::new(error) })?;
        Ok(Questions { backbone: self.clone(), messages })
    }

    /// Answers a question.
    pub async fn answer(&self, question: Question, answer: &HolderAnswer) {
        let body = serde_json::to_vec(answer).unwrap_or_default();
        self.control().publish(question.answer_to, Bytes::from(body)).await;
    }

    /// Asks a node whether it holds a job; `None` where it does not answer within `wait`.
    pub async fn ask_holder(&self, node: &str, message: &MessageId, wait: Duration) -> Option<HolderAnswer> {
        let body = Bytes::from(serde_json::to_vec(message).ok()?);
        let request = async_nats::Request::new().payload(body).timeout(Some(wait));
        let answer = self.control().request(self.names().holder(node), request).await.ok()?;
        serde_json::from_slice(&answer.payload).ok()
    }

    /// What a node last said of itself; `None` where it said nothing for an hour, or took its leave.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn presence_of(&self, node: &str) -> Result<Option<Presence>, Error> {
        let bucket = self.names().bucket_stream("control");
        let subject = self.names().key("control", &format!("nodes.{node}"));
        let stored = request::latest(self.control(), self.api(), &bucket, &subject).await?;
        Ok(stored.and_then(|stored| serde_json::from_slice(&stored.payload).ok()))
    }
}
