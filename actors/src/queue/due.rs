//! A due job on its way into its lane: the timekeeper moves it once its schedule has fired, the sweep if it has not
//! fired; and parking moves a parked job into the lane of returned jobs.
//!
//! All publish the same: the headers without those that the server added, under an id of run, round, attempt, wait
//! and the message that is moved.
//! So a job that is moved twice is mostly caught by the id, and always by the record.
//!
//! The simulation drives [`move_to_lane`] and [`take_to_lane`], too; [`DuePorts`] and [`StoredPorts`] are what they ask
//! for.

use bytes::Bytes;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::header::{self, JobHeaders};
use longshore_backbone::wire::subject::Names;
use longshore_backbone::{Backbone, Error, Headers};
use longshore_domain::{JobType, Lane, Priority, Queue, RunId, Tenant, Timestamp};
use prometheus::Histogram;

use crate::runtime::{fail_point, now};

/// A job whose time has come, or a parked job that is taken back.
#[derive(Debug)]
pub(crate) struct DueJob {
    pub(crate) lane: Lane,
    subject: String,
    headers: Headers,
    payload: Bytes,
    /// The message id under which it is published.
    pub(crate) id: String,
    due_at: Option<Timestamp>,
}

impl DueJob {
    /// Reads a message that is on a due subject, was to go to one, or is parked; `None` if it cannot be read.
    /// `sequence` identifies the message if its headers do not.
    pub(crate) fn read(
        names: &Names,
        due: &str,
        headers: Option<&Headers>,
        payload: Bytes,
        sequence: u64,
    ) -> Option<Self> {
        let read = names.read_job(due)?;
        let tenant = Tenant::parse(read.tenant).ok()?;
        let lane = Lane { queue: Queue::parse(read.queue).ok()?, priority: Priority::parse(read.priority).ok()? };
        let job_type = JobType::parse(read.job_type).ok()?;
        let subject = match names.is_parked(due) {
            true => names.returned(&tenant, &lane, &job_type),
            false => names.job(&tenant, &lane, &job_type),
        };
        let headers = header::without_servers(headers);
        let job = Self::of(lane, header::read_job(&headers).ok().as_ref(), &tenant, sequence);
        Some(Self { subject, headers, payload, ..job })
    }

    /// What its headers say of it, once they are read; still without a message.
    pub(crate) fn of(lane: Lane, read: Option<&JobHeaders>, tenant: &Tenant, sequence: u64) -> Self {
        let (id, due_at) = (message_id(tenant, read, sequence), read.and_then(|read| read.moved?.due_at));
        Self { lane, subject: String::new(), headers: Headers::new(), payload: Bytes::new(), id, due_at }
    }

    pub(crate) async fn publish(&self, backbone: &Backbone) -> Result<(), Error> {
        let (subject, headers, payload) = (self.subject.clone(), self.headers.clone(), self.payload.clone());
        backbone.move_to_lane(subject, headers, payload, &self.id).await.map(|_| ())
    }

    /// It is in its lane: counts how late that is.
    pub(crate) fn count(&self, lateness: &Histogram) {
        if let Some(due_at) = self.due_at {
            lateness.observe(now().since(due_at).as_secs_f64());
        }
    }
}

/// What moving a due job into its lane asks.
pub(crate) trait DuePorts {
    /// Why a lane did not take a job.
    type Refusal;

    async fn move_to_lane(&self, job: &DueJob) -> Result<(), Self::Refusal>;
    /// The job is in its lane.
    fn moved(&self, job: &DueJob);
    async fn ack(&self, ack_token: AckToken);
}

/// Moves a due job into its lane, then acknowledges its message; hands the ack token back if the lane does not take it.
pub(crate) async fn move_to_lane<P: DuePorts>(
    ports: &P,
    job: &DueJob,
    ack_token: AckToken,
) -> Result<(), (P::Refusal, AckToken)> {
    match ports.move_to_lane(job).await {
        Ok(()) => {
            ports.moved(job);
            fail_point::pass("after-move");
            ports.ack(ack_token).await;
            Ok(())
        }
        Err(refusal) => Err((refusal, ack_token)),
    }
}

/// What moving a job asks whose message no consumer delivers: a schedule that did not fire, or a parked job.
pub(crate) trait StoredPorts {
    async fn publish(&self, job: &DueJob) -> Result<(), Error>;
    /// The job is in its lane.
    fn published(&self, job: &DueJob);
    /// Deletes the message that was moved; returns whether it was still there.
    async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error>;
}

/// Moves a job into its lane, then deletes its message. Says whether that was still there: of several nodes that move
/// the same job, one hears so.
///
/// # Errors
/// The lane did not confirm the job: its message stays. Or the job is in its lane, and nobody knows whether its message
/// is gone.
pub(crate) async fn take_to_lane<P: StoredPorts>(
    ports: &P,
    job: &DueJob,
    place: &Source,
    sequence: u64,
) -> Result<bool, Error> {
    ports.publish(job).await?;
    ports.published(job);
    ports.take_out(place, sequence).await
}

fn message_id(tenant: &Tenant, read: Option<&JobHeaders>, sequence: u64) -> String {
    let Some(read) = read else { return format!("{tenant}/due/{sequence}") };
    let run = read.run_id.as_ref().map_or("", RunId::as_str);
    let moved = read.moved.map(|moved| (moved.round, moved.attempt, moved.deferrals));
    let (round, attempt, wait) = moved.unwrap_or_default();
    let seal = read.seal.as_deref().unwrap_or_default();
    // A run that was rescheduled may come twice by one wait: each message that fired is known by its sequence.
    format!("{tenant}/{run}/{seal}/{round}/{attempt}/{wait}/{sequence}")
}

#[cfg(test)]
mod tests;
