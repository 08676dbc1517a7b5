//! Which parked jobs are taken back in a round, and when the next round is.
//!
//! What the stream has, and the moves, are asked of [`ParkedPorts`]: the simulation drives this, too.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use longshore_backbone::Error;
use longshore_backbone::parked::ParkedKind;
use longshore_domain::rank::Rank;
use longshore_domain::{JobType, Priority, RunId, Tenant};
use tokio::sync::Semaphore;

use crate::queue::blocked::{Blocked, wanted::Want};
use crate::queue::buffer::JobBuffer;
use crate::runtime::kind::Kind;
use crate::runtime::park_permits::Position;

/// How often parking polls while jobs are parked, while some of them could start, and while none are. It polls less
/// often where that takes long each time, as keys make very many kinds: a poll takes a hundredth of the time at most
/// while nothing can start, up to a bound, and a fifth in any case. One slow poll may have met a server that was away.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
pub(super) const SHORT_LOOK_EVERY: Duration = Duration::from_millis(100);
pub(crate) const IDLE_LOOK_EVERY: Duration = Duration::from_secs(2);
const AT_REST: u32 = 100;
const AT_WORK: u32 = 4;
const LONGEST: Duration = Duration::from_secs(10);
/// The least time between two polls, however often jobs are wanted back.
const PAUSE: Duration = Duration::from_millis(5);
/// At least so many messages of a kind are read ahead: more than may be on their way to be parked at once.
const READ_AHEAD: usize = 512;
/// No more is read ahead of a kind beyond so many bytes.
const READ_AHEAD_BYTES: usize = 2 << 20;
/// Beyond so many bytes of all kinds, what was read ahead is forgotten and read again.
const AHEAD_BYTES: usize = 32 << 20;
/// What was read ahead before that is read again: other nodes may have taken it back, and the server drops a second
/// return of the same job for two minutes alone.
pub(super) const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Kinds whose messages are read ahead.
pub(super) const KINDS: usize = 256;
/// Kinds that are read at once.
const KINDS_AT_ONCE: usize = 16;
/// Jobs that are brought back at once.
const AT_ONCE: usize = 64;

/// What taking parked jobs of a queue back asks.
pub(crate) trait ParkedPorts {
    /// A parked job, as it is stored.
    type Job;

    /// The buffer of the queue: it knows how many of a kind are wanted.
    fn buffer(&self) -> &JobBuffer;
    fn instant(&self) -> Instant;
    /// Which kinds the stream has, and how many jobs of each.
    async fn kinds(&self) -> Result<Vec<ParkedKind>, Error>;
    /// Some of the jobs of a kind and priority, from a sequence on, and where the next ones begin.
    async fn page(
        &self,
        kind: &Kind,
        priority: Priority,
        from: u64,
    ) -> Result<(Vec<Read<Self::Job>>, Option<u64>), Error>;
    /// Whether jobs of this kind may be taken back, as far as the line of their key goes.
    async fn is_open(&self, kind: &Kind) -> Result<bool, Error>;
    fn has_order(&self, kind: &Kind) -> bool;
    /// Brings back the job whose turn it is, of each priority of a kind that has an order.
    async fn bring_next_back(&self, kind: &Kind, priorities: &[Priority], sought: &mut Sought) -> Result<(), Error>;
    /// Brings a job back into its queue; says whether it was still parked.
    async fn bring_back(&self, job: Self::Job) -> Result<bool, Error>;
}

/// A parked job that was read, and where it stands.
pub(crate) struct Read<T> {
    pub(crate) position: Position,
    pub(crate) sequence: u64,
    pub(crate) bytes: usize,
    pub(crate) job: T,
}

/// Of an `ordered` kind, by priority: the run that was last looked for among all that are parked, and when.
pub(crate) type Sought = BTreeMap<Priority, (RunId, Instant)>;

pub(crate) struct Parking<T> {
    /// The jobs of each kind that were read ahead.
    ahead: BTreeMap<Kind, Ahead<T>>,
    /// The last kind of which jobs were brought back, if there were too many kinds for one round.
    last: Option<Kind>,
    /// A permit for each move.
    moves: Semaphore,
    /// How long the last poll took.
    took: Duration,
}

/// Parked jobs of a kind that were read ahead. Many workers and nodes park jobs at once, so that the stream holds them
/// a little out of order: reading some ahead restores the order, and none is taken back before one that this node is
/// still parking.
pub(super) struct Ahead<T> {
    pub(super) jobs: BTreeMap<(Rank, u64, u64), (Priority, usize, T)>,
    /// Of each priority, the sequence from which the next ones are read, and how many are here.
    of: BTreeMap<Priority, (u64, usize)>,
    pub(super) bytes: usize,
    /// When reading them began.
    read_at: Option<Instant>,
    sought: Sought,
}

impl<T> Default for Ahead<T> {
    fn default() -> Self {
        Self { jobs: BTreeMap::new(), of: BTreeMap::new(), bytes: 0, read_at: None, sought: Sought::new() }
    }
}

