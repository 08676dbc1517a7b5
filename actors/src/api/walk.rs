//! A walk over the runs that fit a filter, for lists and counts, in bounded steps.
//!
//! It goes through legs, in an order in which no run can slip through. A record that is written again moves to the end
//! of its stream. So records are read from the newest to the oldest; and those that were written since the walk began
//! are read at last, forwards, because there nothing can move behind the reader. Jobs that no node has seen have no
//! record: of them, lanes are read in between. Runs in a state in which they wait are found by their messages instead,
//! which are far fewer than all records: each such run has one message, and messages are read in the order in which
//! they move on without a record being written (schedules, due, parked, lanes); any other move writes one.
//!
//! A walk has no state beside its cursor, reads from any replica, and decides nothing.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use longshore_backbone::backwards::{Backwards, Past};
use longshore_backbone::certain::MARK;
use longshore_backbone::dead_letters::StoredDeadLetter;
use longshore_backbone::records::Found;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::ApiError;
use longshore_backbone::wire::header::names;
use longshore_domain::{Priority, Queue, QueueLane, Run, RunId, RunState, Tenant, Timestamp};
use tokio::sync::SemaphorePermit;

use crate::api::filter::{self, RunFilter};
use crate::api::{Api, dead_letters};
use crate::attempt::assignment::Assignment;
use crate::runtime::now;

/// How far the clocks of nodes and servers may differ.
const APART: Duration = Duration::from_secs(600);
/// Runs that came so much later than the walk began are left out where it would never end because of them.
const CAME_WITH: Duration = Duration::from_secs(10);

/// A part of a walk, in the order in which they are walked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Leg {
    /// Records, the last written first.
    Records,
    /// Dead letters, the last written first.
    DeadLetters,
    Schedules,
    Retries,
    Due,
    Parked,
    Lane(Queue, QueueLane),
    /// Records that were written since the walk began.
    Since,
}

/// Where a walk stands: the cursor of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    leg: Leg,
    /// The sequence to go on at: backwards, the one after it; 0 at the beginning of a leg.
    at: u64,
    /// The last sequence of the records when the walk began.
    top: u64,
    /// When it began.
    began: Timestamp,
}

/// A run that fits, and where the walk met it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) run: Run,
    pub(crate) here: Position,
}

pub(crate) struct Walk<'a> {
    api: &'a Api,
    filter: &'a RunFilter,
    /// The legs that are left; the first one is being walked.
    legs: VecDeque<Leg>,
    at: u64,
    top: u64,
    began: Timestamp,
    backwards: Option<Backwards>,
    /// For the step that was taken last.
    room: Option<SemaphorePermit<'a>>,
    /// Messages that were read.
    pub(crate) inspected: usize,
    /// When the last of them was stored.
    pub(crate) searched_until: Option<Timestamp>,
    pub(crate) unreadable: u64,
}

/// A job's message: its run, as far as the message says.
struct LaneMessage {
    run: (Tenant, RunId),
    sequence: u64,
    /// The run as it is if it has no record; `None`: it must have one.
    waiting: Option<Run>,
}

impl<'a> Walk<'a> {
    /// A walk from its beginning, or from where an earlier one ended.
    pub(crate) async fn begin(api: &'a Api, filter: &'a RunFilter, cursor: Option<&str>) -> Result<Self, ApiError> {
        let legs = legs(api, filter).await?;
        let mut walk = Self {
            api,
            filter,
            legs,
            at: 0,
            top: 0,
            began: now(),
            backwards: None,
            room: None,
            inspected: 0,
            searched_until: None,
            unreadable: 0,
        };
        match cursor {
            Some(cursor) => {
                let from = Position::parse(cursor);
                let from = from.ok_or_else(|| ApiError::malformed("cursor: is not a cursor of this endpoint"))?;
                // A queue that is not there any more has no leg.
                walk.legs.retain(|leg| *leg >= from.leg);
                walk.at = if walk.legs.front() == Some(&from.leg) { from.at } else { 0 };
                (walk.top, walk.began) = (from.top, from.began);
            }
            None => walk.top = api.backbone.sequences_of_records().await?.1,
        }
        Ok(walk)
    }

    /// Where it goes on; `None`: it has ended.
    pub(crate) fn position(&self) -> Option<Position> {
        self.legs.front().map(|leg| self.there(leg.clone(), self.at))
    }

    /// Takes a step: the runs that fit among some messages, in the order of the walk. There may be none.
    pub(crate) async fn step(&mut self) -> Result<Vec<Seen>, ApiError> {
        let Some(leg) = self.legs.front().cloned() else { return Ok(Vec::new()) };
        drop(self.room.take());
        self.room = self.api.pages.acquire().await.ok();
        match leg {
            Leg::Records => self.records().await,
            Leg::DeadLetters => self.dead_letters().await,
            Leg::Since => self.since().await,
            leg => self.jobs(leg).await,
        }
    }

