//! A delivery, read as a job: the scheduler orders it and a worker works on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_backbone::Headers;
use longshore_backbone::delivery::{AckToken, Delivery};
use longshore_backbone::wire::header::{self, JobHeaders};
use longshore_backbone::wire::subject::{JobSubject, Names};
use longshore_domain::admission;
use longshore_domain::policy::Policies;
use longshore_domain::protocol::Arrival;
use longshore_domain::rank::Rank;
use longshore_domain::run::DeferReason;
use longshore_domain::{BatchId, Job, JobType, Lane, NameError, Priority, Queue, Run, RunId, Tenant, Timestamp};

use crate::attempt::first_claims::ClaimPlace;
use crate::attempt::permits::Permits;
use crate::commit::{PublishedJob, chain};
use crate::lease_keeper::LeaseEntry;
use crate::runtime::log_run::About;
use crate::runtime::park_permits::ParkPermit;
use crate::trace::{JobTrace, Tracer};

/// A job that this node has pulled.
#[derive(Debug)]
pub(crate) struct Assignment {
    pub(crate) job: Arc<Job>,
    pub(crate) payload: PublishedJob,
    pub(crate) arrival: Arrival,
    /// When it was published, or became due.
    pub(crate) since: Timestamp,
    pub(crate) leased_from: Instant,
    /// Its entry among the leases, once it has one.
    pub(crate) entry: Option<LeaseEntry>,
    /// What the gates gave it to start.
    pub(crate) permits: Permits,
    /// Its permit to be parked, if it cannot start now.
    pub(crate) park: Option<ParkPermit>,
    /// Its place among the jobs with its key or id, while it begins.
    pub(crate) place: Option<ClaimPlace>,
    /// It was parked and taken back.
    pub(crate) is_returned: bool,
    pub(crate) ack_token: AckToken,
    pub(crate) start: Start,
}

#[derive(Debug)]
pub(crate) enum Start {
    /// Nothing of it has been read or written yet; it may take the fast path.
    Unread {
        /// The lane's high-water mark as the delivery was read.
        mark: u64,
    },
    /// The record is read and claimed first.
    Claim,
    /// Its attempt was detached: no handler is called, and nothing holds it up.
    Detached,
    /// A short retry that was held locally: its record, and the record's revision.
    HeldLocally(Box<Run>, u64),
    /// It cannot be read, for this reason.
    Invalid(String),
}

impl Assignment {
    /// Reads a delivery. `mark` is the lane's high-water mark: the sequence up to which a delivery count proves
    /// nothing. A client's job of more than `max` bytes is invalid, as it could not be carried on.
    pub(crate) fn read(delivery: Delivery, names: &Names, mark: u64, max: usize) -> Self {
        let Delivery { subject, headers, payload, size, holding, leased_from, ack_token, .. } = delivery;
        let parsed = read_subject(&subject, names);
        let is_returned = names.is_returned(&subject);
        let said = read_headers(&parsed, is_returned, headers.as_ref(), &payload);
        let (said, mut start) = match said {
            // A node published it for an attempt that ends late, or has not ended in time.
            Ok(said) if said.moved.is_some_and(|moved| moved.deferred_for == Some(DeferReason::Detached)) => {
                (said, Start::Detached)
            }
            Ok(said) => (said, Start::Unread { mark }),
            Err(reason) => (JobHeaders::default(), Start::Invalid(reason)),
        };
        let in_headers = size.saturating_sub(payload.len());
        let most_in_headers = if said.seal.is_some() { header::MOVED_HEADERS_MAX } else { header::HEADERS_MAX };
        let max = if said.seal.is_some() { usize::MAX } else { max };
        if let (Start::Unread { .. }, Some(reason)) = (&start, too_large(in_headers, most_in_headers, size, max)) {
            start = Start::Invalid(reason);
        }
        let own_id = || RunId::derived(&Lane::new(&parsed.queue, parsed.priority), holding.message.sequence);
        // The id of an invalid job may still be readable.
        let readable = || headers.as_ref().and_then(header::read_run_id);
        let named = said.run_id.or_else(|| readable().filter(|_| matches!(start, Start::Invalid(_))));
        let has_derived_id = named.as_ref().is_none_or(|id| id.as_derived().is_some());
        let run_id = named.unwrap_or_else(own_id);
        let since = said.moved.and_then(|moved| moved.due_at).unwrap_or(holding.message.at);
        let arrival = Arrival {
            holding,
            round: said.moved.map_or(1, |moved| moved.round),
            attempt: said.moved.map_or(1, |moved| moved.attempt),
            deferrals: said.moved.map_or(0, |moved| moved.deferrals),
            due_at: said.moved.and_then(|moved| moved.due_at),
            moved: said.moved.is_some(),
            seal: said.seal,
            has_derived_id,
            has_aged: false,
        };
        let Parsed { tenant, queue, priority, job_type, .. } = parsed;
        Self {
            job: Arc::new(Job { tenant, queue, priority, job_type, run_id, options: said.options }),
            payload: PublishedJob { headers: headers.map(Arc::new), body: payload, trace: None },
            arrival,
            since,
            leased_from,
            entry: None,
            permits: Permits::default(),
            park: None,
            place: None,
            is_returned,
            ack_token,
            start,
        }
    }