impl<T> Ahead<T> {
    /// Forgets what was read too long ago, as more is about to be read.
    pub(super) fn forget_old(&mut self, now: Instant) {
        let read_at = *self.read_at.get_or_insert(now);
        if now.saturating_duration_since(read_at) > READ_AGAIN_AFTER {
            *self = Self { read_at: Some(now), ..Self::default() };
        }
    }

    /// From where on the next ones of a priority are read, if any are to be: some of each, so that the first in order
    /// is among them.
    pub(super) fn reads_from(&self, priority: Priority) -> Option<u64> {
        let (from, here) = self.of.get(&priority).copied().unwrap_or((1, 0));
        let has_room = self.jobs.len() < READ_AHEAD && self.bytes < READ_AHEAD_BYTES;
        (here == 0 || has_room).then_some(from)
    }

    pub(super) fn add(&mut self, priority: Priority, read: Read<T>) {
        let Read { position: (rank, number), sequence, bytes, job } = read;
        let (from, here) = self.of.entry(priority).or_insert((1, 0));
        (*from, *here) = (sequence + 1, *here + 1);
        self.bytes += bytes;
        self.jobs.insert((rank, number, sequence), (priority, bytes, job));
    }

    /// The first in order, unless one of its kind comes before it that may have been missing in what was read.
    pub(super) fn take_first_before(&mut self, missed: Option<Position>) -> Option<T> {
        let first = self.jobs.first_entry()?;
        let (rank, number, _) = *first.key();
        if missed.is_some_and(|missed| missed < (rank, number)) {
            return None;
        }
        let (priority, bytes, job) = first.remove();
        self.bytes -= bytes;
        if let Some((_, here)) = self.of.get_mut(&priority) {
            *here -= 1;
        }
        Some(job)
    }
}

struct WantedBack<T> {
    kind: Kind,
    parked: Parked,
    want: usize,
    ahead: Ahead<T>,
}

#[derive(Default)]
struct Parked {
    priorities: Vec<Priority>,
    jobs: u64,
}

impl<T> Parking<T> {
    pub(crate) fn new() -> Self {
        Self { ahead: BTreeMap::new(), last: None, moves: Semaphore::new(AT_ONCE), took: Duration::ZERO }
    }

    /// Takes back the jobs that are wanted; says when to look again.
    pub(crate) async fn look<P: ParkedPorts<Job = T>>(&mut self, ports: &P) -> Result<NextLook, Error> {
        let (buffer, began) = (ports.buffer(), ports.instant());
        buffer.blocked(Blocked::before_asking);
        let found = ports.kinds().await?;
        let mut kinds: BTreeMap<Kind, Parked> = BTreeMap::new();
        for parked in found.into_iter().filter(|parked| parked.jobs > 0) {
            let kind = Kind { tenant: parked.tenant, job_type: parked.job_type, key: parked.key };
            let of_kind = kinds.entry(kind).or_default();
            of_kind.priorities.push(parked.priority);
            of_kind.jobs += parked.jobs;
        }
        let names: Vec<Kind> = kinds.keys().cloned().collect();
        let now = ports.instant();
        let (wants, is_short) = buffer.are_parked(&names, now, |kind| buffer.room_for(kind, now));
        self.ahead.retain(|kind, _| kinds.contains_key(kind));
        if self.ahead.len() > KINDS {
            self.ahead.clear();
        }
        let wanted = kinds.into_iter().zip(wants).map(|((kind, parked), want)| (kind, parked, want));
        let is_wanted = |want: &Want| want.jobs > 0 && want.of_type > 0;
        let round = next_round(&mut self.last, wanted.filter(|(_, _, want)| is_wanted(want)).collect());
        let (took, is_at_rest) = (ports.instant().saturating_duration_since(began), round.is_empty());
        let took = [std::mem::replace(&mut self.took, took), took];
        self.bring_all_back(ports, round).await?;
        let pause = until_next(self.last.is_some(), buffer.blocked(|jobs| jobs.any_parked()), is_short);
        Ok(NextLook::after(pause, took, is_at_rest))
    }

