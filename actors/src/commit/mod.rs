//! What a worker hands to the herald when something about a run was decided: one value, with the right to settle.
//!
//! The worker encodes record and events, so that the herald, of which there is one, only passes bytes on.

pub(crate) mod encode;

pub(crate) mod batches;
pub(crate) mod committer;
pub(crate) mod follow_up;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use longshore_backbone::delivery::AckToken;
use longshore_backbone::{Backbone, Headers};
use longshore_domain::follow_up::FollowUp;
use longshore_domain::protocol::Arrival;
use longshore_domain::publication::Published;
use longshore_domain::{Run, RunId, SmolStr};
use tokio::sync::oneshot;

use crate::commit::encode::{EncodedEvents, Write};
use crate::lease_keeper::Entry;
use crate::shared::park_permits::ParkPermit;

/// The job as it was published: what a schedule or a dead letter carries on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Payload {
    pub(crate) headers: Option<Arc<Headers>>,
    pub(crate) body: Bytes,
}

/// A decision about a run, to be carried out: record, events, what follows, and the delivery last.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) run: Box<Run>,
    pub(crate) payload: Payload,
    pub(crate) arrival: Option<Arrival>,
    /// The token of an earlier write of this attempt whose answer was lost.
    pub(crate) unclear: Option<SmolStr>,
    /// What was published before the decision.
    pub(crate) published: Published,
    /// Its entry among the leases, which are renewed until the decision is on record.
    pub(crate) entry: Option<Entry>,
    /// The record's write. `None`: it stands already, or is not kept.
    pub(crate) write: Option<Write>,
    /// What was published live before, and goes into the log once the record stands.
    pub(crate) live_before: Option<EncodedEvents>,
    /// Events to be published once the record stands.
    pub(crate) lines: EncodedEvents,
    /// What follows from the decision.
    pub(crate) follow_up: Option<FollowUp>,
    /// What becomes of the delivery.
    pub(crate) after: AfterCommit,
    /// Where it is being parked: given back with the story.
    pub(crate) park: Option<ParkPermit>,
    /// Its place at the herald's desk, once it is there.
    pub(crate) in_flight: Option<InFlightPermit>,
}

/// A story's place at the desk, given up with the story, however that ends: also in a panic.
#[derive(Debug)]
pub(crate) struct InFlightPermit(Arc<AtomicUsize>);

impl InFlightPermit {
    pub(crate) fn taken(of: &Arc<AtomicUsize>) -> Self {
        of.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(of))
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
    /// The job is done with here.
    Ack(AckToken),
    /// The job goes back to the server.
    HandBack(AckToken),
    /// The node keeps it in hand: the right goes back to whoever waits, with the record's revision.
    LocalRetry(AckToken, oneshot::Sender<(AckToken, u64)>),
    /// There is none, but the sender waits until all is confirmed, for the record's revision; dropped, it was not ours to
    /// tell.
    Report(oneshot::Sender<u64>),
    /// There is none, or it is still being worked on.
    Nothing,
}

impl AfterCommit {
    pub(crate) fn into_ack_token(self) -> Option<AckToken> {
        match self {
            Self::Ack(ack_token) | Self::HandBack(ack_token) | Self::LocalRetry(ack_token, _) => Some(ack_token),
            Self::Report(_) | Self::Nothing => None,
        }
    }
}

/// The log may not have a run's events: nothing that needs them may follow.
#[derive(Debug)]
pub(crate) struct Unlogged;

impl Commit {
    /// The story of a run whose record is to be written on `expected`.
    pub(crate) fn to_write(
        run: Box<Run>,
        payload: Payload,
        expected: u64,
        published: Published,
        node: &str,
        backbone: &Backbone,
    ) -> Self {
        let (lines, write) = EncodedEvents::with_record(&run, expected, published, node, backbone);
        Self { write: Some(write), ..Self::telling(run, payload, lines) }
    }

    /// The story of a run whose record stands as it is.
    pub(crate) fn is_stored(
        run: Box<Run>,
        payload: Payload,
        published: Published,
        node: &str,
        backbone: &Backbone,
    ) -> Self {
        let lines = EncodedEvents::of(&run, published, node, backbone.names());
        Self::telling(run, payload, lines)
    }

    /// Its id is another run's: it goes on under the next one that its place in the lane gives it, and is published as a
    /// whole.
    pub(crate) fn rename(&mut self, backbone: &Backbone) {
        let Some(arrival) = &mut self.arrival else { return };
        let message = &arrival.holding.message;
        let derived = RunId::derived(&self.run.queue, self.run.priority, message.sequence);
        arrival.has_derived_id = self.run.run_id != derived;
        self.run.run_id = if arrival.has_derived_id { derived } else { RunId::derived_at(&derived, message.at) };
        let node = self.run.node.clone().unwrap_or_default();
        let (lines, write) = EncodedEvents::with_record(&self.run, 0, Published::nothing(), &node, backbone);
        (self.lines, self.write, self.live_before) = (lines, Some(write), None);
    }

    /// The record stands, at this revision; its bytes are needed no more.
    pub(crate) fn written(&mut self, revision: u64) {
        self.entry = None;
        self.write = Some(Write { expected: revision, subject: Bytes::new(), body: Bytes::new() });
    }

    /// The story of a run whose record stands as it is, and of which this is to be told.
    pub(crate) fn telling(run: Box<Run>, payload: Payload, lines: EncodedEvents) -> Self {
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
            after: AfterCommit::Nothing,
            park: None,
            in_flight: None,
        }
    }
}
