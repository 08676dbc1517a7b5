//! Questions among nodes: how many jobs of a queue's lanes each of them was delivered, by priority and fairness key.

use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_domain::fairness::{FairBy, FairnessKey};
use longshore_domain::{Priority, Queue};
use serde::{Deserialize, Serialize};

use crate::cluster::nodes::Nodes;
use crate::cluster::questions::{Question, Questions};
use crate::error::Error;
use crate::messages::request::json;

/// How many jobs a node was delivered since it began to count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryCounts {
    /// The node.
    pub node: String,
    /// What it counts as one key.
    #[serde(default)]
    pub by: FairBy,
    /// When it began, in Unix milliseconds: counts of another beginning have nothing to do with these.
    pub since_ms: i64,
    /// By priority and key.
    pub of: Vec<DeliveryCount>,
}

/// The jobs of one priority and key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryCount {
    /// Their priority.
    pub priority: Priority,
    /// Their key.
    pub key: FairnessKey,
    /// How many came from the lane of the priority.
    pub from_lane: u64,
    /// How many came from the lane of returned jobs.
    pub returned: u64,
}

impl Nodes {
    /// Asks these nodes how many jobs of a queue they were delivered. Those that do not answer `within` that time are
    /// left out.
    ///
    /// # Errors
    /// The answers cannot be subscribed to.
    pub async fn ask_deliveries(
        &self,
        queue: &Queue,
        mut asked: Vec<String>,
        within: Duration,
    ) -> Result<Vec<DeliveryCounts>, Error> {
        let link = self.0.control();
        let inbox = link.new_inbox();
        let mut answers = link.subscribe(inbox.clone()).await?;
        link.publish_with_reply(self.names().delivered(queue).into(), inbox, Bytes::new()).await;
        let (began, mut counts) = (Instant::now(), Vec::new());
        while !asked.is_empty() {
            let left = within.saturating_sub(began.elapsed());
            let Ok(Some(message)) = tokio::time::timeout(left, answers.next()).await else { break };
            let Ok(said) = serde_json::from_slice::<DeliveryCounts>(&message.payload) else { continue };
            asked.retain(|node| *node != said.node);
            counts.push(said);
        }
        Ok(counts)
    }

    /// Listens for such questions about a queue.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn delivery_questions(&self, queue: &Queue) -> Result<Questions, Error> {
        self.listen(self.names().delivered(queue)).await
    }

    /// Answers such a question; an answer that is too large for a message is left out.
    pub async fn answer_deliveries(&self, question: Question, counts: &DeliveryCounts) {
        let answer = json(counts);
        if answer.len() <= self.0.max_payload() {
            self.answer(question, answer).await;
        }
    }
}
