//! Taking waiting jobs out of a lane before they are delivered, so that they can go another way.
//!
//! A job on the fast path reads no record, so the record cannot keep a node from starting a message that another is
//! about to take away. The deletion can: it succeeds while the message is in its lane, and a message that is gone is
//! delivered to no node. So the job is *copied* first, to a subject that no consumer reads; then it is deleted; and if
//! the consumer has then delivered no message of that sequence, no node has it, and none will. A node that finds a copy
//! goes on with it: the copy knows which message it was, and the run's record decides the rest as for a delivery of
//! that message.
//!
//! Copies stand in the stream of parked jobs, one to a message: a second one is refused.

use async_nats::HeaderMap;
use bytes::Bytes;
use longshore_domain::fairness::{FairBy, FairnessKey};
use longshore_domain::run::MessageId;
use longshore_domain::{JobType, Lane, Queue, SmolStr, Tenant, Timestamp};

use crate::Backbone;
use crate::error::Error;
use crate::lanes::delivery::{AckToken, Delivery};
use crate::messages::get;
use crate::messages::raw::{self, Raw};
use crate::messages::refusal::WRONG_SEQUENCE;
use crate::messages::request;
use crate::messages::scan::Source;
use crate::wire::header::{self, names};

/// Header of a copy: the subject that the job was published to.
const SUBJECT: &str = "Longshore-Copied-Subject";
/// Header of a copy: when the job was stored, in Unix milliseconds.
const STORED_AT: &str = "Longshore-Copied-Stored-At";
/// Header of a copy: from when on the job's rank is to count, in Unix milliseconds.
const RANKED_FROM: &str = "Longshore-Copied-Ranked-From";

/// A job that waits in its lane.
#[derive(Debug, Clone)]
pub struct InLane {
    /// Its message.
    pub message: MessageId,
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
    /// No client library can read it.
    pub is_broken: bool,
}

/// A copy of a job.
#[derive(Debug, Clone)]
pub struct Copied {
    /// The job, as it stood in its lane.
    pub job: InLane,
    /// The lane that it is taken out of.
    pub lane: Lane,
    /// From when on its rank counts.
    pub ranked_from: Timestamp,
    /// The sequence of the copy.
    pub sequence: u64,
    /// When the copy was stored.
    pub copied_at: Timestamp,
}

impl InLane {
    fn read(raw: Raw, stream: &str) -> Self {
        let message = MessageId { stream: SmolStr::from(stream), sequence: raw.sequence, at: raw.at };
        let is_broken = raw::fault(&raw.subject, &raw.headers).is_some();
        Self { message, headers: raw::readable(&raw.headers), subject: raw.subject, payload: raw.payload, is_broken }
    }

    /// The job as if its message had been delivered; the ack token settles nothing.
    pub fn as_delivery(&self) -> Delivery {
        let headers = (!self.headers.is_empty()).then(|| self.headers.clone());
        let (message, subject, payload) = (self.message.clone(), self.subject.clone(), self.payload.clone());
        Delivery::of_stored(message, subject, payload, headers, AckToken::none())
    }
}

