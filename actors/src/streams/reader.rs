//! One stream: the history that its client asked for, then what happens.
//!
//! It reads the history page by page, as its client takes it, so it holds one page at most. At the end of the log it
//! listens to the tail, which says from which sequence on it hands events over; what was logged before that, it reads
//! from the stream's leader, as another server may not have it yet.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, Code, redact_event};
use longshore_backbone::wire::logged::Logged;
use longshore_domain::{RunId, Tenant, Timestamp};
use std::sync::Arc;
use tokio::time::Instant;

use super::tail::{Heard, LOOK_BACK, RecentEvents};
use super::{EventStreams, From, Interest, Logline, Position, UntilEnd, lines};
use crate::api::runs;
use crate::runtime::now;

/// How long before a run was first published its history begins: clocks of nodes may differ.
const BEFORE: Duration = Duration::from_secs(5);
/// How long the end that a record has may take to be in the log, before the log is taken to have it no more.
const END_WITHIN: Duration = Duration::from_secs(30);
/// How often the run of a stream is looked at, and how long what it did last may take to be in the log.
const LOOKS_EVERY: Duration = Duration::from_secs(3);
/// How long to wait before a read is tried again, and how often.
const AGAIN: Duration = Duration::from_millis(500);
const TRIES: u32 = 20;

/// What a stream says next.
#[derive(Debug)]
pub enum StreamItem {
    /// An event.
    Event(Arc<Logline>),
    /// Events are missing here: the log has none before `oldest` any more; or, without it, the client was too slow, and
    /// the stream ends.
    Reset {
        /// The oldest position that there is.
        oldest: Option<Position>,
    },
    /// The run has ended with the event at this position; the stream ends.
    End(Position),
    /// The node drains; the stream ends.
    Bye,
}

/// Where the next page of history begins.
#[derive(Debug, Clone, Copy)]
enum Start {
    At(u64),
    Since(Timestamp),
}

enum Phase {
    History(Start),
    /// Reads up to the sequence from which on it is handed events.
    Gap(u64, u64, Heard),
    Live(Heard),
    Over,
}

/// A stream of events. It holds nothing but memory: drop it at any time.
pub struct EventStream {
    streams: EventStreams,
    interest: Interest,
    /// Whether any type hides what its events say.
    redacts: bool,
    /// Events up to here are known to the client.
    after: Position,
    until: Option<UntilEnd>,
    /// When the log is taken to have the end of the run no more.
    gives_up_at: Option<Instant>,
    /// When it is looked whether the run has ended without an event.
    looks_at: Instant,
    known: RecentEvents,
    phase: Phase,
    /// What is said before anything else.
    said: VecDeque<StreamItem>,
    tries: u32,
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.streams.api.metrics.streams_open.dec();
    }
}

impl EventStream {
    /// Begins a stream; one of a run, until its end, begins when that was first published.
    pub(super) async fn open(
        streams: &EventStreams,
        interest: Interest,
        from: From,
        run: Option<(UntilEnd, Timestamp)>,
    ) -> Result<Self, ApiError> {
        let (until, origin) = run.unzip();
        let ends_at = until.as_ref().and_then(|until| until.ended_at).map(|at| at.plus(END_WITHIN));
        streams.api.metrics.streams_open.inc();
        let mut stream = Self {
            streams: streams.clone(),
            interest,
            redacts: streams.api.policies.redacts_any(),
            after: (0, 0),
            until,
            gives_up_at: ends_at.map(|at| Instant::now() + at.since(now())),
            looks_at: Instant::now() + LOOKS_EVERY,
            known: RecentEvents::default(),
            phase: Phase::Over,
            said: VecDeque::new(),
            tries: 0,
        };
        stream.phase = match (from, origin) {
            (From::After(position), origin) => {
                let start = stream.resume(position).await?;
                Phase::History(origin.map_or(start, |origin| Start::Since(origin.minus(BEFORE))))
            }
            (_, Some(origin)) => Phase::History(Start::Since(origin.minus(BEFORE))),
            (From::Since(since), None) => Phase::History(Start::Since(since)),
            (From::Now, None) => stream.listen().await.map(|(_, heard)| Phase::Live(heard))?,
        };
        Ok(stream)
    }

