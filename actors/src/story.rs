//! What a worker hands to the herald when something about a run was decided: one value, with the right to settle.
//!
//! The worker encodes record and events, so that the herald, of which there is one, only passes bytes on.

use std::sync::Arc;

use bytes::Bytes;
use longshore_backbone::delivery::Right;
use longshore_backbone::wire::subject::Names;
use longshore_backbone::wire::{event, record};
use longshore_backbone::{Backbone, Headers};
use longshore_domain::protocol::Arrival;
use longshore_domain::story::{self, Event};
use longshore_domain::{Run, Timestamp};
use tokio::sync::oneshot;

use crate::herald::{Place, Telling};
use crate::shared::Shared;

/// The job as it was published: what a schedule or a dead letter carries on.
#[derive(Debug)]
pub(crate) struct Matter {
    pub(crate) headers: Option<Headers>,
    pub(crate) payload: Bytes,
}

/// A decision about a run, to be carried out: record, events, what follows, and the delivery last.
#[derive(Debug)]
pub(crate) struct Story {
    pub(crate) run: Box<Run>,
    pub(crate) matter: Arc<Matter>,
    pub(crate) arrival: Option<Arrival>,
    /// The record's write: the revision it must find, and its bytes. `None`: it stands already, or is not kept.
    pub(crate) write: Option<(u64, Bytes)>,
    /// Events to be told live once the record stands.
    pub(crate) live: Vec<(String, Bytes)>,
    /// Lines for the event log.
    pub(crate) log: Vec<u8>,
    /// What follows from the decision.
    pub(crate) follow: Option<Follow>,
    /// What becomes of the delivery.
    pub(crate) then: Then,
    /// Its place at the herald's desk, once it is there.
    pub(crate) place: Option<Place>,
}

/// What makes the next thing possible; only after the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// The job comes again at this time.
    Schedule(Timestamp),
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
    /// There is none, but somebody waits until all is confirmed; dropped, it was not ours to tell.
    Report(oneshot::Sender<()>),
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

/// How much of a run's story was told before: events of the present round, live and in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) live: usize,
    pub(crate) log: usize,
}

/// Encodes the events of a run that were not told yet.
pub(crate) fn encode(run: &Run, told: Told, node: &str, names: &Names) -> (Vec<(String, Bytes)>, Vec<u8>) {
    let events = story::of_round(run);
    let mut live = Vec::with_capacity(events.len().saturating_sub(told.live));
    let mut log = Vec::with_capacity(events.len().saturating_sub(told.log) * 288);
    for (at, told_event) in events.iter().enumerate().skip(told.live.min(told.log)) {
        let start = log.len();
        event::write(told_event, node, &mut log);
        if at >= told.live {
            live.push((subject(told_event, names), Bytes::copy_from_slice(&log[start..])));
        }
        if at >= told.log {
            log.push(b'\n');
        } else {
            log.truncate(start);
        }
    }
    (live, log)
}

fn subject(event: &Event<'_>, names: &Names) -> String {
    let run = event.run;
    names.event(&run.tenant, event.kind, &run.queue, &run.run_id, &run.job_type)
}

/// Tells everything of a run's present round, and waits until it is in the log.
pub(crate) async fn tell_all(shared: &Shared, run: &Run) {
    let matter = Arc::new(Matter { headers: None, payload: Bytes::new() });
    let (done, told) = oneshot::channel();
    let run = Box::new(run.clone());
    let mut story = Story::on_record(run, matter, Told::default(), &shared.node, &shared.backbone);
    story.then = Then::Report(done);
    shared.herald.tell(Telling::Story(Box::new(story))).await;
    // An error means that the process is ending; whoever meets the record next tells it.
    let _ = told.await;
}

impl Story {
    /// The story of a run whose record is to be written on `expected`.
    pub(crate) fn to_write(
        run: Box<Run>,
        matter: Arc<Matter>,
        expected: u64,
        told: Told,
        node: &str,
        backbone: &Backbone,
    ) -> Self {
        let body = record::write(&run);
        let mut story = Self::on_record(run, matter, told, node, backbone);
        story.write = Some((expected, body));
        story
    }

    /// The story of a run whose record stands as it is.
    pub(crate) fn on_record(run: Box<Run>, matter: Arc<Matter>, told: Told, node: &str, backbone: &Backbone) -> Self {
        let (live, log) = encode(&run, told, node, backbone.names());
        Self { run, matter, arrival: None, write: None, live, log, follow: None, then: Then::Nothing, place: None }
    }
}