    fn there(&self, leg: Leg, at: u64) -> Position {
        Position { leg, at, top: self.top, began: self.began }
    }

    /// Goes on at `next`, or with the next leg.
    fn go_on(&mut self, next: Option<u64>) {
        match next {
            Some(next) => self.at = next,
            None => {
                self.legs.pop_front();
                (self.at, self.backwards) = (0, None);
            }
        }
    }

    async fn records(&mut self) -> Result<Vec<Seen>, ApiError> {
        let backbone = &self.api.backbone;
        if self.backwards.is_none() {
            let (first, _) = backbone.sequences_of_records().await?;
            self.backwards = Some(backbone.records_backwards(self.filter.tenant.as_ref(), first));
        }
        let before = if self.at == 0 { self.top + 1 } else { self.at };
        let past = self.back(before).await?;
        let runs = self.read_records(&past.messages);
        let fit = runs.into_iter().filter(|(run, _)| self.filter.fits(run));
        let seen = fit.map(|(run, sequence)| Seen { run, here: self.there(Leg::Records, sequence + 1) }).collect();
        self.go_on(past.next);
        Ok(seen)
    }

    /// The runs of some records, each with its revision; counts those that cannot be read.
    fn read_records(&mut self, records: &[Stored]) -> Vec<(Run, u64)> {
        // A mark that shows how far a replica is has one token, and a record's key has two.
        let is_record = |stored: &&Stored| stored.subject.rsplit('.').next().is_some_and(|token| token != MARK);
        let mut runs = Vec::with_capacity(records.len());
        for stored in records.iter().filter(is_record) {
            match self.api.backbone.read_stored(&stored.subject, stored.payload.clone(), stored.sequence) {
                Ok(Found { run, revision }) => runs.push((run, revision)),
                Err(_) => self.unreadable += 1,
            }
        }
        runs
    }

    async fn dead_letters(&mut self) -> Result<Vec<Seen>, ApiError> {
        let backbone = &self.api.backbone;
        if self.backwards.is_none() {
            let (first, last) = backbone.sequences(&Source::DeadLetters).await?;
            let subject = dead_letters::subject(self.api, self.filter);
            self.backwards = Some(backbone.dead_letters_backwards(subject, first));
            self.at = if self.at == 0 { last + 1 } else { self.at };
        }
        let past = self.back(self.at).await?;
        let dead_letters = past.messages.into_iter().filter_map(StoredDeadLetter::read);
        let dead_letters: Vec<StoredDeadLetter> =
            dead_letters.filter(|dead_letter| self.filter.fits(&dead_letter.run)).collect();
        let id = |StoredDeadLetter { run, .. }: &StoredDeadLetter| (run.tenant.clone(), run.run_id.clone());
        let ids: Vec<_> = dead_letters.iter().map(id).collect();
        let mut records = backbone.records_of(&ids).await?;
        let mut seen = Vec::new();
        for (at, dead_letter) in dead_letters.into_iter().enumerate() {
            let found = records.remove(&at).map(|found| found.run);
            if let Some((StoredDeadLetter { sequence, .. }, run)) = dead_letters::stands(found, dead_letter) {
                seen.push(Seen { run, here: self.there(Leg::DeadLetters, sequence + 1) });
            }
        }
        self.go_on(past.next);
        Ok(seen)
    }

    /// The window before a sequence. Nothing comes before it if nothing there can fit.
    async fn back(&mut self, before: u64) -> Result<Past, ApiError> {
        let Some(backwards) = &mut self.backwards else {
            return Ok(Past { messages: Vec::new(), next: None, read: 0 });
        };
        let mut past = backwards.before(&self.api.backbone, before).await?;
        let oldest = past.messages.iter().map(stored_at).min();
        self.inspected += past.read;
        self.searched_until = oldest.or(self.searched_until);
        // What is compared with `since` is earlier than when its message was stored.
        let may_go_on = |since: Timestamp| oldest.is_none_or(|oldest| oldest >= since.minus(APART));
        past.next = past.next.filter(|_| self.filter.wanted.since.is_none_or(may_go_on));
        Ok(past)
    }

    fn has_read(&mut self, messages: &[Stored]) {
        self.inspected += messages.len();
        self.searched_until = messages.last().map(stored_at).or(self.searched_until);
    }

    async fn since(&mut self) -> Result<Vec<Seen>, ApiError> {
        let from = self.at.max(self.top + 1);
        let page = self.api.backbone.records_from(self.filter.tenant.as_ref(), from).await?;
        self.has_read(&page.messages);
        let runs = self.read_records(&page.messages);
        let fit = runs.into_iter().filter(|(run, _)| run.origin <= self.began.plus(CAME_WITH) && self.filter.fits(run));
        let seen = fit.map(|(run, sequence)| Seen { run, here: self.there(Leg::Since, sequence) }).collect();
        self.go_on(page.next);
        Ok(seen)
    }