    /// The event as it is shown over HTTP: without the result of a type that hides it.
    pub fn shown(&self, line: &Logline) -> Bytes {
        let policies = &self.streams.api.policies;
        let redacted = self.redacts.then(|| redact_event(&line.json, &|of| policies.of(of).redact));
        redacted.flatten().map_or_else(|| line.json.clone(), Bytes::from)
    }

    /// Goes on after a position: some messages before it are read again, so that what was published twice is known.
    async fn resume(&mut self, after: Position) -> Result<Start, ApiError> {
        let (first, last) = self.streams.api.backbone.sequences(&Source::Events).await?;
        let has_it = (first..=last).contains(&after.0) || (first > last && after.0 == last);
        if !has_it {
            self.said.push_back(StreamItem::Reset { oldest: Some((first, 1)) });
            return Ok(Start::At(first));
        }
        self.after = after;
        Ok(Start::At(first.max(after.0.saturating_sub(LOOK_BACK))))
    }

    async fn listen(&self) -> Result<(u64, Heard), ApiError> {
        let heard = self.streams.table.listen(self.interest.clone()).await;
        heard.ok_or_else(|| ApiError::unavailable("the event log cannot be read just now; ask again"))
    }

    /// What comes next; `None`: the stream is over. A call that is dropped before it returns loses nothing.
    pub async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(step) = self.said.pop_front() {
                return Some(step);
            }
            if !matches!(self.phase, Phase::Over) && self.streams.api.lifecycle.draining.is_cancelled() {
                self.phase = Phase::Over;
                return Some(StreamItem::Bye);
            }
            let went_on = match self.phase {
                Phase::Over => return None,
                Phase::Live(_) => {
                    self.hear().await;
                    continue;
                }
                Phase::History(start) => self.read_history(start).await,
                Phase::Gap(..) => self.read_gap().await,
            };
            match went_on {
                Ok(()) => self.tries = 0,
                Err(error) if self.tries < TRIES => {
                    tracing::debug!("a stream cannot be read, trying again: {error}");
                    self.tries += 1;
                    tokio::time::sleep(AGAIN).await;
                }
                // Its client comes again, and goes on from where it is.
                Err(_) => self.phase = Phase::Over,
            }
        }
    }

    /// What comes next, if it is there already.
    pub fn ready(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(step) = self.said.pop_front() {
                return Some(step);
            }
            let Phase::Live(heard) = &mut self.phase else { return None };
            let line = heard.try_next()?;
            self.show(line);
        }
    }

    async fn read_history(&mut self, start: Start) -> Result<(), ApiError> {
        let backbone = &self.streams.api.backbone;
        let subject = backbone.names().event_log(self.interest.tenant.as_ref().map_or("*", Tenant::as_str));
        // Known before the page is read: what is logged later, the tail or the leader has.
        let last = match start {
            Start::Since(_) => backbone.sequences(&Source::Events).await?.1,
            Start::At(_) => 0,
        };
        let page = {
            let _permit = self.streams.table.readers.acquire().await;
            let source = Source::Events;
            match start {
                Start::At(sequence) => backbone.page(&source, &subject, sequence).await?,
                Start::Since(since) => backbone.page_since(&source, &subject, since).await?,
            }
        };
        let oldest = match start {
            // What comes next may be other tenants'; or the log has it no more.
            Start::At(next) if page.messages.first().is_none_or(|first| first.sequence > next) => {
                let (first, _) = backbone.sequences(&Source::Events).await?;
                Some(first).filter(|first| *first > next.max(self.after.0))
            }
            _ => None,
        };
        if let Some(next) = page.next {
            self.phase = Phase::History(Start::At(next));
        } else {
            let (next, heard) = self.listen().await?;
            let read = page.messages.last().map(|last| last.sequence + 1);
            let begins = match (read, start) {
                (Some(read), _) | (None, Start::At(read)) => read,
                (None, Start::Since(_)) => last + 1,
            };
            self.phase = Phase::Gap(begins, next, heard);
        }
        self.said.extend(oldest.map(|oldest| StreamItem::Reset { oldest: Some((oldest, 1)) }));
        page.messages.iter().for_each(|stored| self.take_in(stored));
        Ok(())
    }

    async fn read_gap(&mut self) -> Result<(), ApiError> {
        let Phase::Gap(from, to, _) = &self.phase else { return Ok(()) };
        let (from, to) = (*from, *to);
        let backbone = &self.streams.api.backbone;
        let subject = backbone.names().event_log(self.interest.tenant.as_ref().map_or("*", Tenant::as_str));
        let found = if from < to { backbone.next_of(&Source::Events, &subject, from).await } else { Ok(None) };
        let found = found?.filter(|found| found.sequence < to);
        let Phase::Gap(_, _, heard) = std::mem::replace(&mut self.phase, Phase::Over) else { return Ok(()) };
        match found {
            Some(stored) => {
                self.phase = Phase::Gap(stored.sequence + 1, to, heard);
                self.take_in(&stored);
            }
            None => {
                if self.until.is_none() {
                    // From here on the tail knows what is a repeat.
                    self.known = RecentEvents::default();
                }
                self.phase = Phase::Live(heard);
            }
        }
        Ok(())
    }

    async fn hear(&mut self) {
        let (gives_up_at, looks_at) = (self.gives_up_at, self.looks_at);
        let looks = gives_up_at.is_none() && self.until.is_some();
        let Phase::Live(heard) = &mut self.phase else { return };
        tokio::select! {
            biased;
            line = heard.next() => match line {
                Some(line) => self.show(line),
                None => {
                    self.said.push_back(StreamItem::Reset { oldest: None });
                    let why = if heard.is_slow() { "its client is too slow" } else { "the log was made anew" };
                    tracing::debug!("a stream of events is closed: {why}");
                    self.phase = Phase::Over;
                }
            },
            () = self.streams.api.lifecycle.draining.cancelled() => {}
            () = tokio::time::sleep_until(gives_up_at.unwrap_or_else(Instant::now)), if gives_up_at.is_some() => {
                // Line 0: the event itself is not there.
                self.said.push_back(StreamItem::End((self.after.0.max(1), 0)));
                self.phase = Phase::Over;
            }
            () = tokio::time::sleep_until(looks_at), if looks => self.look().await,
        }
    }

    /// Looks whether the log will ever have an end of the run: it has none if the run's type keeps only failures and
    /// the run completed at once, so that nothing is kept of it.
    async fn look(&mut self) {
        self.looks_at = Instant::now() + LOOKS_EVERY;
        let (Some(tenant), Some(run)) = (&self.interest.tenant, self.interest.filter.runs.first()) else { return };
        let Ok(run) = RunId::parse(run) else { return };
        let within = match runs::known(&self.streams.api, tenant, &run).await {
            Ok(found) if found.run.state.is_terminal() => END_WITHIN,
            Err(error) if error.code == Code::NotFound.number() => LOOKS_EVERY,
            Ok(_) | Err(_) => return,
        };
        self.gives_up_at = Some(Instant::now() + within);
    }

    fn take_in(&mut self, stored: &Stored) {
        // Of a run's history nearly all lines are about others: reading them all would cost ten times as much.
        let run = self.interest.filter.runs.first().filter(|_| self.until.is_some());
        let of_run = run.map(|run| format!("\"run_id\":\"{run}\""));
        for (position, text) in lines(stored) {
            if of_run.as_ref().is_some_and(|of_run| !text.contains(of_run)) {
                continue;
            }
            if let Some(event) = Logged::read(text).filter(|event| self.interest.filter.fits(event)) {
                self.show(Arc::new(Logline::of(position, &event, text)));
            }
        }
    }

    fn show(&mut self, line: Arc<Logline>) {
        let keeps_count = self.until.is_some() || !matches!(self.phase, Phase::Live(_));
        if matches!(self.phase, Phase::Over) || (keeps_count && !self.known.add(line.identity)) {
            return;
        }
        let (position, is_end) = (line.position, self.until.as_ref().is_some_and(|until| until.is(&line)));
        if position > self.after {
            self.after = position;
            self.said.push_back(StreamItem::Event(line));
        }
        if is_end {
            // Line 0: its client had the end, and is further already.
            let at = if position == self.after { position } else { (self.after.0, 0) };
            self.said.push_back(StreamItem::End(at));
            self.phase = Phase::Over;
        }
    }
}
