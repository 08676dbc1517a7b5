//! Asks the node that a record names whether it still holds the job.
//!
//! A server that was killed redelivers jobs although their holders are well. The node that gets such a delivery asks
//! the holder; if the holder does not answer, its presence says when it was last there.

use std::time::Duration;

use longshore_domain::SmolStr;
use longshore_domain::run::MessageId;
use serde::{Deserialize, Serialize};

use crate::Backbone;
use crate::cluster::control::Presence;
use crate::cluster::questions::{Question, Questions};
use crate::error::Error;
use crate::messages::request::json;

/// The question to a node: whether it runs the attempt that the record has under this message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderQuestion {
    /// The job's message.
    #[serde(flatten)]
    pub message: MessageId,
    /// The token of the record.
    #[serde(default)]
    pub token: SmolStr,
}

/// A node's answer to the question whether it holds a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderAnswer {
    /// The process that answers: the part of its records' tokens that names it.
    pub writer: SmolStr,
    /// Whether it works on the job.
    pub holds: bool,
    /// Whether it claimed the attempt without knowing it, and has just abandoned it.
    #[serde(default)]
    pub never_started: bool,
}

impl Backbone {
    /// Listens for nodes that ask whether this one holds a job.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn holder_questions(&self, node: &str) -> Result<Questions, Error> {
        self.nodes().listen(self.names().holder(node)).await
    }

    /// Answers such a question.
    pub async fn answer_holder(&self, question: Question, answer: impl FnOnce(HolderQuestion) -> HolderAnswer) {
        let Ok(asked) = serde_json::from_slice::<HolderQuestion>(&question.payload) else { return };
        self.nodes().answer(question, json(&answer(asked))).await;
    }

    /// Asks a node whether it holds a job; `None` if it does not answer within `wait`.
    pub async fn ask_holder(&self, node: &str, question: &HolderQuestion, wait: Duration) -> Option<HolderAnswer> {
        let answer = self.nodes().ask(self.names().holder(node), json(question), wait).await?;
        serde_json::from_slice(&answer).ok()
    }

    /// A node's last presence; `None` if it published none for an hour, or published that it is gone.
    ///
    /// # Errors
    /// The control bucket cannot be read.
    pub async fn presence_of(&self, node: &str) -> Result<Option<Presence>, Error> {
        let stored = self.entry("control", &format!("nodes.{node}")).await?;
        Ok(stored.and_then(|stored| self.presence(&stored)))
    }
}
