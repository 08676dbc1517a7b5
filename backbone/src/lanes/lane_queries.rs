//! Queries: a job that waits in its lane, the declared queues, and live messages.

use futures_util::TryStreamExt as _;
use longshore_domain::run::MessageId;
use longshore_domain::{Lane, Priority, Queue, SmolStr, Timestamp};

use crate::Backbone;
use crate::connection::subscription::Subscription;
use crate::error::Error;
use crate::lanes::delivery::{AckToken, Delivery};
use crate::messages::request::Stored;
use crate::messages::{get, raw};
use crate::streams::info::StreamNames;

/// Messages as they arrive.
#[derive(Debug)]
pub struct Listening(Subscription);

impl Listening {
    /// The next message's payload; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<bytes::Bytes> {
        self.0.next().await.map(|message| message.payload)
    }
}

impl Backbone {
    /// Listens on a subject; messages that are published after this returns are received.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn listen(&self, subject: String) -> Result<Listening, Error> {
        let failed = |source| Error::Subscribe { subject: subject.clone(), source };
        let messages = self.service().subscribe(subject.clone()).await?;
        self.service().flush().await.map_err(failed)?;
        Ok(Listening(messages))
    }

    /// The job at a sequence of a lane, if it is still there, as the lane's leader has it. Its ack token settles
    /// nothing: the job is inspected, not taken.
    ///
    /// # Errors
    /// The lane cannot be read.
    pub async fn job_in_lane(&self, lane: &Lane, sequence: u64) -> Result<Option<Delivery>, Error> {
        let stream = self.names().lane_stream(&lane.queue, lane.priority);
        let Some(raw) = get::at(self.service(), &stream, sequence).await? else { return Ok(None) };
        // A message that no client can read is about to be removed.
        let headers = raw::readable(&raw.headers);
        Ok(Some(Delivery::of_raw(raw, &stream, headers, AckToken::none())))
    }

    /// A stored message of a stream as if it had been delivered; its ack token settles nothing.
    pub fn as_delivered(&self, stored: Stored, stream: &str) -> Delivery {
        let at = Timestamp::parse(&stored.at).unwrap_or_default();
        let message = MessageId { stream: SmolStr::from(stream), sequence: stored.sequence, at };
        let headers = stored.job_headers();
        Delivery::of_stored(message, stored.subject, stored.payload, headers, AckToken::none())
    }

    /// Whether the queue has lanes, as the cluster's own leader knows it: a lane without a leader does not answer, but
    /// exists all the same.
    ///
    /// # Errors
    /// It cannot be found out just now.
    pub async fn is_declared(&self, queue: &Queue) -> Result<bool, Error> {
        let stream = self.names().lane_stream(queue, Priority::DEFAULT);
        let failed = |source| Error::Read { subject: format!("the streams of queue {queue}"), source };
        let subject = format!("{}.STREAM.NAMES", self.api());
        let query = format!(r#"{{"subject":"{}"}}"#, self.names().lane_subjects(queue, Priority::DEFAULT));
        let answer =
            self.service().request(subject, async_nats::Request::new().payload(query.into())).await.map_err(failed)?;
        let answer: StreamNames = serde_json::from_slice(&answer.payload).map_err(|error| failed(Box::new(error)))?;
        match answer.error {
            None => Ok(answer.streams.unwrap_or_default().contains(&stream)),
            Some(refusal) => Err(failed(format!("{} (code {})", refusal.description, refusal.err_code).into())),
        }
    }

    /// The queues that have lanes.
    ///
    /// # Errors
    /// The streams cannot be listed.
    pub async fn declared_queues(&self) -> Result<Vec<Queue>, Error> {
        let failed = |source| Error::Read { subject: "the list of streams".to_owned(), source };
        let names: Vec<String> =
            self.jetstream().stream_names().try_collect().await.map_err(|error| failed(Box::new(error)))?;
        let lanes = names.iter().filter_map(|name| self.names().read_lane_stream(name));
        let mut queues: Vec<Queue> = lanes.map(|(queue, _)| queue).collect();
        queues.sort();
        queues.dedup();
        Ok(queues)
    }
}
