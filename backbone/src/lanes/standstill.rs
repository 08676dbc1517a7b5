//! Whether a lane's consumer delivers what nodes ask it for, and another leader for one that does not.
//!
//! A replica that became leader without the stream's state stands still until the servers have mended it, which may
//! take minutes, and nothing else shows it: it answers, and pulls wait. Nothing is decided here; asking for another
//! leader loses nothing, as deliveries and their acknowledgements are replicated.

use bytes::Bytes;
use longshore_domain::{Queue, QueueLane, SmolStr};

use crate::Backbone;
use crate::error::Error;
use crate::messages::request;
use crate::streams::info::ErrorAnswer;
use crate::streams::shape::LANE_CONSUMER;

/// What a lane holds while its consumer has nothing in hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// The lane's stream.
    pub stream: SmolStr,
    /// Jobs in it.
    pub jobs: u64,
    /// How many deliveries the consumer has made in all.
    pub deliveries: u64,
}

impl Backbone {
    /// The jobs of a lane, if nodes ask for some and none is in anybody's hand; `None` otherwise.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn undelivered(&self, queue: &Queue, lane: QueueLane) -> Result<Option<Undelivered>, Error> {
        let state = self.lane_of(queue, lane).await?;
        if state.messages == 0 {
            return Ok(None);
        }
        let consumer = self.consumer_info(&state.stream).await?;
        let is_asked = consumer.num_waiting > 0 && consumer.num_ack_pending == 0;
        let deliveries = consumer.delivered.filter(|_| is_asked).map(|delivered| delivered.consumer_seq);
        Ok(deliveries.map(|deliveries| Undelivered { stream: state.stream, jobs: state.messages, deliveries }))
    }

    /// Asks the leader of a lane's consumer to let another server lead.
    ///
    /// # Errors
    /// The server did not answer, or refused.
    pub async fn change_leader(&self, stream: &str) -> Result<(), Error> {
        let subject = format!("{}.CONSUMER.LEADER.STEPDOWN.{stream}.{LANE_CONSUMER}", self.api());
        let answer: ErrorAnswer = request::ask(self.control(), subject.clone(), Bytes::new()).await?;
        answer.error.map_or(Ok(()), |refusal| Err(refusal.of(subject)))
    }
}