    /// Waits until no earlier job of its queue is about to claim the same key or id. The others wait until its place is
    /// dropped.
    pub(crate) async fn come_to_place(&self) {
        if let Some(place) = &self.place {
            place.comes().await;
        }
    }

    /// Says which trace it belongs to.
    pub(crate) fn trace(&mut self, tracer: &Tracer) {
        let Job { tenant, run_id, .. } = &*self.job;
        let (headers, stored_at) = (self.payload.headers.as_deref(), self.arrival.holding.message.at);
        self.payload.trace = Some(JobTrace::of(tracer, headers, tenant, run_id, stored_at));
    }

    /// The ids that it may run under, the first that is free: the id it names; the id derived from its position in the
    /// lane; and, if a stream that is gone had that position before, the derived id with the time the job was stored.
    pub(crate) fn ids(&self) -> [RunId; 3] {
        let message = &self.arrival.holding.message;
        let derived = RunId::derived(&self.job.lane(), message.sequence);
        let timed = RunId::derived_at(&derived, message.at);
        [self.job.run_id.clone(), derived, timed]
    }

    pub(crate) fn rename(&mut self, run_id: RunId) {
        if self.job.run_id != run_id {
            self.arrival.has_derived_id = run_id.as_derived().is_some();
            self.job = Arc::new(Job { run_id, ..(*self.job).clone() });
        }
    }

    /// Its run as if it had a record, for those who ask what waits.
    pub(crate) fn waiting_run(&self, policies: &Policies) -> Run {
        let mut run = policies.new_run(&self.job, &self.payload.body, self.since);
        run.trace_id = self.payload.trace_id();
        run
    }

    /// Whether a client's own publish is taken, or why not. What a node moved was taken before.
    pub(crate) fn admit(&self, policies: &Policies) -> Result<(), String> {
        if self.arrival.seal.is_some() || matches!(self.start, Start::Invalid(_)) {
            return Ok(());
        }
        let Job { tenant, job_type, options, .. } = &*self.job;
        let version = options.as_ref().and_then(|options| options.schema_version.as_deref());
        let admitted = admission::admit(policies, tenant, job_type, version, &self.payload.body);
        admitted.map_err(|refusal| refusal.to_string())?;
        match options.as_ref().and_then(|options| options.then.as_ref()) {
            Some(then) => chain::check_header(policies, tenant, &then.job),
            None => Ok(()),
        }
    }

    /// The batch that a job of a client's own publish joins. A job that a node published has joined before.
    pub(crate) fn joins(&self) -> Option<&BatchId> {
        self.job.options.as_ref()?.batch.as_ref().filter(|_| self.arrival.seal.is_none())
    }

    pub(crate) fn calls_handler(&self) -> bool {
        !matches!(self.start, Start::Invalid(_) | Start::Detached)
    }

    pub(crate) fn rank(&self, aging: Duration) -> Rank {
        Rank::new(self.since, self.job.priority, aging)
    }

    /// Its position among jobs of one kind: jobs that were published in the same millisecond keep the order of their
    /// lane, also after they were moved.
    pub(crate) fn place(&self, aging: Duration) -> (Rank, u64) {
        (self.rank(aging), number_of(&self.job.run_id, self.arrival.holding.message.sequence))
    }

    /// Whether its lease is over, so that the server may have given it to another node: then nothing is sent for it,
    /// and no handler is called.
    pub(crate) fn lease_is_over(&self, now: Instant, lease: Duration) -> bool {
        match &self.entry {
            Some(entry) => entry.is_lost(now, lease),
            None => now.saturating_duration_since(self.leased_from) >= lease,
        }
    }

    pub(crate) fn about(&self) -> About<'_> {
        About::job(&self.job, self.arrival.attempt).traced(self.payload.trace_id())
    }

    /// Whether so little of its lease is left that its handler must not be called any more: the first renewal may come
    /// too late, and another node would call its own meanwhile. Only a node that was frozen finds such jobs, as those
    /// that wait are returned after a third.
    pub(crate) fn is_too_late_to_start(&self, now: Instant, lease: Duration) -> bool {
        let is_renewed = self.entry.is_some() || self.is_held_locally();
        let starts = !is_renewed && self.park.is_none();
        starts && now.saturating_duration_since(self.leased_from) > lease * 2 / 3
    }

    /// The job, if it may still be started or parked. If its lease is over, it is abandoned; if little of that is left,
    /// it is returned.
    pub(crate) fn in_time(self: Box<Self>, now: Instant, lease: Duration) -> Option<Box<Self>> {
        if self.lease_is_over(now, lease) || self.is_too_late_to_start(now, lease) {
            self.return_or_abandon(now, lease);
            return None;
        }
        Some(self)
    }

    /// Returns the job, which keeps its place; if its lease is over, another node may have it, and nothing is sent.
    pub(crate) fn return_or_abandon(self, now: Instant, lease: Duration) {
        if self.lease_is_over(now, lease) {
            self.ack_token.abandon();
        } else {
            self.ack_token.nak();
        }
    }

    /// It is a short retry that this node holds locally, as its record says.
    pub(crate) fn is_held_locally(&self) -> bool {
        matches!(self.start, Start::HeldLocally(..))
    }

    pub(crate) fn headers(&self) -> Option<&Headers> {
        self.payload.headers.as_deref()
    }
}

