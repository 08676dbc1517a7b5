//! Commits: a decision about a run and all that carries it out, as one value with the ack token.
//!
//! * [`encode`](crate::ports::encode) makes the bytes of record and events, `lines` what the log says of a job. The
//!   worker does this, so that the committer, of which each node has only one, only passes bytes on.
//! * `pipeline` says what follows: the record is stored, the events are published; `batches` are those of the event
//!   log. `committer` sends and awaits the answers; others reach it by `handle`, and what they send waits in `inbox`.
//! * `follow_up` does the rest: unclear records, schedule, parked job or dead letter, acknowledgement; `keys` is
//!   what an end leaves of them, `chain` knows the job that follows a completed run.

pub(crate) mod chain;
pub(crate) mod in_node;
pub(crate) mod keys;
pub(crate) mod lines;

pub(crate) mod batches;
pub(crate) mod committer;
pub(crate) mod follow_up;
pub(crate) mod handle;
mod inbox;
pub(crate) mod pipeline;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use longshore_backbone::Headers;
use longshore_backbone::delivery::AckToken;
use longshore_domain::concurrency::ConcurrencyId;
use longshore_domain::follow_up::FollowUp;
use longshore_domain::protocol::Arrival;
use longshore_domain::publication::Published;
use longshore_domain::{Run, RunId, SmolStr, Timestamp, TraceId};
use tokio::sync::oneshot;

use crate::lease_keeper::LeaseEntry;
use crate::metrics::jobs::Decision;
use crate::ports::encode::{Author, Destination, EncodedEvents, Write};
use crate::runtime::deferred::Deferred;
use crate::runtime::gate_news::Wakes;
use crate::runtime::log_run::About;
use crate::runtime::park_permits::ParkPermit;
use crate::trace::{JobTrace, Tracer, context};

/// With more commits than this in flight, those that a full stream refuses make room: half are left to all others.
const MANY: usize = committer::IN_FLIGHT / 2;

/// The job as it was published; a schedule or a dead letter carries it on.
#[derive(Debug, Clone, Default)]
pub(crate) struct PublishedJob {
    pub(crate) headers: Option<Arc<Headers>>,
    pub(crate) body: Bytes,
    /// The trace that it belongs to, if this node writes traces.
    pub(crate) trace: Option<JobTrace>,
}

impl PublishedJob {
    pub(crate) fn trace_id(&self) -> Option<TraceId> {
        let of_this_node = self.trace.as_ref().map(|trace| TraceId(u128::from_be_bytes(trace.id.to_bytes())));
        of_this_node.or_else(|| context::id_in(self.headers.as_deref()))
    }

    /// What carries the job on says which trace it belongs to, if nobody has said so yet.
    pub(crate) fn name_trace(&mut self) {
        if let Some(trace) = self.trace.as_ref().filter(|trace| trace.is_own) {
            let mut headers = self.headers.as_deref().cloned().unwrap_or_default();
            trace.put(trace.parent, &mut headers);
            self.headers = Some(Arc::new(headers));
        }
    }
}

/// The job that follows a run, as it is published.
#[derive(Debug)]
pub(crate) struct NextJob {
    pub(super) run: Run,
    pub(super) headers: Headers,
    pub(super) payload: Bytes,
    /// The token of the write that marks its record as published.
    pub(super) mark: SmolStr,
    /// A run of its id from before this time followed an earlier run of the id of the one before.
    pub(super) since: Timestamp,
}

/// A decision about a run, to be carried out: record, events, follow-up, and the delivery last.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) run: Box<Run>,
    pub(crate) payload: PublishedJob,
    pub(crate) arrival: Option<Arrival>,
    /// The token of an earlier write of this attempt whose answer was lost.
    pub(crate) unclear: Option<SmolStr>,
    /// Which events were published before the decision.
    pub(crate) published: Published,
    /// Its entry among the leases: the lease is renewed until the decision is stored.
    pub(crate) entry: Option<LeaseEntry>,
    /// The record's write. `None`: the record is stored already, or this run keeps none.
    pub(crate) write: Option<Write>,
    /// Events that were published live before, and go into the log once the record is stored.
    pub(crate) live_before: Option<EncodedEvents>,
    /// Events to be published once the record is stored.
    pub(crate) lines: EncodedEvents,
    /// What to write after the events.
    pub(crate) follow_up: Option<FollowUp>,
    pub(crate) next: Option<Box<NextJob>>,
    pub(crate) after: AfterCommit,
    /// The line of its key, which an ended run may leave empty.
    pub(crate) line: Option<Box<ConcurrencyId>>,
    /// The permit of a job that is being parked: given back when the commit is dropped.
    pub(crate) park: Option<ParkPermit>,
    /// Whom its end wakes: dropped with the commit.
    pub(crate) wakes: Option<Wakes>,
    /// What to count once the decision is stored; `None`: it was counted before.
    pub(crate) decision: Option<Decision>,
    /// It ends an attempt of its run, the last of the record.
    pub(crate) ends_attempt: bool,
    /// Why the run was last deferred before that attempt.
    pub(crate) deferred: Option<Deferred>,
    /// Its place among the commits in flight, once the committer has it.
    pub(crate) in_flight: Option<InFlightPermit>,
}

