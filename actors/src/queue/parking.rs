//! Parking: takes parked jobs of a queue back as they can start.
//!
//! One loop per queue and node. It asks which kinds are parked: twice a second while some are, ten times if some of
//! them could start here and none of their kind is here, or other kinds wait for their turn; else every two seconds,
//! and at once when jobs of such a kind start. It brings back as many jobs of each kind as start within a part of the
//! lease, and at least as many as its handlers have free capacity for. It publishes them into the queue's lane of
//! returned jobs, by rank; then it deletes them where they were parked. Several nodes may take back the same job: its
//! message id keeps it in the lane once, and its record lets it begin once.
//!
//! Keys make many kinds, so several are read at once.
//!
//! Of an `ordered` kind it brings back only the job whose turn it is ([`order`]), as soon as the one before it has ended.
//!
//! Bounds: [`READ_AHEAD`] messages of a kind and one page per priority, [`KINDS`] kinds in a round, [`KINDS_AT_ONCE`] at
//! once, [`AT_ONCE`] moves; between rounds [`AHEAD_BYTES`] of what was read ahead.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::{PAGE, Source};
use longshore_backbone::wire::header;
use longshore_backbone::{Backbone, Error};
use longshore_domain::rank::Rank;
use longshore_domain::{JobType, Lane, Priority, RunId, Tenant, Timestamp};
use tokio::sync::Semaphore;

use crate::attempt::assignment::number_of;
use crate::attempt::{line, order};
use crate::fail_point;
use crate::metrics::Metrics;
use crate::queue::dispatcher::Dispatcher;
use crate::queue::gates::Gates;
use crate::shared::kind::Kind;
use crate::shared::now;
use crate::shared::park_permits::Position;
use crate::supervision::LoopEnd;
use crate::time::due::{self, DueJob, StoredPorts};

/// How often it polls while jobs are parked, while some of them could start, and while none are.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const SHORT_LOOK_EVERY: Duration = Duration::from_millis(100);
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(2);
/// The least time between two polls, however often jobs are wanted back.
const PAUSE: Duration = Duration::from_millis(5);
/// At least so many messages of a kind are read ahead: more than may be on their way to be parked at once.
const READ_AHEAD: usize = 512;
/// No more is read ahead of a kind beyond so many bytes.
const READ_AHEAD_BYTES: usize = 2 << 20;
/// Beyond so many bytes of all kinds, what was read ahead is forgotten and read again.
const AHEAD_BYTES: usize = 32 << 20;
/// Kinds whose messages are read ahead.
const KINDS: usize = 256;
/// Kinds that are read at once.
const KINDS_AT_ONCE: usize = 16;
/// A job whose turn it is, and that was not found among the parked ones, is looked for again after this time.
const SEEK_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// So many messages are read to find it, then pages.
const FIRST_PAGE: usize = 8;
/// Jobs that are brought back at once.
const AT_ONCE: usize = 64;