impl Backbone {
    /// The next jobs of a fairness key in a lane, as the lane's leader has them: all that stand in the `ahead`
    /// sequences from `from` on, and the first one behind those. And from where on there may be more; `None`: there are
    /// none. All are asked for at once, so that jobs that stand together are read together; they are not read in pages,
    /// as one message that no client library can read would take the whole page, and the connection, with it.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn jobs_in_lane(
        &self,
        lane: &Lane,
        key: &FairnessKey,
        from: u64,
        ahead: u64,
    ) -> Result<(Vec<InLane>, Option<u64>), Error> {
        let (stream, behind) = (self.names().lane_stream(&lane.queue, lane.priority), from.saturating_add(ahead));
        let near = (from..behind).map(|sequence| get::at(self.control(), &stream, sequence));
        let (near, first) =
            tokio::join!(futures_util::future::try_join_all(near), self.next_in_lane(lane, Some(key), behind));
        let is_of_key = |raw: &Raw| self.fairness_key(&raw.subject, key.by()).as_ref() == Some(key);
        let near = near?.into_iter().flatten().filter(is_of_key).map(|raw| InLane::read(raw, &stream));
        let first = first?;
        let next = first.as_ref().map(|first| first.message.sequence + 1);
        Ok((near.chain(first).collect(), next))
    }

    fn lane_filter(&self, lane: &Lane, key: Option<&FairnessKey>) -> String {
        let (tenant, job_type) = match key {
            None => (None, None),
            Some(FairnessKey::Tenant(tenant)) => (Some(tenant), None),
            Some(FairnessKey::Type(job_type)) => (None, Some(job_type)),
        };
        self.names().jobs_where(tenant, lane, job_type)
    }

    /// Whose share the jobs of a subject count against.
    pub(crate) fn fairness_key(&self, subject: &str, by: FairBy) -> Option<FairnessKey> {
        let read = self.names().read_job(subject)?;
        match by {
            FairBy::Tenant => Tenant::parse(read.tenant).ok().map(FairnessKey::Tenant),
            FairBy::Type => JobType::parse(read.job_type).ok().map(FairnessKey::Type),
        }
    }

    /// The first job of a lane from a sequence on, of one fairness key or of any, as the lane's leader has it.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn next_in_lane(
        &self,
        lane: &Lane,
        key: Option<&FairnessKey>,
        from: u64,
    ) -> Result<Option<InLane>, Error> {
        let stream = self.names().lane_stream(&lane.queue, lane.priority);
        let found = get::next(self.control(), &stream, &self.lane_filter(lane, key), from).await?;
        Ok(found.map(|raw| InLane::read(raw, &stream)))
    }

    /// Whether a job's message is in its lane, as the lane's leader knows it.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn is_in_lane(&self, message: &MessageId) -> Result<bool, Error> {
        let found = get::at(self.control(), &message.stream, message.sequence).await?;
        // A stream that was created again has other messages of these sequences.
        Ok(found.is_some_and(|raw| raw.at == message.at))
    }

    /// Copies a job; the copy says from when on its rank counts. `None`: there is a copy of it already.
    ///
    /// # Errors
    /// The stream is full, or it is not known whether the copy is stored.
    pub async fn copy_out(&self, lane: &Lane, job: InLane, ranked_from: Timestamp) -> Result<Option<Copied>, Error> {
        let subject = self.names().copied(lane, job.message.sequence);
        let mut headers = header::without_servers(Some(&job.headers));
        headers.insert(SUBJECT, job.subject.as_str());
        headers.insert(STORED_AT, job.message.at.millis().to_string());
        headers.insert(RANKED_FROM, ranked_from.millis().to_string());
        headers.insert(names::EXPECTED, "0");
        match request::publish(self.control(), subject, headers, job.payload.clone()).await {
            Ok(ack) => Ok(Some(Copied {
                job,
                lane: lane.clone(),
                ranked_from,
                sequence: ack.seq,
                copied_at: Timestamp::default(),
            })),
            Err(Error::Refused { code: WRONG_SEQUENCE, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first copy of a job of a queue from a sequence on, as the stream's leader has it; and the sequence from
    /// which the next one is to be looked for.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn next_copy(&self, queue: &Queue, from: u64) -> Result<Option<(Option<Copied>, u64)>, Error> {
        let (stream, filter) = (self.names().parked_stream(), self.names().copies_of(queue));
        let found = get::next(self.control(), &stream, &filter, from).await?;
        Ok(found.map(|raw| {
            let next = raw.sequence + 1;
            (self.read_copy(raw), next)
        }))
    }

    fn read_copy(&self, raw: Raw) -> Option<Copied> {
        let (lane, of) = self.names().read_copied(&raw.subject)?;
        let headers = raw::parse(&raw.headers).ok()?;
        let text = |name: &str| header::value_of(&headers, name);
        let time = |name: &str| text(name)?.parse().ok().map(Timestamp::from_millis);
        let stream = SmolStr::from(self.names().lane_stream(&lane.queue, lane.priority));
        let own = [SUBJECT, STORED_AT, RANKED_FROM];
        let job = InLane {
            message: MessageId { stream, sequence: of, at: time(STORED_AT)? },
            subject: text(SUBJECT)?.to_owned(),
            headers: header::kept(Some(&headers), |name| !own.contains(&name) && !header::is_servers(name)),
            payload: raw.payload,
            is_broken: false,
        };
        let ranked_from = time(RANKED_FROM)?;
        Some(Copied { job, lane, ranked_from, sequence: raw.sequence, copied_at: raw.at })
    }

    /// A copied job as the delivery of the message that it was; to acknowledge it deletes the copy.
    pub fn take_copy(&self, copied: &Copied) -> Delivery {
        let (subject, request) = self.deletion(&self.stream_of(&Source::Parked), copied.sequence);
        Delivery { ack_token: AckToken::to_delete(subject, request, true), ..copied.job.as_delivery() }
    }

    /// Up to which sequence the messages of a lane were delivered, as its consumer's leader knows it; `None`: it has no
    /// consumer.
    ///
    /// # Errors
    /// The leader did not answer.
    pub async fn delivered_in(&self, lane: &Lane) -> Result<Option<u64>, Error> {
        self.position_in(&self.names().lane_stream(&lane.queue, lane.priority)).await
    }
}