    async fn jobs(&mut self, leg: Leg) -> Result<Vec<Seen>, ApiError> {
        let (source, subject) = place(self.api, self.filter, &leg);
        let backbone = &self.api.backbone;
        let page = match self.filter.wanted.since {
            Some(since) if self.at == 0 => backbone.page_since(&source, &subject, since.minus(APART)).await?,
            _ => backbone.page(&source, &subject, self.at).await?,
        };
        self.has_read(&page.messages);
        let (delivered, ends_at) = (self.delivered(&source).await?, self.began.plus(CAME_WITH));
        let is_running = self.filter.wanted.state == Some(RunState::Running);
        let is_over = |stored: &Stored| stored_at(stored) > ends_at || (is_running && stored.sequence > delivered);
        let next = page.next.filter(|_| !page.messages.iter().any(is_over));
        let may_fit =
            page.messages.into_iter().filter(|stored| !is_over(stored) && self.may_fit(&source, stored, delivered));
        let messages: Vec<LaneMessage> = may_fit.filter_map(|stored| self.read(&source, stored)).collect();
        let ids: Vec<_> = messages.iter().map(|message| message.run.clone()).collect();
        let mut records = backbone.records_of(&ids).await?;
        let mut seen = Vec::new();
        for (at, LaneMessage { run: (_, run_id), sequence, waiting }) in messages.into_iter().enumerate() {
            let run = self.standing(&run_id, waiting, records.remove(&at));
            if let Some(run) = run.filter(|run| self.filter.fits(run)) {
                seen.push(Seen { run, here: self.there(leg.clone(), sequence) });
            }
        }
        self.go_on(next);
        Ok(seen)
    }

    /// Up to which sequence the jobs of a lane were given to nodes; asked for only if the state depends on it.
    async fn delivered(&self, source: &Source) -> Result<u64, ApiError> {
        let Source::Lane(queue, lane) = source else { return Ok(u64::MAX) };
        if !matches!(self.filter.wanted.state, Some(RunState::Running | RunState::Retrying)) {
            return Ok(u64::MAX);
        }
        let stream = self.api.backbone.names().lane_stream(queue, *lane);
        Ok(self.api.backbone.position_in(&stream).await?.unwrap_or(0))
    }

    /// Whether the run of a message can be in the wanted state, as far as the message alone says.
    fn may_fit(&self, source: &Source, stored: &Stored, delivered: u64) -> bool {
        let is_moved = stored.headers.get(names::SEAL).is_some();
        match (source, self.filter.wanted.state) {
            // A job that a node has moved has a record.
            (Source::Lane(..), None) => !is_moved,
            (Source::Lane(..), Some(RunState::Scheduled)) => is_moved,
            (Source::Lane(..), Some(RunState::Retrying)) => is_moved || stored.sequence <= delivered,
            _ => true,
        }
    }

    fn read(&self, source: &Source, stored: Stored) -> Option<LaneMessage> {
        let (sequence, backbone) = (stored.sequence, &self.api.backbone);
        let Source::Lane(queue, lane) = source else {
            return Some(LaneMessage { run: filter::run_of(&stored)?, sequence, waiting: None });
        };
        let is_moved = stored.headers.get(names::SEAL).is_some();
        let stream = backbone.names().lane_stream(queue, *lane);
        let read =
            Assignment::read(backbone.as_delivered(stored, &stream), backbone.names(), 0, backbone.max_on_arrival());
        let waiting = (!is_moved).then(|| read.waiting_run(&self.api.policies));
        Some(LaneMessage { run: (read.job.tenant.clone(), read.job.run_id.clone()), sequence, waiting })
    }

    /// The run of a message as it stands. Without a state, only jobs are meant that have no record.
    fn standing(&self, run_id: &RunId, waiting: Option<Run>, found: Option<Found>) -> Option<Run> {
        let Some(Found { run, .. }) = found else { return waiting };
        // The record under a derived id may belong to a lane that is gone.
        let is_others = run.state.is_terminal() && run_id.as_derived().is_some();
        match waiting {
            Some(waiting) if is_others && waiting.origin != run.origin => Some(waiting),
            _ => Some(run).filter(|_| self.filter.wanted.state.is_some()),
        }
    }
}

fn stored_at(stored: &Stored) -> Timestamp {
    Timestamp::parse(&stored.at).unwrap_or_default()
}