/// Brings parked jobs back until the queue closes.
pub(crate) async fn run(part: Part) -> LoopEnd {
    let closing = part.queue.buffer.closing.clone();
    let mut parking = Parking { part, ahead: BTreeMap::new(), last: None, moves: Semaphore::new(AT_ONCE) };
    let mut pause = IDLE_LOOK_EVERY;
    loop {
        tokio::select! {
            () = closing.cancelled() => break,
            () = parking.part.queue.buffer.wanted_back() => {}
            () = tokio::time::sleep(pause) => {}
        }
        if !parking.part.queue.buffer.is_open(Instant::now()) {
            // It is paused: what is parked stays there.
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        match parking.look().await {
            Ok(until_next) => pause = until_next,
            Err(error) => {
                tracing::debug!(queue = %parking.part.queue.name, "parked jobs cannot be read, trying again: {}", error.with_causes())
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    std::future::pending().await
}

/// What parking needs.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) backbone: Backbone,
    pub(crate) queue: Arc<Dispatcher>,
    /// Says how many jobs of a kind could start.
    pub(crate) gates: Gates,
    pub(crate) metrics: Arc<Metrics>,
}

struct Parking {
    part: Part,
    /// The jobs of each kind that were read ahead.
    ahead: BTreeMap<Kind, Ahead>,
    /// The last kind of which jobs were brought back, if there were too many kinds for one round.
    last: Option<Kind>,
    /// A permit for each move.
    moves: Semaphore,
}

/// Parked jobs of a kind that were read ahead. Many workers and nodes park jobs at once, so that the stream holds them
/// a little out of order: reading some ahead restores the order, and none is taken back before one that this node is
/// still parking.
#[derive(Default)]
struct Ahead {
    jobs: BTreeMap<(Rank, u64, u64), (Priority, Stored)>,
    /// Of each priority, the sequence from which the next ones are read, and how many are here.
    of: BTreeMap<Priority, (u64, usize)>,
    bytes: usize,
    /// Of an `ordered` kind, by priority: the run that was last looked for among all that are parked, and when.
    sought: BTreeMap<Priority, (RunId, Instant)>,
}

impl Ahead {
    /// From where on the next ones of a priority are read, if any are to be: some of each, so that the first in order is
    /// among them.
    fn reads_from(&self, priority: Priority) -> Option<u64> {
        let (from, here) = self.of.get(&priority).copied().unwrap_or((1, 0));
        let has_room = self.jobs.len() < READ_AHEAD && self.bytes < READ_AHEAD_BYTES;
        (here == 0 || has_room).then_some(from)
    }

    fn add(&mut self, priority: Priority, stored: Stored, aging: Duration) {
        let (from, here) = self.of.entry(priority).or_insert((1, 0));
        (*from, *here) = (stored.sequence + 1, *here + 1);
        self.bytes += stored.payload.len();
        self.jobs.insert(place_of(&stored, priority, aging), (priority, stored));
    }

    /// The first in order, unless one of its kind comes before it that may have been missing in what was read.
    fn take_first_before(&mut self, missed: Option<Position>) -> Option<Stored> {
        let first = self.jobs.first_entry()?;
        let (rank, number, _) = *first.key();
        if missed.is_some_and(|missed| missed < (rank, number)) {
            return None;
        }
        let (priority, stored) = first.remove();
        self.bytes -= stored.payload.len();
        if let Some((_, here)) = self.of.get_mut(&priority) {
            *here -= 1;
        }
        Some(stored)
    }
}

/// Jobs of a kind that are wanted back.
struct Wanted {
    kind: Kind,
    parked: Parked,
    want: usize,
    ahead: Ahead,
}

/// What the stream has of a kind.
#[derive(Default)]
struct Parked {
    priorities: Vec<Priority>,
    jobs: u64,
}

impl Parking {
    /// Takes back the jobs that are wanted; says when to look again.
    async fn look(&mut self) -> Result<Duration, Error> {
        self.part.queue.buffer.before_asking();
        let found = self.part.backbone.parked_kinds(&self.part.queue.name, None).await?;
        let mut kinds: BTreeMap<Kind, Parked> = BTreeMap::new();
        for parked in found.into_iter().filter(|parked| parked.jobs > 0) {
            let kind = Kind { tenant: parked.tenant, job_type: parked.job_type, key: parked.key };
            let of_kind = kinds.entry(kind).or_default();
            of_kind.priorities.push(parked.priority);
            of_kind.jobs += parked.jobs;
        }
        let names: Vec<Kind> = kinds.keys().cloned().collect();
        let queue = &self.part.queue;
        let room = |kind: &Kind| self.part.gates.room_for(&queue.name, kind, queue.policy.concurrency);
        let (wants, is_short) = self.part.queue.buffer.are_parked(&names, room);
        self.ahead.retain(|kind, _| kinds.contains_key(kind));
        if self.ahead.len() > KINDS {
            self.ahead.clear();
        }
        let wanted = kinds.into_iter().zip(wants).map(|((kind, parked), want)| (kind, parked, want));
        let round = next_round(&mut self.last, wanted.filter(|(_, _, want)| *want > 0).collect());
        self.bring_all_back(round).await?;
        Ok(until_next(self.last.is_some(), self.part.queue.buffer.any_parked(), is_short))
    }

    /// Brings back what is wanted of these kinds.
    async fn bring_all_back(&mut self, round: Vec<(Kind, Parked, usize)>) -> Result<(), Error> {
        let Self { part, ahead, moves, .. } = self;
        let wanted = round.into_iter().map(|(kind, parked, want)| {
            let ahead = ahead.remove(&kind).unwrap_or_default();
            Wanted { kind, parked, want, ahead }
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let mut bytes: usize = ahead.values().map(|ahead| ahead.bytes).sum();
        let each = wanted.into_iter().map(|wanted| bring_kind_back(part, moves, wanted));
        let mut each = futures_util::stream::iter(each).buffer_unordered(KINDS_AT_ONCE);
        let mut failed = None;
        while let Some((kind, result)) = each.next().await {
            match result {
                // What is not kept is read again.
                Ok(Some(of_kind)) if bytes + of_kind.bytes <= AHEAD_BYTES => {
                    bytes += of_kind.bytes;
                    ahead.insert(kind, of_kind);
                }
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// The kinds whose turn it is, and how many jobs of each; `last` is the kind with which the former round ended. Keys make
/// many kinds, so each round takes some of them. Kinds of one tenant and type share their handlers: together they get what
/// one of them could have.
fn next_round<P>(last: &mut Option<Kind>, mut wanted: Vec<(Kind, P, usize)>) -> Vec<(Kind, P, usize)> {
    let begin = last.as_ref().map_or(0, |last| wanted.partition_point(|(kind, ..)| kind <= last));
    let are_too_many = wanted.len() > KINDS;
    if are_too_many {
        let begin = begin % wanted.len();
        wanted.rotate_left(begin);
        wanted.truncate(KINDS);
    }
    let mut shared: HashMap<(Tenant, JobType), usize> = HashMap::new();
    for (kind, _, want) in &wanted {
        let most = shared.entry((kind.tenant.clone(), kind.job_type.clone())).or_default();
        *most = (*most).max(*want);
    }
    for (kind, _, want) in &mut wanted {
        let left = shared.entry((kind.tenant.clone(), kind.job_type.clone())).or_default();
        // One of each, so that no key waits for the others to have room.
        *want = (*want).min((*left).max(1));
        *left = left.saturating_sub(*want);
    }
    *last = wanted.last().map(|(kind, ..)| kind.clone()).filter(|_| are_too_many);
    wanted
}

/// How long to wait before the next poll.
fn until_next(are_kinds_left: bool, any_parked: bool, is_short: bool) -> Duration {
    match any_parked {
        // The kinds that had no turn yet.
        _ if are_kinds_left => SHORT_LOOK_EVERY,
        // Those that were taken back may have gone to other nodes.
        true if is_short => SHORT_LOOK_EVERY,
        true => LOOK_EVERY,
        false => IDLE_LOOK_EVERY,
    }
}

/// Brings back the first jobs of a kind; returns what is left of those that were read ahead.
async fn bring_kind_back(part: &Part, moves: &Semaphore, wanted: Wanted) -> (Kind, Result<Option<Ahead>, Error>) {
    let Wanted { kind, parked, want, mut ahead } = wanted;
    if order::has_order(&part.gates.routing.policies, &kind) {
        let result = bring_next_back(part, &kind, &parked.priorities, &mut ahead).await;
        return (kind, result.map(|()| Some(ahead)));
    }
    part.queue.buffer.before_reading(&kind);
    let read = async {
        let is_open = line::is_open(&part.backbone, &part.gates.routing.policies, &kind).await?;
        if is_open {
            read_ahead(part, &kind, &parked.priorities, &mut ahead).await?;
        }
        Ok(is_open)
    };
    match read.await {
        Ok(true) => {}
        Ok(false) => return (kind, Ok(Some(ahead))),
        Err(error) => return (kind, Err(error)),
    }
    if ahead.jobs.is_empty() {
        // Nothing is left beyond the last read: the jobs left over then are gone, or parked again. The next read begins
        // at the first message.
        return (kind, Ok(None));
    }
    let missed = part.queue.buffer.first_missed(&kind);
    let next: Vec<Stored> = std::iter::from_fn(|| ahead.take_first_before(missed)).take(want).collect();
    part.queue.buffer.coming_back(&kind, next.len(), Instant::now());
    let each = next.into_iter().map(async |stored| {
        let _permit = moves.acquire().await;
        bring_back(part, stored).await
    });
    // They are sent in their order, unless this task has to yield between two of them: tokio wakes what yielded last first.
    let moved = tokio::task::unconstrained(futures_util::stream::iter(each).buffered(AT_ONCE).collect());
    let moved: Vec<Result<bool, Error>> = moved.await;
    if moved.iter().filter(|moved| matches!(moved, Ok(true))).count() as u64 >= parked.jobs {
        part.queue.buffer.none_is_parked(&kind);
    }
    let are_as_read = moved.iter().all(|moved| matches!(moved, Ok(true)));
    match moved.into_iter().find_map(Result::err) {
        Some(error) => (kind, Err(error)),
        // Another node was faster, or one could not be moved: the jobs read ahead may differ from those that are there.
        None => (kind, Ok(are_as_read.then_some(ahead))),
    }
}

/// Brings back the job of an `ordered` kind whose turn it is, of each priority, and those that have nothing to wait for.
async fn bring_next_back(part: &Part, kind: &Kind, priorities: &[Priority], ahead: &mut Ahead) -> Result<(), Error> {
    for priority in priorities {
        let id = order::of_kind(kind, Lane::new(&part.queue.name, *priority));
        let order::TakeBack { first, stale } = order::to_take_back(&part.backbone, &id, now()).await?;
        // After it was brought back, its record says for a moment that it is parked.
        let sought = |run: &RunId| {
            let (last, at) = ahead.sought.get(priority)?;
            (last == run && at.elapsed() < SEEK_AGAIN_AFTER).then_some(())
        };
        let first = first.filter(|run| sought(run).is_none());
        let mut wanted: BTreeSet<RunId> = stale.into_iter().chain(first.clone()).collect();
        let subject = part.backbone.names().parked(
            &kind.tenant,
            &Lane::new(&part.queue.name, *priority),
            (&kind.job_type, &kind.key),
        );
        // Jobs are parked nearly in order.
        let (mut from, mut most) = (Some(1), FIRST_PAGE);
        while let Some(next) = from.filter(|_| !wanted.is_empty()) {
            let page = part.backbone.page_of(&Source::Parked, &subject, next, most).await?;
            (from, most) = (page.next, PAGE);
            for stored in page.messages {
                let run = header::read_job(&stored.headers).ok().and_then(|read| read.run_id);
                if run.is_some_and(|run| wanted.remove(&run)) {
                    part.queue.buffer.coming_back(kind, 1, Instant::now());
                    bring_back(part, stored).await?;
                }
            }
        }
        if let Some(run) = first {
            ahead.sought.insert(*priority, (run, Instant::now()));
        }
    }
    Ok(())
}

/// Reads parked jobs of a kind ahead, as far as there are and may be any more.
async fn read_ahead(part: &Part, kind: &Kind, priorities: &[Priority], ahead: &mut Ahead) -> Result<(), Error> {
    let (names, aging) = (part.backbone.names(), part.queue.policy.aging);
    for priority in priorities {
        let subject = names.parked(&kind.tenant, &Lane::new(&part.queue.name, *priority), (&kind.job_type, &kind.key));
        while let Some(from) = ahead.reads_from(*priority) {
            let page = part.backbone.page(&Source::Parked, &subject, from).await?;
            page.messages.into_iter().for_each(|stored| ahead.add(*priority, stored, aging));
            if page.next.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// The position of a parked job among its kind.
fn place_of(stored: &Stored, priority: Priority, aging: Duration) -> (Rank, u64, u64) {
    let sequence = stored.sequence;
    let read = header::read_job(&stored.headers).ok();
    let run_id = read.as_ref().and_then(|read| read.run_id.as_ref());
    let number = run_id.map_or(sequence, |run_id| number_of(run_id, sequence));
    let due = read.and_then(|read| read.moved?.due_at);
    let since = due.or_else(|| Timestamp::parse(&stored.at).ok()).unwrap_or_default();
    (Rank::new(since, priority, aging), number, sequence)
}

/// Publishes a job into the lane of returned jobs, then deletes it where it was parked. Says whether it was still
/// there.
async fn bring_back(part: &Part, stored: Stored) -> Result<bool, Error> {
    let (sequence, headers) = (stored.sequence, stored.job_headers());
    let names = part.backbone.names();
    let Some(job) = DueJob::read(names, &stored.subject, headers.as_ref(), stored.payload, sequence) else {
        // Only nodes park jobs, and their subjects can be read.
        tracing::error!(subject = %stored.subject, "a parked job's subject cannot be read; it is dropped");
        return part.backbone.take_out(&Source::Parked, sequence).await;
    };
    due::take_to_lane(part, &job, (&Source::Parked, sequence)).await
}

impl StoredPorts for Part {
    async fn publish(&self, job: &DueJob) -> Result<(), Error> {
        job.publish(&self.backbone).await
    }

    fn published(&self, _: &DueJob) {
        fail_point::pass("after-return");
        self.metrics.unparked.inc();
    }

    async fn take_out(&self, place: &Source, sequence: u64) -> Result<bool, Error> {
        self.backbone.take_out(place, sequence).await
    }
}

#[cfg(test)]
mod tests;
