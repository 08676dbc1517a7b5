//! Streams of events, for clients that follow them over HTTP: history from the event log, then live, without gap or
//! repeat.
//!
//! The event log is the one source, as it alone has a position that every node understands and that outlives all of
//! them. Live events are read from it, too: `tail` reads it once per node while anybody listens, by batched direct gets
//! 50 ms apart, and hands each event to those who asked for it. A consumer of the server's would be a few milliseconds
//! sooner; but it must be made anew after each lost connection, and what it holds until then is late by seconds. A
//! subscription to the live events has no sequences, and misses what is published while it is made. `reader` is one
//! stream: it reads the history by itself, page by page as its client takes it, and then listens to the tail.
//!
//! They hold no job and decide nothing about one. What a stream may hold in memory is bounded, and so is their number.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::FixedState;
use longshore_backbone::records::Found;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Code, RunRequest};
use longshore_backbone::wire::logged::{EventFilter, Logged};
use longshore_domain::{Run, SmolStr, Tenant, Timestamp};

use crate::api::{Api, filter, runs};

mod reader;
pub(crate) mod tail;

pub use reader::{EventStream, StreamItem};
use tail::Table;

/// Streams that may be open on a node: fewer than its HTTP listener has connections, so that a probe finds one.
const MAX_OPEN: i64 = 1_536;

/// Where an event stands in the log: the sequence of its message, and which line of that it is, from 1.
pub type Position = (u64, u32);

/// An event of the log.
#[derive(Debug)]
pub struct Logline {
    /// Where it stands.
    pub position: Position,
    /// What happened.
    pub event: SmolStr,
    /// The event, as JSON in one line.
    pub json: Bytes,
    /// What distinguishes it from others, and is the same when it is published again.
    identity: u64,
    /// If it ends a round of its run: which, and when.
    end: Option<(u32, SmolStr)>,
}

impl Logline {
    fn of(position: Position, event: &Logged<'_>, line: &str) -> Self {
        Self {
            position,
            event: SmolStr::from(&*event.event),
            json: Bytes::copy_from_slice(line.as_bytes()),
            // A later run that has an id anew has the same events at other times.
            identity: FixedState::default().hash_one((event.identity(line), &*event.at)),
            end: event.is_end().then(|| (event.round, SmolStr::from(&*event.at))),
        }
    }
}

