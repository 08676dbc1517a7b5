//! Buffered jobs that cannot start now, by kind.
//!
//! A few jobs of each kind are kept here, in order, so that one can start the moment it may: as many as start within a
//! part of the lease. Jobs beyond that are parked ([`crate::queue::parking`]), so that a kind that cannot start never
//! keeps another from starting. While jobs of a kind are parked, later ones of it from the lanes go behind them. Nor
//! are jobs kept that cannot start for some time. None is wanted back that cannot start either ([`wanted`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use longshore_domain::JobType;
use longshore_domain::run::DeferReason;

use crate::queue::gates::HeldUp;
use crate::queue::held::{HasPayload, Held};
use crate::runtime::kind::{Kind, Room};
use crate::runtime::park_permits::{OnItsWay, Position};

mod waiting;
pub(crate) mod wanted;

use waiting::{MIN_KEPT, SOON, Starts, Waiting, insert, split_off};

/// At least so many jobs of a kind are kept that were taken back. One that is parked again starts after those that were
/// behind it.
const KEPT_BACK: usize = 32;
/// If no gate has news, the first jobs are not asked about again before this time is over.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// As many jobs are kept as start within the lease divided by this.
const PART_OF_LEASE: u32 = 6;

#[derive(Debug)]
pub(crate) struct Blocked<T> {
    kinds: HashMap<Kind, Waiting<T>, RandomState>,
    /// Those of which jobs are here, or were a moment ago: keys make many kinds, all of whose jobs may be parked.
    here: HashSet<Kind, RandomState>,
    /// The types of which jobs are parked, and their starts since.
    parked_types: HashMap<JobType, Starts>,
    held: Held,
    /// How many of them go behind parked jobs.
    behind: usize,
    counted_over: Duration,
    /// Jobs that waited for too long and are to be parked.
    overdue: VecDeque<(Kind, T)>,
    /// When none of the first jobs could start, at what count of the gates' news.
    none_could: Option<(Instant, u64)>,
    /// When the first of them may start, and whether that was answered.
    opens: Option<Instant>,
    is_answered: bool,
}

/// Where a job that cannot start goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goes {
    Here,
    Parked,
}

