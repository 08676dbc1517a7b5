//! Looking: at a job that waits in its lane, at the queues that are declared, at what is told live.

use std::time::Instant;

use futures_util::TryStreamExt as _;
use longshore_domain::run::{Holding, MessageId};
use longshore_domain::{Priority, Queue, SmolStr, Timestamp};

use crate::Backbone;
use crate::delivery::{Delivery, Right};
use crate::error::Error;
use crate::raw;
use crate::request::{self, Stored};
use crate::subscription::Subscription;

/// Messages as they come.
#[derive(Debug)]
pub struct Listening(Subscription);

impl Listening {
    /// The next message's payload; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<bytes::Bytes> {
        self.0.next().await.map(|message| message.payload)
    }
}

impl Backbone {
    /// Listens on a subject; what is published after this returns is heard.
    ///
    /// # Errors
    /// The subject cannot be subscribed to.
    pub async fn listen(&self, subject: String) -> Result<Listening, Error> {
        let failed = |source| Error::Subscribe { subject: subject.clone(), source };
        let messages = self.service().subscribe(subject.clone()).await?;
        self.service().flush().await.map_err(failed)?;
        Ok(Listening(messages))
    }

    /// The job at a sequence of a lane, if it is still there, by the word of the lane's leader. Its right settles nothing: it is looked at, not taken.
    ///
    /// # Errors
    /// The lane cannot be read.
    pub async fn job_in_lane(
        &self,
        queue: &Queue,
        priority: Priority,
        sequence: u64,
    ) -> Result<Option<Delivery>, Error> {
        let stream = self.names().lane_stream(queue, priority);
        let query = format!(r#"{{"seq":{sequence}}}"#);
        let Some(stored) = raw::get(self.service(), self.api(), &stream, query).await? else { return Ok(None) };
        let stored = Stored {
            // What no client can read is about to be taken out.
            headers: raw::readable(&stored.headers),
            subject: stored.subject,
            sequence: stored.sequence,
            at: stored.at.to_string(),
            payload: stored.payload,
        };
        Ok(Some(self.look_at(stored, &stream)))
    }

    /// The last sequence that a lane has given; 0 where there is no such lane.
    ///
    /// # Errors
    /// The lane cannot be read.
    pub async fn lane_reached(&self, queue: &Queue, priority: Priority) -> Result<u64, Error> {
        use async_nats::jetstream::context::GetStreamErrorKind;
        let name = self.names().lane_stream(queue, priority);
        match self.jetstream().get_stream(&name).await {
            Ok(stream) => Ok(stream.cached_info().state.last_sequence),
            Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(_)) => Ok(0),
            Err(error) => Err(Error::Read { subject: name, source: Box::new(error) }),
        }
    }

    /// A stored message of a stream as if it had been delivered; its right settles nothing.
    #[must_use]
    pub fn look_at(&self, stored: Stored, stream: &str) -> Delivery {
        let at = Timestamp::parse(&stored.at).unwrap_or_default();
        let message = MessageId { stream: SmolStr::from(stream), sequence: stored.sequence, at };
        let headers = stored.job_headers();
        let size = stored.payload.len() + headers.as_ref().map_or(0, crate::wire::header::size_of);
        Delivery {
            size,
            subject: stored.subject.into(),
            headers,
            payload: stored.payload,
            holding: Holding { message, delivery: 1 },
            behind: 0,
            leased_from: Instant::now(),
            right: Right::none(),
        }
    }

    /// Whether the queue has lanes, as the cluster's own leader knows it: a lane without a leader answers nothing, and
    /// is there all the same.
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

#[derive(serde::Deserialize)]
struct StreamNames {
    /// Absent, or `null`, where there are none.
    streams: Option<Vec<String>>,
    error: Option<request::Refusal>,
}