/// The lines of a message of the log, and where each stands.
pub(crate) fn lines<'s>(stored: &'s Stored) -> impl Iterator<Item = (Position, &'s str)> + use<'s> {
    // A message that is not text is none of ours.
    let text = std::str::from_utf8(&stored.payload).unwrap_or_default();
    (1_u32..).zip(text.lines()).map(|(line, text)| ((stored.sequence, line), text)).filter(|(_, text)| !text.is_empty())
}

/// Which events a stream has.
#[derive(Debug, Clone)]
pub(crate) struct Interest {
    /// `None`: every tenant's.
    tenant: Option<Tenant>,
    filter: EventFilter,
}

/// From where on events are wanted.
#[derive(Debug, Clone, Copy)]
pub enum From {
    /// What happens from now on.
    Now,
    /// What follows this event.
    After(Position),
    /// What was logged since then.
    Since(Timestamp),
}

/// When the stream of a run is at its end.
#[derive(Debug, Clone)]
pub(crate) struct UntilEnd {
    round: u32,
    /// When the run ended, if it has.
    ended_at: Option<Timestamp>,
}

impl UntilEnd {
    fn of(run: &Run) -> Self {
        Self { round: run.round, ended_at: run.state.ended_at() }
    }

    /// Whether an event ends the run: it is the end that the record has, or any end of the round that the record is in.
    fn is(&self, line: &Logline) -> bool {
        let Some((round, at)) = &line.end else { return false };
        match self.ended_at {
            Some(ended_at) => at.as_str() == ended_at.to_string(),
            None => *round >= self.round,
        }
    }
}

/// Opens streams of events. Cheap to clone.
#[derive(Clone)]
pub struct EventStreams {
    pub(crate) api: Arc<Api>,
    pub(crate) table: Arc<Table>,
}

impl EventStreams {
    /// The events that fit, of one tenant or of all.
    ///
    /// # Errors
    /// 400: the filter names what cannot be; 503: the log cannot be read, or too many streams are open.
    pub async fn events(
        &self,
        tenant: Option<Tenant>,
        filter: EventFilter,
        from: From,
    ) -> Result<EventStream, ApiError> {
        filter.check().map_err(|(field, why)| ApiError::malformed(format!("{field}: {why}")))?;
        self.has_room()?;
        EventStream::open(self, Interest { tenant, filter }, from, None).await
    }

    /// All events of a run, or those after one, up to its end. `None`: the run has ended, and the caller had the event
    /// of that.
    ///
    /// # Errors
    /// 404: the run is not known; 503: what is stored cannot be read, or too many streams are open.
    pub async fn of_run(
        &self,
        asker: &str,
        asked: RunRequest,
        after: Option<Position>,
    ) -> Result<Option<EventStream>, ApiError> {
        let (tenant, run_id) = filter::one(asker, asked)?;
        self.has_room()?;
        let Found { run, .. } = match runs::known(&self.api, &tenant, &run_id).await {
            // Nothing is kept of it, and line 0 stands for its end, which the caller had.
            Err(error) if error.code == Code::NotFound.number() && after.is_some_and(|at| at.1 == 0) => {
                return Ok(None);
            }
            found => found?,
        };
        let until = UntilEnd::of(&run);
        if let Some(after) = after
            && self.had_its_end(&until, &run, after).await?
        {
            return Ok(None);
        }
        let from = after.map_or(From::Now, From::After);
        let filter = EventFilter { runs: vec![run_id.to_string()], ..EventFilter::default() };
        let interest = Interest { tenant: Some(tenant), filter };
        EventStream::open(self, interest, from, Some((until, run.origin))).await.map(Some)
    }

    /// Whether the event at this position is the run's end, or, with line 0, stands for one that the log has no more.
    async fn had_its_end(&self, until: &UntilEnd, run: &Run, at: Position) -> Result<bool, ApiError> {
        if until.ended_at.is_none() || at.1 == 0 {
            return Ok(until.ended_at.is_some());
        }
        let backbone = &self.api.backbone;
        let subject = backbone.names().event_log(run.tenant.as_str());
        let page = backbone.page_of(&Source::Events, &subject, at.0, 1).await?;
        let there = page.messages.iter().flat_map(lines).find(|(position, _)| *position == at);
        let of_run = there.and_then(|(_, line)| Some((Logged::read(line)?, line)));
        let of_run = of_run.filter(|(event, _)| event.run_id == run.run_id.as_str());
        Ok(of_run.is_some_and(|(event, line)| until.is(&Logline::of(at, &event, line))))
    }

    fn has_room(&self) -> Result<(), ApiError> {
        if self.api.metrics.streams_open.get() >= MAX_OPEN {
            return Err(ApiError::unavailable(format!("{MAX_OPEN} streams are open on this node already")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_known_and_the_event_of_a_later_run_of_that_id_is_another() {
        let identity = |at: &str| {
            let line = format!(
                r#"{{"id":"t/again/1/1/completed","event":"completed","run_id":"again","tenant":"t",
                    "queue":"main","type":"noop","round":1,"at":"{at}"}}"#
            );
            Logline::of((7, 1), &Logged::read(&line).unwrap(), &line).identity
        };
        let first = identity("2026-01-01T00:00:00.000Z");
        assert_eq!(first, identity("2026-01-01T00:00:00.000Z"));
        assert_ne!(first, identity("2026-01-02T00:00:00.000Z"));
    }
}
