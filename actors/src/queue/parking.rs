//! Parking: takes parked jobs of a queue back as they can start.
//!
//! One loop per queue and node. It asks which kinds are parked: twice a second while some are, ten times if some of them
//! could start here and none of their kind is here, else every two seconds, and at once when jobs of such a kind start. It brings back as many jobs of each kind as start within a part of the
//! lease, and at least as many as its handlers have free capacity for. It publishes them into the queue's lane of
//! returned jobs, by rank; then it deletes them where they were parked. Several nodes may take back the same job: its
//! message id keeps it in the lane once, and its record lets it begin once.
//!
//! Bounds: [`READ_AHEAD`] messages of a kind and one page per priority, [`KINDS`] kinds in a round, [`AT_ONCE`] moves.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_backbone::request::Stored;
use longshore_backbone::scan::Source;
use longshore_backbone::wire::header;
use longshore_backbone::{Backbone, Error};
use longshore_domain::rank::Rank;
use longshore_domain::{JobType, Priority, Tenant, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::attempt::assignment::number_of;
use crate::attempt::line;
use crate::fail_point;
use crate::metrics::Metrics;
use crate::queue::dispatcher::Dispatcher;
use crate::queue::gates::Gates;
use crate::shared::kind::Kind;
use crate::supervision::LoopEnd;
use crate::time::due::DueJob;

/// How often it polls while jobs are parked, while some of them could start, and while none are.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const SHORT_LOOK_EVERY: Duration = Duration::from_millis(100);
const IDLE_LOOK_EVERY: Duration = Duration::from_secs(2);
/// The least time between two polls, however often jobs are wanted back.
const PAUSE: Duration = Duration::from_millis(5);
/// At least so many messages of a kind are read ahead: more than may be on their way to be parked at once.
const READ_AHEAD: usize = 512;
/// Kinds whose messages are read ahead.
const KINDS: usize = 64;
/// Jobs that are brought back at once.
const AT_ONCE: usize = 32;

/// Brings parked jobs back until the node drains.
pub(crate) async fn run(part: Part) -> LoopEnd {
    let draining = part.draining.clone();
    let mut parking = Parking { part, ahead: BTreeMap::new(), last: None };
    let mut pause = IDLE_LOOK_EVERY;
    loop {
        tokio::select! {
            () = draining.cancelled() => break,
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
    pub(crate) draining: CancellationToken,
    pub(crate) metrics: Arc<Metrics>,
}

struct Parking {
    part: Part,
    /// The jobs of each kind that were read ahead.
    ahead: BTreeMap<Kind, Ahead>,
    /// The last kind of which jobs were brought back, if there were too many kinds for one round.
    last: Option<Kind>,
}

/// Parked jobs of a kind that were read ahead. Many workers and nodes park jobs at once, so that the stream holds them
/// a little out of order: reading some ahead restores the order.
#[derive(Default)]
struct Ahead {
    jobs: BTreeMap<(Rank, u64, u64), Stored>,
    /// The sequence from which the next ones of each priority are read.
    from: BTreeMap<u8, u64>,
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
        for (kind, parked, want) in self.next_round(wanted.filter(|(_, _, want)| *want > 0).collect()) {
            if line::is_open(&self.part.backbone, &self.part.gates.routing.policies, &kind).await? {
                self.bring_back(kind, &parked, want).await?;
            }
        }
        Ok(match self.part.queue.buffer.any_parked() {
            // Those that were taken back may have gone to other nodes.
            true if is_short => SHORT_LOOK_EVERY,
            true => LOOK_EVERY,
            false => IDLE_LOOK_EVERY,
        })
    }

    /// The kinds whose turn it is, and how many jobs of each. Keys make many kinds, so each round takes some of them.
    /// Kinds of one tenant and type share their handlers: together they get what one of them could have.
    fn next_round(&mut self, mut wanted: Vec<(Kind, Parked, usize)>) -> Vec<(Kind, Parked, usize)> {
        let begin = self.last.as_ref().map_or(0, |last| wanted.partition_point(|(kind, ..)| kind <= last));
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
        self.last = wanted.last().map(|(kind, ..)| kind.clone()).filter(|_| are_too_many);
        wanted
    }

    /// Brings back the first `want` of a kind.
    async fn bring_back(&mut self, kind: Kind, parked: &Parked, want: usize) -> Result<(), Error> {
        self.read_ahead(&kind, &parked.priorities).await?;
        let Some(ahead) = self.ahead.get_mut(&kind) else { return Ok(()) };
        let next: Vec<Stored> =
            std::iter::from_fn(|| ahead.jobs.pop_first().map(|(_, stored)| stored)).take(want).collect();
        self.part.queue.buffer.coming_back(&kind, next.len(), Instant::now());
        let moves = next.into_iter().map(|stored| bring_back(&self.part, stored));
        let moved: Vec<Result<bool, Error>> = futures_util::stream::iter(moves).buffered(AT_ONCE).collect().await;
        if moved.iter().filter(|moved| matches!(moved, Ok(true))).count() as u64 >= parked.jobs {
            self.part.queue.buffer.none_is_parked(&kind);
        }
        if moved.iter().any(|moved| !matches!(moved, Ok(true))) {
            // Another node was faster, or one could not be moved: the jobs read ahead may differ from those that are
            // there.
            self.ahead.remove(&kind);
        }
        moved.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    async fn read_ahead(&mut self, kind: &Kind, priorities: &[Priority]) -> Result<(), Error> {
        let (names, aging) = (self.part.backbone.names(), self.part.queue.policy.aging);
        let ahead = self.ahead.entry(kind.clone()).or_default();
        for priority in priorities {
            let of = (&kind.job_type, &kind.key);
            let subject = names.parked(&kind.tenant, &self.part.queue.name, *priority, of);
            while ahead.jobs.len() < READ_AHEAD {
                let from = ahead.from.entry(priority.number()).or_insert(1);
                let page = self.part.backbone.page(&Source::Parked, &subject, *from).await?;
                let Some(last) = page.messages.last() else { break };
                *from = last.sequence + 1;
                let placed = page.messages.into_iter().map(|stored| (place_of(&stored, *priority, aging), stored));
                ahead.jobs.extend(placed);
            }
        }
        if ahead.jobs.is_empty() {
            // Nothing is left beyond the last read: the jobs left over then are gone, or parked again. The next read
            // begins at the first message.
            self.ahead.remove(kind);
        }
        Ok(())
    }
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
    if let Some(job) = DueJob::read(names, &stored.subject, headers.as_ref(), stored.payload, sequence) {
        job.publish(&part.backbone).await?;
        fail_point::pass("after-return");
        part.metrics.unparked.inc();
    } else {
        // Only nodes park jobs, and their subjects can be read.
        tracing::error!(subject = %stored.subject, "a parked job's subject cannot be read; it is dropped");
    }
    part.backbone.take_out(&Source::Parked, sequence).await
}