impl<T: HasPayload> Blocked<T> {
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            kinds: HashMap::default(),
            here: HashSet::default(),
            parked_types: HashMap::new(),
            held: Held::default(),
            behind: 0,
            counted_over: lease / PART_OF_LEASE,
            overdue: VecDeque::new(),
            none_could: None,
            opens: None,
            is_answered: false,
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.held.jobs + self.overdue.len()
    }

    /// The first job of each kind, and those that are to be parked.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &T> {
        self.with_jobs()
            .filter_map(|(_, waiting)| waiting.jobs.front().or_else(|| waiting.behind.front()).map(|(_, job)| job))
            .chain(self.overdue.iter().map(|(_, job)| job))
    }

    pub(crate) fn has_others_before(&self, kind: &Kind, is_returned: bool) -> bool {
        let has_here = self.kinds.get(kind).is_some_and(|waiting| !waiting.jobs.is_empty());
        has_here || self.has_parked_before(kind, is_returned)
    }

    /// Whether a job of this kind has to go behind others that are parked.
    pub(crate) fn has_parked_before(&self, kind: &Kind, is_returned: bool) -> bool {
        !is_returned && self.kinds.get(kind).is_some_and(|waiting| waiting.are_parked)
    }

    /// Where a job of this kind that cannot start now goes; `held_up` says why, if it is the first of them.
    pub(crate) fn place_for(&self, kind: &Kind, is_returned: bool, held_up: Option<HeldUp>, now: Instant) -> Goes {
        let waiting = self.kinds.get(kind);
        let soon = held_up.map_or_else(|| waiting.map_or(0, |waiting| waiting.soon), |held_up| held_up.soon);
        let kept = waiting.map_or(MIN_KEPT, |waiting| waiting.kept(now, self.counted_over)).max(soon);
        let opens = held_up.and_then(|held_up| held_up.until);
        let here = waiting.map_or(0, |waiting| waiting.jobs.len());
        let are_parked = waiting.is_some_and(|waiting| waiting.are_parked);
        let is_soon = opens.is_none_or(|opens| opens <= now + SOON);
        let has_room = match is_returned {
            // It was wanted back; others may have arrived meanwhile.
            true => here < (2 * kept).max(KEPT_BACK) && self.held.has_room(2),
            false => !are_parked && is_soon && here < kept && self.held.has_room(1),
        };
        if has_room { Goes::Here } else { Goes::Parked }
    }

    /// The first job of this kind cannot start now, for this reason.
    pub(crate) fn held_up(&mut self, kind: &Kind, held_up: HeldUp) {
        self.may_open_at(held_up.until);
        if let Some(waiting) = self.kinds.get_mut(kind) {
            waiting.learn(held_up);
        }
    }

    /// Why jobs of this kind wait, as far as a gate has said.
    pub(crate) fn reason(&self, kind: &Kind) -> Option<DeferReason> {
        self.kinds.get(kind)?.reason
    }

    /// Whether the cluster is being asked for the slot of the first job of this kind.
    pub(crate) fn asks_for_slot(&self, kind: &Kind) -> bool {
        self.kinds.get(kind).is_some_and(|waiting| waiting.asks_for_slot && !waiting.jobs.is_empty())
    }

    /// The job that is meant, if it waits here, and why, as far as that is known and published.
    pub(crate) fn find(&self, is_meant: impl Fn(&T) -> bool) -> Option<(&T, Option<DeferReason>)> {
        let each = self.with_jobs();
        let each = each.map(|(_, waiting)| (waiting.jobs.iter().chain(&waiting.behind), waiting.reason));
        let mut all = each.flat_map(|(jobs, reason)| jobs.map(move |(_, job)| (job, reason)));
        all.find(|(job, _)| is_meant(job))
    }

    /// When the first of the jobs here may start, as far as that is known; answered once.
    pub(crate) fn opens(&mut self) -> Option<Instant> {
        self.opens.filter(|_| !std::mem::replace(&mut self.is_answered, true))
    }

    /// Whether that is known, and was not answered yet.
    pub(crate) fn opens_at_new_time(&self) -> bool {
        self.opens.is_some() && !self.is_answered
    }

    /// The kinds of which jobs are here.
    fn with_jobs(&self) -> impl Iterator<Item = (&Kind, &Waiting<T>)> {
        self.here.iter().filter_map(|kind| Some((kind, self.kinds.get(kind)?)))
    }

    /// The jobs of a kind, of which one is about to be here.
    fn entered(&mut self, kind: Kind) -> &mut Waiting<T> {
        if !self.here.contains(&kind) {
            self.here.insert(kind.clone());
        }
        self.kinds.entry(kind).or_default()
    }

    pub(crate) fn keep(&mut self, kind: Kind, position: Position, job: T) {
        self.held.add(&job);
        if insert(&mut self.entered(kind).jobs, position, job) == 0 {
            // It has not been asked about as the first of its kind.
            self.none_could = None;
        }
    }

    /// Keeps a job until it can be parked: it must not start before those of its kind that are.
    pub(crate) fn keep_behind(&mut self, kind: Kind, position: Position, job: T) {
        self.held.add(&job);
        self.behind += 1;
        insert(&mut self.entered(kind).behind, position, job);
    }

    /// Takes the first in order of the jobs that go behind parked ones, to be parked.
    pub(crate) fn take_behind(&mut self) -> Option<(Kind, T)> {
        if self.behind == 0 {
            return None;
        }
        let first = |waiting: &Waiting<T>| waiting.behind.front().map(|(position, _)| *position);
        let of_kinds = self.with_jobs().filter_map(|(kind, waiting)| Some((first(waiting)?, kind)));
        let (_, kind) = of_kinds.min_by_key(|(position, _)| *position)?;
        let kind = kind.clone();
        let (_, job) = self.kinds.get_mut(&kind)?.behind.pop_front()?;
        self.behind -= 1;
        self.held.remove(&job);
        debug_assert!(self.holds_together());
        Some((kind, job))
    }

    /// A job of this kind is being parked: later ones go behind it. It is on its way until what is returned is dropped.
    pub(crate) fn parks(&mut self, kind: Kind, position: Position) -> OnItsWay {
        self.parked_types.entry(kind.job_type.clone()).or_default();
        let waiting = self.kinds.entry(kind).or_default();
        waiting.are_parked = true;
        waiting.parks += 1;
        waiting.on_their_way.sets_out(position)
    }

    /// The stream is about to be read for parked jobs of this kind.
    pub(crate) fn before_reading(&self, kind: &Kind) {
        if let Some(waiting) = self.kinds.get(kind) {
            waiting.on_their_way.watch();
        }
    }

    /// The first in order of the jobs of this kind that may have been missing in the stream when it was read, as they
    /// were on their way there: those behind it must not be taken back before it is.
    pub(crate) fn first_missed(&self, kind: &Kind) -> Option<Position> {
        self.kinds.get(kind)?.on_their_way.first_seen()
    }

    /// The stream is about to be asked which kinds are parked. What it says of a kind counts if no job of it is on its
    /// way there now, and none is sent there before the answer is used.
    pub(crate) fn before_asking(&mut self) {
        for waiting in self.kinds.values_mut() {
            waiting.settled = (!waiting.is_parking()).then_some(waiting.parks);
        }
    }

    /// The stream has jobs of exactly these kinds.
    pub(crate) fn are_parked(&mut self, kinds: &[Kind], now: Instant) {
        for kind in kinds {
            self.kinds.entry(kind.clone()).or_default().are_parked = true;
            self.parked_types.entry(kind.job_type.clone()).or_default();
        }
        if self.overdue.is_empty() {
            let kinds: HashSet<&Kind> = kinds.iter().collect();
            let settled = self.kinds.iter_mut().filter(|(_, waiting)| waiting.settled == Some(waiting.parks));
            for (_, waiting) in settled.filter(|(kind, _)| !kinds.contains(kind)) {
                self.behind -= waiting.none_is_parked();
                self.none_could = None;
            }
        }
        let over = self.counted_over;
        self.kinds.retain(|_, waiting| !waiting.is_over(now, over));
        let parked: HashSet<&JobType> =
            self.kinds.iter().filter(|(_, waiting)| waiting.are_parked).map(|(kind, _)| &kind.job_type).collect();
        self.parked_types.retain(|job_type, _| parked.contains(job_type));
        debug_assert!(self.holds_together());
    }

    /// Whether a job has to go behind others that are parked, or on their way there.
    pub(crate) fn any_parked(&self) -> bool {
        self.kinds.values().any(|waiting| waiting.are_parked)
    }

    /// Whether others of this type may be parked.
    pub(crate) fn has_parked(&self, job_type: &JobType) -> bool {
        self.parked_types.contains_key(job_type)
    }

    /// All jobs of this kind that the stream had are on their way back: no other has to go behind them any more.
    pub(crate) fn none_is_parked(&mut self, kind: &Kind) {
        if let Some(waiting) = self.kinds.get_mut(kind).filter(|waiting| waiting.settled == Some(waiting.parks)) {
            self.behind -= waiting.none_is_parked();
            self.none_could = None;
        }
    }

    /// Whether jobs of this kind could start, but none is here.
    pub(crate) fn is_short_of(&self, kind: &Kind, room: Room) -> bool {
        let none_is_here = self.kinds.get(kind).is_none_or(|waiting| waiting.jobs.is_empty());
        none_is_here && matches!(room, Room::For(1..))
    }

    /// So many jobs of this kind were taken back, and are on their way here.
    pub(crate) fn are_expected(&mut self, kind: &Kind, count: usize, now: Instant) {
        let waiting = self.kinds.entry(kind.clone()).or_default();
        waiting.expected = (waiting.expected(now) + count, Some(now));
    }

    pub(crate) fn has_arrived(&mut self, kind: &Kind) {
        if let Some(waiting) = self.kinds.get_mut(kind) {
            waiting.expected.0 = waiting.expected.0.saturating_sub(1);
        }
    }

    /// A job of this kind starts. Says whether more are wanted back.
    pub(crate) fn started(&mut self, kind: &Kind, now: Instant) -> bool {
        let over = self.counted_over;
        if let Some(starts) = self.parked_types.get_mut(&kind.job_type) {
            starts.add(now, over);
        }
        let Some(waiting) = self.kinds.get_mut(kind) else { return false };
        waiting.starts.add(now, over);
        waiting.are_parked && waiting.jobs.len() * 2 <= waiting.kept(now, over)
    }

    /// Takes the first in order of the kinds' first jobs that may start. Types may share capacity: the job that is
    /// first in order gets it. `news` counts the changes of the gates: while it stays the same and no job's time has
    /// come, the jobs are not asked about again, because every start on this node would pay for it. Nor are those that
    /// `may_be_asked` leaves out: keys make many kinds, and news are of one of them.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        news: u64,
        may_be_asked: impl Fn(&T) -> bool,
        mut may_start: impl FnMut(&mut T) -> Result<(), HeldUp>,
    ) -> Option<(Kind, T)> {
        if let Some((asked_at, known)) = self.none_could
            && known == news
            && now < asked_at + ASK_AGAIN_AFTER
            && self.opens.is_none_or(|opens| now < opens)
        {
            return None;
        }
        (self.none_could, self.opens, self.is_answered) = (None, None, false);
        let (mut opens, over) = (None, self.counted_over);
        let front = |kind| self.kinds.get(kind)?.jobs.front().filter(|(_, job)| may_be_asked(job));
        let mut fronts: Vec<(Position, &Kind)> =
            self.here.iter().filter_map(|kind| Some((front(kind)?.0, kind))).collect();
        fronts.sort_unstable_by_key(|(place, _)| *place);
        for (_, kind) in fronts {
            let Some(waiting) = self.kinds.get_mut(kind) else { continue };
            let Some((_, front)) = waiting.jobs.front_mut() else { continue };
            match may_start(front) {
                Ok(()) => {
                    let (_, job) = waiting.jobs.pop_front()?;
                    self.held.remove(&job);
                    return Some((kind.clone(), job));
                }
                Err(held_up) => {
                    opens = earlier(opens, held_up.until);
                    let excess = waiting.excess(held_up, now, over);
                    waiting.learn(held_up);
                    excess.iter().for_each(|(_, job)| self.held.remove(job));
                    self.overdue.extend(excess.into_iter().map(|(_, job)| (kind.clone(), job)));
                }
            }
        }
        (self.none_could, self.opens) = (Some((now, news)), opens);
        None
    }

    fn may_open_at(&mut self, at: Option<Instant>) {
        let opens = earlier(self.opens, at);
        if opens != self.opens {
            (self.opens, self.is_answered) = (opens, false);
        }
    }

    /// Sets aside jobs that have waited for too long, to be parked; and those of their kind that are behind them, which
    /// would overtake them otherwise.
    pub(crate) fn set_aside(&mut self, waited: impl Fn(&T) -> bool) {
        self.here.retain(|kind| {
            let Some(waiting) = self.kinds.get_mut(kind) else { return false };
            let old = split_off(&mut waiting.jobs, &waited);
            waiting.are_parked |= !old.is_empty();
            let behind = split_off(&mut waiting.behind, &waited);
            self.behind -= behind.len();
            for (_, job) in old.into_iter().chain(behind) {
                self.held.remove(&job);
                self.overdue.push_back((kind.clone(), job));
            }
            !waiting.jobs.is_empty() || !waiting.behind.is_empty()
        });
        debug_assert!(self.holds_together());
    }

    /// Between changes every job is counted once and is found by its kind, the jobs of a kind stand in order, and none
    /// goes behind parked ones of a kind of which none is parked.
    fn holds_together(&self) -> bool {
        let in_order = |jobs: &VecDeque<(Position, T)>| jobs.iter().is_sorted_by_key(|(position, _)| *position);
        let jobs: usize = self.kinds.values().map(|waiting| waiting.jobs.len()).sum();
        let behind: usize = self.kinds.values().map(|waiting| waiting.behind.len()).sum();
        self.held.jobs == jobs + behind
            && self.behind == behind
            && self.kinds.iter().all(|(kind, waiting)| {
                let is_empty = waiting.jobs.is_empty() && waiting.behind.is_empty();
                (is_empty || self.here.contains(kind))
                    && (waiting.are_parked || waiting.behind.is_empty())
                    && in_order(&waiting.jobs)
                    && in_order(&waiting.behind)
            })
    }

    pub(crate) fn take_overdue(&mut self) -> Option<(Kind, T)> {
        self.overdue.pop_front()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let kinds = self.kinds.values_mut();
        let waiting = kinds.flat_map(|waiting| waiting.jobs.iter_mut().chain(&mut waiting.behind));
        waiting.map(|(_, job)| job).chain(self.overdue.iter_mut().map(|(_, job)| job))
    }

    pub(crate) fn take_all(&mut self) -> Vec<T> {
        (self.held, self.behind) = (Held::default(), 0);
        let waiting =
            self.kinds.values_mut().flat_map(|waiting| waiting.jobs.drain(..).chain(waiting.behind.drain(..)));
        self.overdue.drain(..).map(|(_, job)| job).chain(waiting.map(|(_, job)| job)).collect()
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests;
