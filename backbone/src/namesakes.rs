//! Nodes of one name: who has it says so when asked. A question to the living, and not a note of when somebody was last
//! seen: so a node that was killed and started again need not wait until it is forgotten.

use std::time::Duration;

use async_nats::Subject;
use bytes::Bytes;

use crate::Backbone;
use crate::error::Error;
use crate::subscription::Subscription;

/// How long whoever has the name is given to say so. A server that knows of nobody says that at once.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Questions for the name of this node.
#[derive(Debug)]
pub struct Namesakes {
    backbone: Backbone,
    questions: Subscription,
}

/// Somebody asks for the name.
#[derive(Debug)]
pub struct Namesake {
    /// Which instance asks.
    pub instance: String,
    reply: Option<Subject>,
}

impl Namesakes {
    /// The next question; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<Namesake> {
        let question = self.questions.next().await?;
        let reply = question.reply.filter(|reply| self.backbone.may_answer(reply));
        Some(Namesake { instance: String::from_utf8_lossy(&question.payload).into_owned(), reply })
    }
}

impl Backbone {
    /// Asks whether another instance has this name; what it says of itself, if so.
    pub async fn who_is(&self, name: &str, instance: &str) -> Option<String> {
        let question = Bytes::copy_from_slice(instance.as_bytes());
        let request = async_nats::Request::new().payload(question).timeout(Some(ANSWER_WITHIN));
        let answer = self.control().request(self.names().node(name), request).await.ok()?;
        Some(String::from_utf8_lossy(&answer.payload).into_owned())
    }

    /// Listens for questions for this name.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn namesakes(&self, name: &str) -> Result<Namesakes, Error> {
        let subject = self.names().node(name);
        let questions = self.control().subscribe(subject.clone()).await;
        let questions = questions.map_err(|error| Error::Subscribe { subject, source: Box::new(error) })?;
        Ok(Namesakes { backbone: self.clone(), questions })
    }

    /// Says that the name is taken, and by whom.
    pub async fn is_mine(&self, namesake: &Namesake, who: &str) {
        if let Some(reply) = &namesake.reply {
            self.control().publish(reply.clone(), Bytes::copy_from_slice(who.as_bytes())).await;
        }
    }
}