async fn legs(api: &Api, filter: &RunFilter) -> Result<VecDeque<Leg>, ApiError> {
    let wanted = &filter.wanted;
    let mut legs: VecDeque<Leg> = match wanted.state {
        None => [Leg::Records].into(),
        Some(RunState::Dead) => return Ok([Leg::DeadLetters].into()),
        Some(RunState::Scheduled) => [Leg::Schedules, Leg::Due].into(),
        Some(RunState::Enqueued | RunState::Retrying) => [Leg::Retries, Leg::Due, Leg::Parked].into(),
        Some(RunState::Running) => VecDeque::new(),
        Some(
            RunState::Completed | RunState::Cancelled | RunState::Expired | RunState::Duplicate | RunState::Discarded,
        ) => {
            return Ok([Leg::Records, Leg::Since].into());
        }
    };
    // A job that no node has seen has not failed yet.
    if wanted.state.is_some() || wanted.error_kind.is_none() {
        let queues = match &wanted.queue {
            Some(queue) => vec![queue.clone()],
            None => api.backbone.declared_queues().await?,
        };
        legs.extend(
            queues.into_iter().flat_map(|queue| QueueLane::all().map(move |lane| Leg::Lane(queue.clone(), lane))),
        );
    }
    legs.push_back(Leg::Since);
    Ok(legs)
}

fn place(api: &Api, filter: &RunFilter, leg: &Leg) -> (Source, String) {
    let (names, tenant) = (api.backbone.names(), filter.tenant.as_ref());
    let (queue, job_type) = (filter.wanted.queue.as_ref(), filter.wanted.job_type.as_ref());
    let [schedules, retries, due] = names.schedules_where(tenant);
    match leg {
        Leg::Lane(queue, lane) => filter.in_lane(names, queue, *lane),
        Leg::Parked => (Source::Parked, names.parked_where(tenant, queue, job_type)),
        Leg::Retries => (Source::Schedules, retries),
        Leg::Due => (Source::Schedules, due),
        Leg::Schedules | Leg::Records | Leg::DeadLetters | Leg::Since => (Source::Schedules, schedules),
    }
}

/// What cursors call the legs; those of lanes have their queue and lane besides.
const LEGS: [(&str, Leg); 7] = [
    ("records", Leg::Records),
    ("dead", Leg::DeadLetters),
    ("schedules", Leg::Schedules),
    ("retries", Leg::Retries),
    ("due", Leg::Due),
    ("parked", Leg::Parked),
    ("since", Leg::Since),
];
const RETURNED: &str = "returned";

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.leg {
            Leg::Lane(queue, QueueLane::Of(priority)) => write!(f, "lane.{queue}.{priority}")?,
            Leg::Lane(queue, QueueLane::Returned) => write!(f, "lane.{queue}.{RETURNED}")?,
            leg => f.write_str(LEGS.iter().find(|(_, of)| of == leg).map_or("", |(name, _)| name))?,
        }
        write!(f, ":{}:{}:{}", self.at, self.top, self.began.millis())
    }
}

impl Position {
    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let [leg, at, top, began] = parts[..] else { return None };
        let leg = match LEGS.iter().find(|(name, _)| *name == leg) {
            Some((_, leg)) => leg.clone(),
            None => {
                let (queue, lane) = leg.strip_prefix("lane.")?.split_once('.')?;
                let lane =
                    if lane == RETURNED { QueueLane::Returned } else { QueueLane::Of(Priority::parse(lane).ok()?) };
                Leg::Lane(Queue::parse(queue).ok()?, lane)
            }
        };
        let began = Timestamp::from_millis(began.parse().ok()?);
        Some(Self { leg, at: at.parse().ok()?, top: top.parse().ok()?, began })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written() {
        let lane = |lane| Leg::Lane(Queue::parse("bulk-mail").unwrap(), lane);
        let legs = LEGS.iter().map(|(_, leg)| leg.clone());
        for leg in legs.chain(QueueLane::all().map(lane)) {
            let position = Position { leg, at: 7, top: 9, began: Timestamp::from_millis(1_790_000_000_000) };
            let text = position.to_string();
            assert_eq!(Position::parse(&text), Some(position), "{text}");
        }
        for wrong in [
            "",
            "7",
            "records:7:9",
            "records:7:9:1:1",
            "lane.main:7:9:1",
            "lane.main.p10:7:9:1",
            "x:7:9:1",
            "records:-1:9:1",
        ] {
            assert_eq!(Position::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn messages_are_read_in_the_order_in_which_they_move_without_a_record() {
        let lane = |lane: QueueLane| Leg::Lane(Queue::main(), lane);
        let of = lane(Priority::DEFAULT.into());
        let order = [
            Leg::Records,
            Leg::Schedules,
            Leg::Retries,
            Leg::Due,
            Leg::Parked,
            of,
            lane(QueueLane::Returned),
            Leg::Since,
        ];
        assert!(order.is_sorted());
    }
}