/// A commit's place among those in flight, given up with the commit, however that ends: also in a panic.
#[derive(Debug)]
pub(crate) struct InFlightPermit(Arc<AtomicUsize>);

impl InFlightPermit {
    pub(crate) fn taken(of: &Arc<AtomicUsize>) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(of))
    }

    fn is_one_of_many(&self) -> bool {
        self.0.load(Ordering::Relaxed) > MANY
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What becomes of the delivery, last.
#[derive(Debug)]
pub(crate) enum AfterCommit {
    Ack(AckToken),
    Return(AckToken),
    /// The node holds the job locally: the ack token goes back to the waiting task, with the record's revision.
    LocalRetry(AckToken, oneshot::Sender<(AckToken, u64)>),
    /// There is no delivery, but the sender waits until all is confirmed, for the record's revision. If the channel is
    /// dropped instead, this commit did not carry the decision out.
    Report(oneshot::Sender<u64>),
    /// There is no delivery, or it is still being worked on.
    Nothing,
}

impl AfterCommit {
    pub(crate) fn into_ack_token(self) -> Option<AckToken> {
        match self {
            Self::Ack(ack_token) | Self::Return(ack_token) | Self::LocalRetry(ack_token, _) => Some(ack_token),
            Self::Report(_) | Self::Nothing => None,
        }
    }
}

impl Commit {
    pub(crate) fn about(&self) -> About<'_> {
        About::run(&self.run).traced(self.payload.trace_id())
    }

    /// The commit of a run whose record is to be written on the revision `expected`.
    pub(crate) fn to_write<D: Destination>(
        run: Box<Run>,
        payload: PublishedJob,
        expected: u64,
        published: Published,
        author: Author<'_, D>,
    ) -> Self {
        let (lines, write) = EncodedEvents::with_record(&run, expected, published, author);
        Self { write: Some(write), ..Self::with_events(run, payload, lines) }
    }

    /// The commit of a run whose record is stored as it is.
    pub(crate) fn of_stored<D: Destination>(
        run: Box<Run>,
        payload: PublishedJob,
        published: Published,
        author: Author<'_, D>,
    ) -> Self {
        let lines = EncodedEvents::of(&run, published, author);
        Self::with_events(run, payload, lines)
    }

    /// The id belongs to another run: this run goes on under the next id derived from its position in the lane, and is
    /// published as a whole.
    pub(crate) fn rename<D: Destination>(&mut self, server: &D) {
        let Some(arrival) = &mut self.arrival else { return };
        let message = &arrival.holding.message;
        let derived = RunId::derived(&self.run.lane(), message.sequence);
        arrival.has_derived_id = self.run.run_id != derived;
        self.run.run_id = if arrival.has_derived_id { derived } else { RunId::derived_at(&derived, message.at) };
        let node = self.run.node.clone().unwrap_or_default();
        let author = Author { node: &node, server };
        let (lines, write) = EncodedEvents::with_record(&self.run, 0, Published::nothing(), author);
        (self.lines, self.write, self.live_before) = (lines, Some(write), None);
    }

    /// The decision is stored: takes the spans that it ends.
    pub(crate) fn trace(&self, tracer: &Tracer) {
        let Some(trace) = &self.payload.trace else { return };
        let (run, bytes) = (&*self.run, self.payload.body.len());
        let ends_first =
            self.ends_attempt && run.attempts.last().is_some_and(|attempt| attempt.attempt == 1 && attempt.start == 1);
        // What carries the job on names the root, so that no node after this one takes it for its own.
        let leaves = !run.has_started() && matches!(self.follow_up, Some(FollowUp::Schedule(_) | FollowUp::Park(_)));
        if trace.is_own && run.round == 1 && (ends_first || leaves) {
            tracer.published(trace, run, bytes);
        }
        match self.ends_attempt {
            true => tracer.attempt_ended(trace, run, bytes, self.deferred),
            false => tracer.wait_ended(trace, run),
        }
    }

    /// The record is stored, at this revision; its bytes are no longer needed.
    pub(crate) fn written(&mut self, revision: u64) {
        self.entry = None;
        self.write = Some(Write { expected: revision, subject: Bytes::new(), body: Bytes::new() });
    }

    /// Whether it only adds lines to the log, and nothing waits for them.
    pub(crate) fn is_for_the_log_alone(&self) -> bool {
        let does_no_more = self.write.is_none() && self.follow_up.is_none() && self.lines.count() == 0;
        does_no_more && matches!(self.after, AfterCommit::Nothing)
    }

    /// The commit of a run whose record is stored as it is, with these events to publish.
    pub(crate) fn with_events(run: Box<Run>, payload: PublishedJob, lines: EncodedEvents) -> Self {
        Self {
            run,
            payload,
            arrival: None,
            unclear: None,
            published: Published::nothing(),
            entry: None,
            write: None,
            live_before: None,
            lines,
            follow_up: None,
            next: None,
            after: AfterCommit::Nothing,
            line: None,
            park: None,
            wakes: None,
            decision: None,
            ends_attempt: false,
            deferred: None,
            in_flight: None,
        }
    }
}