/// The number of a run in its lane, taken from a derived id; else the sequence of the message that carries it.
pub(crate) fn number_of(run: &RunId, sequence: u64) -> u64 {
    run.as_derived().map_or(sequence, |(_, number)| number)
}

struct Parsed {
    tenant: Tenant,
    queue: Queue,
    priority: Priority,
    job_type: JobType,
    error: Option<String>,
}

/// The contents of a job's headers, or why the job is invalid.
fn read_headers(
    parsed: &Parsed,
    is_returned: bool,
    headers: Option<&Headers>,
    payload: &[u8],
) -> Result<JobHeaders, String> {
    if let Some(error) = &parsed.error {
        return Err(error.clone());
    }
    let said = headers.map_or(Ok(JobHeaders::default()), header::read_job).map_err(|error| error.to_string())?;
    if headers.is_none() && is_acknowledgement(payload) {
        return Err("the payload is a JetStream acknowledgement: a forgery by reply subject".to_owned());
    }
    if is_returned && said.seal.is_none() {
        return Err("subject: only nodes publish to it".to_owned());
    }
    Ok(said)
}

/// Reads a job's subject; a token that cannot be read becomes `_`, and the first such token is the error.
fn read_subject(subject: &str, names: &Names) -> Parsed {
    let JobSubject { tenant, queue, priority, job_type } = names.read_job(subject).unwrap_or_default();
    let mut error = None;
    Parsed {
        tenant: read_or(Tenant::unreadable, Tenant::parse(tenant), &mut error),
        queue: read_or(Queue::unreadable, Queue::parse(queue), &mut error),
        priority: read_or(|| Priority::DEFAULT, Priority::parse(priority), &mut error),
        job_type: read_or(JobType::unreadable, JobType::parse(job_type), &mut error),
        error,
    }
}

fn read_or<T>(instead: fn() -> T, read: Result<T, NameError>, error: &mut Option<String>) -> T {
    read.unwrap_or_else(|wrong| {
        error.get_or_insert_with(|| format!("subject: {wrong}"));
        instead()
    })
}

/// Whether a client's job is too large to be scheduled again or kept as a dead letter.
fn too_large(in_headers: usize, most_in_headers: usize, size: usize, max: usize) -> Option<String> {
    if in_headers > most_in_headers {
        return Some(format!("headers: have {in_headers} bytes, {} are allowed", header::HEADERS_MAX));
    }
    (size > max).then(|| size_refused(size, max))
}

pub(crate) fn size_refused(size: usize, max: usize) -> String {
    format!("payload: payload and headers have {size} bytes, {max} are allowed by this NATS server's max_payload")
}

/// Whether a payload is exactly what JetStream answers to a publish: an object with `stream` and `seq`, and nothing
/// that such an answer has not.
pub(crate) fn is_acknowledgement(payload: &[u8]) -> bool {
    if payload.first() != Some(&b'{') || payload.len() > 512 {
        return false;
    }
    // Most payloads are small objects: those without the word need not be parsed.
    if !std::str::from_utf8(payload).is_ok_and(|text| text.contains("\"stream\"")) {
        return false;
    }
    let Ok(fields) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(payload) else {
        return false;
    };
    let known = ["stream", "seq", "domain", "duplicate", "val", "batch", "count"];
    fields.get("stream").is_some_and(serde_json::Value::is_string)
        && fields.get("seq").is_some_and(serde_json::Value::is_u64)
        && fields.keys().all(|field| known.contains(&field.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_exact_acknowledgement_is_taken_for_one() {
        assert!(is_acknowledgement(br#"{"stream":"LONGSHORE_JOBS_main_P5", "seq":77}"#));
        assert!(is_acknowledgement(br#"{"stream":"S","seq":77,"duplicate":true}"#));
        assert!(!is_acknowledgement(br#"{"stream":"S","seq":77,"user":1}"#));
        assert!(!is_acknowledgement(br#"{"stream":"S"}"#));
        assert!(!is_acknowledgement(b"hello"));
    }

    #[test]
    fn what_cannot_be_read_stands_as_an_underscore() {
        let names = Names::new("longshore");
        let read = read_subject("longshore.jobs.a$b.main.p5.x", &names);
        assert_eq!((read.tenant.as_str(), read.queue.as_str(), read.job_type.as_str()), ("_", "main", "x"));
        assert!(read.error.unwrap().starts_with("subject: tenant \"a$b\" has '$'"));
    }
}