    async fn bring_all_back<P: ParkedPorts<Job = T>>(
        &mut self,
        ports: &P,
        round: Vec<(Kind, Parked, usize)>,
    ) -> Result<(), Error> {
        let Self { ahead, moves, .. } = self;
        let wanted = round.into_iter().map(|(kind, parked, want)| {
            let ahead = ahead.remove(&kind).unwrap_or_default();
            WantedBack { kind, parked, want, ahead }
        });
        let wanted: Vec<WantedBack<T>> = wanted.collect();
        let mut bytes: usize = ahead.values().map(|ahead| ahead.bytes).sum();
        let each = wanted.into_iter().map(|wanted| bring_kind_back(ports, moves, wanted));
        let mut each = futures_util::stream::iter(each).buffer_unordered(KINDS_AT_ONCE);
        let mut failed = None;
        while let Some(result) = each.next().await {
            match result {
                // What is not kept is read again.
                Ok(Some((kind, of_kind))) if bytes + of_kind.bytes <= AHEAD_BYTES => {
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

/// The kinds whose turn it is, and how many jobs of each; `last` is the kind with which the former round ended. Keys
/// make many kinds, so each round takes some of them. Kinds of one tenant and type share their handlers: together they
/// get what one of them could have, one each before one gets more.
pub(super) fn next_round<P>(last: &mut Option<Kind>, mut wanted: Vec<(Kind, P, Want)>) -> Vec<(Kind, P, usize)> {
    let begin = last.as_ref().map_or(0, |last| wanted.partition_point(|(kind, ..)| kind <= last));
    if begin < wanted.len() {
        wanted.rotate_left(begin);
    }
    let mut shared: HashMap<(Tenant, JobType), usize> = HashMap::new();
    for (kind, _, want) in &wanted {
        let left = shared.entry((kind.tenant.clone(), kind.job_type.clone())).or_default();
        *left = (*left).max(want.of_type);
    }
    let mut left_of = |kind: &Kind, most: usize| {
        let left = shared.get_mut(&(kind.tenant.clone(), kind.job_type.clone()));
        left.map_or(0, |left| {
            let gets = most.min(*left);
            *left -= gets;
            gets
        })
    };
    let count = wanted.len();
    let mut round = Vec::new();
    for (kind, parked, want) in wanted {
        if round.len() < KINDS && left_of(&kind, 1) == 1 {
            round.push((kind, parked, want));
        }
    }
    *last = round.last().map(|(kind, ..)| kind.clone()).filter(|_| round.len() < count);
    let mut gets = |(kind, parked, want): (Kind, P, Want)| {
        let more = left_of(&kind, want.jobs - 1);
        (kind, parked, 1 + more)
    };
    round.into_iter().map(&mut gets).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextLook {
    /// If nothing calls it before.
    pub(crate) after: Duration,
    /// Not before this, whatever calls it.
    pub(crate) at_least: Duration,
}

impl NextLook {
    /// After this pause, or after longer if the last two looks took long; `is_at_rest`: it found nothing to take back.
    pub(super) fn after(pause: Duration, [before, took]: [Duration; 2], is_at_rest: bool) -> Self {
        let took = took.min(before);
        let longer = if is_at_rest { (took * AT_REST).min(LONGEST) } else { Duration::ZERO };
        Self { after: pause.max(longer), at_least: PAUSE.max((took * AT_WORK).min(LONGEST)) }
    }
}

pub(super) fn until_next(are_kinds_left: bool, any_parked: bool, is_short: bool) -> Duration {
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
async fn bring_kind_back<P: ParkedPorts>(
    ports: &P,
    moves: &Semaphore,
    wanted: WantedBack<P::Job>,
) -> Result<Option<(Kind, Ahead<P::Job>)>, Error> {
    let WantedBack { kind, parked, want, mut ahead } = wanted;
    if ports.has_order(&kind) {
        ports.bring_next_back(&kind, &parked.priorities, &mut ahead.sought).await?;
        return Ok(Some((kind, ahead)));
    }
    let buffer = ports.buffer();
    buffer.blocked(|jobs| jobs.before_reading(&kind));
    if !ports.is_open(&kind).await? {
        return Ok(Some((kind, ahead)));
    }
    ahead.forget_old(ports.instant());
    read_ahead(ports, &kind, &parked.priorities, &mut ahead).await?;
    if ahead.jobs.is_empty() {
        // Nothing is left beyond the last read: the jobs left over then are gone, or parked again. The next read begins
        // at the first message.
        return Ok(None);
    }
    let missed = buffer.blocked(|jobs| jobs.first_missed(&kind));
    let next: Vec<P::Job> = std::iter::from_fn(|| ahead.take_first_before(missed)).take(want).collect();
    buffer.blocked(|jobs| jobs.are_expected(&kind, next.len(), ports.instant()));
    let each = next.into_iter().map(async |job| {
        let _permit = moves.acquire().await;
        ports.bring_back(job).await
    });
    // They are sent in order, unless this task has to yield between two of them: tokio wakes what yielded last first.
    let moved = tokio::task::unconstrained(futures_util::stream::iter(each).buffered(AT_ONCE).collect());
    let moved: Vec<Result<bool, Error>> = moved.await;
    if moved.iter().filter(|moved| matches!(moved, Ok(true))).count() as u64 >= parked.jobs {
        buffer.blocked(|jobs| jobs.none_is_parked(&kind));
    }
    let are_as_read = moved.iter().all(|moved| matches!(moved, Ok(true)));
    match moved.into_iter().find_map(Result::err) {
        Some(error) => Err(error),
        // Another node was faster, or one could not be moved: the jobs read ahead may differ from those that are there.
        None => Ok(are_as_read.then_some((kind, ahead))),
    }
}

/// Reads parked jobs of a kind ahead, as far as there are and may be any more.
async fn read_ahead<P: ParkedPorts>(
    ports: &P,
    kind: &Kind,
    priorities: &[Priority],
    ahead: &mut Ahead<P::Job>,
) -> Result<(), Error> {
    for priority in priorities {
        while let Some(from) = ahead.reads_from(*priority) {
            let (jobs, next) = ports.page(kind, *priority, from).await?;
            jobs.into_iter().for_each(|read| ahead.add(*priority, read));
            if next.is_none() {
                break;
            }
        }
    }
    Ok(())
}
