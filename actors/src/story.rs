//! What a worker hands to the herald when something about a run was decided: one value, with the right to settle.
//!
//! The worker encodes record and events, so that the herald, of which there is one, only passes bytes on.

use std::sync::Arc;

use bytes::Bytes;
use longshore_backbone::delivery::Right;
use longshore_backbone::{Backbone, Headers};
use longshore_domain::protocol::Arrival;
pub(crate) use longshore_domain::story::Published as Told;
use longshore_domain::{Run, RunId, SmolStr, Timestamp};
use tokio::sync::oneshot;

use crate::blocked::ParkPermit;
use crate::herald::{Place, Telling};
use crate::lease_keeper::Entry;
use crate::lines::Lines;
use crate::shared::Shared;

/// The job as it was published: what a schedule or a dead letter carries on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Matter {
    pub(crate) headers: Option<Arc<Headers>>,
    pub(crate) payload: Bytes,
}

/// A decision about a run, to be carried out: record, events, what follows, and the delivery last.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) run: Box<Run>,
    pub(crate) matter: Matter,
    pub(crate) arrival: Option<Arrival>,
    /// The token of an earlier write of this attempt whose answer was lost.
    pub(crate) unclear: Option<SmolStr>,
    /// Its entry among the leases, which are renewed until the decision is on record.
    pub(crate) entry: Option<Entry>,
    /// The record's write. `None`: it stands already, or is not kept.
    pub(crate) write: Option<Write>,
    /// What was told live before, and goes into the log once the record stands.
    pub(crate) told: Option<Lines>,
    /// Events to be told once the record stands.
    pub(crate) lines: Lines,
    /// What follows from the decision.
    pub(crate) follow: Option<Follow>,
    /// What becomes of the delivery.
    pub(crate) then: Then,
    /// Where it is being parked: given back with the story.
    pub(crate) park: Option<ParkPermit>,
    /// Its place at the herald's desk, once it is there.
    pub(crate) place: Option<Place>,
}

/// A record's write, a compare-and-set.
#[derive(Debug)]
pub(crate) struct Write {
    /// The revision it must find; once it is written, its own.
    pub(crate) expected: u64,
    pub(crate) subject: Bytes,
    pub(crate) body: Bytes,
}

/// What makes the next thing possible; only after the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// The job comes again at this time.
    Schedule(Timestamp),
    /// The job waits out of the way; its place in the order counts from this time.
    Park(Timestamp),
    /// Its dead letter.
    Letter,
}

/// What becomes of the delivery, last.
#[derive(Debug)]
pub(crate) enum Then {
    /// The job is done with here.
    Ack(Right),
    /// The job goes back to the server.
    HandBack(Right),
    /// The node keeps it in hand: the right goes back to whoever waits, with the record's revision.
    Keep(Right, oneshot::Sender<(Right, u64)>),
    /// There is none, but the sender waits until all is confirmed, for the record's revision; dropped, it was not ours to
    /// tell.
    Report(oneshot::Sender<u64>),
    /// There is none, or it is still being worked on.
    Nothing,
}

impl Then {
    pub(crate) fn into_right(self) -> Option<Right> {
        match self {
            Self::Ack(right) | Self::HandBack(right) | Self::Keep(right, _) => Some(right),
            Self::Report(_) | Self::Nothing => None,
        }
    }
}

/// Tells the log everything of a run's present round, and who listens live its last `news` events; waits until the log
/// has it, and says whether it does. What came before the news was told live by whoever decided it, but its node may have
/// died over the log.
pub(crate) async fn tell_all(shared: &Shared, run: &Run, news: usize) -> bool {
    let (done, told) = oneshot::channel();
    let run = Box::new(run.clone());
    let live = longshore_domain::story::of_round(&run).len().saturating_sub(news);
    let mut story = Story::on_record(run, Matter::default(), Told { live, log: 0 }, &shared.node, &shared.backbone);
    story.then = Then::Report(done);
    shared.herald.tell(Telling::Story(Box::new(story))).await;
    // An error means that the herald died or the process is ending; whoever meets the record next tells it.
    told.await.is_ok()
}

impl Story {
    /// The story of a run whose record is to be written on `expected`.
    pub(crate) fn to_write(
        run: Box<Run>,
        matter: Matter,
        expected: u64,
        told: Told,
        node: &str,
        backbone: &Backbone,
    ) -> Self {
        let (lines, write) = Lines::with_record(&run, expected, told, node, backbone);
        Self { write: Some(write), ..Self::telling(run, matter, lines) }
    }

    /// The story of a run whose record stands as it is.
    pub(crate) fn on_record(run: Box<Run>, matter: Matter, told: Told, node: &str, backbone: &Backbone) -> Self {
        let lines = Lines::of(&run, told, node, backbone.names());
        Self::telling(run, matter, lines)
    }

    /// Its id is another run's: it goes on under the next one that its place in the lane gives it, and is published as a
    /// whole.
    pub(crate) fn rename(&mut self, backbone: &Backbone) {
        let Some(arrival) = &mut self.arrival else { return };
        let message = &arrival.holding.message;
        let derived = RunId::minted(&self.run.queue, self.run.priority, message.sequence);
        arrival.minted = self.run.run_id != derived;
        self.run.run_id = if arrival.minted { derived } else { RunId::derived_at(&derived, message.at) };
        let node = self.run.node.clone().unwrap_or_default();
        let (lines, write) = Lines::with_record(&self.run, 0, Told::default(), &node, backbone);
        (self.lines, self.write, self.told) = (lines, Some(write), None);
    }

    /// The record stands, at this revision; its bytes are needed no more.
    pub(crate) fn written(&mut self, revision: u64) {
        self.entry = None;
        self.write = Some(Write { expected: revision, subject: Bytes::new(), body: Bytes::new() });
    }

    /// The story of a run whose record stands as it is, and of which this is to be told.
    pub(crate) fn telling(run: Box<Run>, matter: Matter, lines: Lines) -> Self {
        Self {
            run,
            matter,
            arrival: None,
            unclear: None,
            entry: None,
            write: None,
            told: None,
            lines,
            follow: None,
            then: Then::Nothing,
            park: None,
            place: None,
        }
    }
}
