//! Buffered jobs that cannot start now, by kind.
//!
//! A few jobs of each kind are kept here, in order, so that one can start the moment it may: as many as start within a
//! part of the lease. Jobs beyond that are parked ([`crate::queue::parking`]), so that a kind that cannot start never
//! keeps another from starting. While jobs of a kind are parked, later ones of it from the lanes go behind them. Nor are
//! jobs kept that cannot start for some time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use longshore_domain::run::DeferReason;

use crate::queue::gates::answer::HeldUp;
use crate::queue::held::{HasPayload, Held};
use crate::shared::kind::{Kind, Room};
use crate::shared::park_permits::{OnItsWay, OnTheirWay, Position};

/// At least and at most so many jobs of each kind are kept.
const MIN_KEPT: usize = 2;
const MAX_KEPT: usize = 256;
/// So many at least that were taken back: one that were parked again would start after those that were behind it.
const KEPT_BACK: usize = 32;
/// A job that cannot start within this time is parked at once. Others are kept, so that they start on time.
const SOON: Duration = Duration::from_secs(1);
/// If no gate has news, the first jobs are not asked about again before this time is over.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// As many jobs are kept as start within the lease divided by this.
const PART_OF_LEASE: u32 = 6;
/// A job that was taken back and has not arrived after this long was pulled by another node.
const COMES_WITHIN: Duration = Duration::from_secs(1);
/// The same where no job of its kind is left here: then those that other nodes pulled must not keep this one waiting.
const COMES_SOON: Duration = Duration::from_millis(100);

/// The jobs that wait, by kind.
#[derive(Debug)]
pub(crate) struct Blocked<T> {
    kinds: HashMap<Kind, Waiting<T>>,
    held: Held,
    /// How many of them go behind parked jobs.
    behind: usize,
    /// The time over which starts are counted.
    counted_over: Duration,
    /// Jobs that waited for too long and are to be parked.
    overdue: VecDeque<(Kind, T)>,
    /// When none of the first jobs could start, at what count of the gates' news.
    none_could: Option<(Instant, u64)>,
    /// When the first of them may start, and whether that was answered.
    opens: Option<Instant>,
    is_told: bool,
}

#[derive(Debug)]
struct Waiting<T> {
    /// In order.
    jobs: VecDeque<(Position, T)>,
    /// Other jobs are parked, and go first.
    are_parked: bool,
    /// In order: those that go behind them, and could not be parked yet because too many are on their way.
    behind: VecDeque<(Position, T)>,
    /// How many were given out to be parked, and which of those are still on their way.
    parks: u64,
    on_their_way: OnTheirWay,
    /// `parks` when the stream of parked jobs was last asked, if none was on its way then.
    settled: Option<u64>,
    /// Starts, where older ones count less and less; and when that was counted.
    starts: f64,
    counted: Option<Instant>,
    /// How many were taken back and have not arrived yet, and since when.
    coming: (usize, Option<Instant>),
    /// Why the first of them could not start when it was last asked about.
    reason: Option<DeferReason>,
    /// About how many of them may start in a second, if that was said then.
    soon: usize,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self {
            jobs: VecDeque::new(),
            are_parked: false,
            behind: VecDeque::new(),
            parks: 0,
            on_their_way: OnTheirWay::default(),
            settled: None,
            starts: 0.0,
            counted: None,
            coming: (0, None),
            reason: None,
            soon: 0,
        }
    }
}

impl<T> Waiting<T> {
    fn started(&mut self, now: Instant, over: Duration) {
        self.starts = self.recent(now, over) + 1.0;
        self.counted = Some(now);
    }

    /// Starts within about `over`.
    fn recent(&self, now: Instant, over: Duration) -> f64 {
        let Some(counted) = self.counted else { return 0.0 };
        self.starts * (-now.duration_since(counted).as_secs_f64() / over.as_secs_f64()).exp()
    }

    /// How many jobs are to be kept here.
    fn kept(&self, now: Instant, over: Duration) -> usize {
        (self.recent(now, over) as usize).clamp(MIN_KEPT, MAX_KEPT)
    }

    /// How many were taken back a moment ago and have not arrived yet.
    fn coming(&self, now: Instant) -> usize {
        let (count, since) = self.coming;
        let within = if self.jobs.is_empty() { COMES_SOON } else { COMES_WITHIN };
        if since.is_some_and(|since| now.duration_since(since) < within) { count } else { 0 }
    }

    /// Takes out jobs that were kept because more could have started, now that it is known how many can.
    fn excess(&mut self, held_up: HeldUp, now: Instant, over: Duration) -> VecDeque<(Position, T)> {
        if self.soon <= held_up.soon {
            return VecDeque::new();
        }
        let is_soon = held_up.until.is_none_or(|until| until <= now + SOON);
        let kept = if is_soon { self.kept(now, over).max(held_up.soon) } else { 0 };
        let excess = self.jobs.split_off(kept.min(self.jobs.len()));
        self.are_parked |= !excess.is_empty();
        excess
    }

    fn learn(&mut self, held_up: HeldUp) {
        self.reason = held_up.reason.or(self.reason);
        self.soon = held_up.soon;
    }

    /// None is parked any more: those that had to go behind wait here. Says how many did.
    fn none_is_parked(&mut self) -> usize {
        self.are_parked = false;
        let behind = std::mem::take(&mut self.behind);
        let count = behind.len();
        for (position, job) in behind {
            insert(&mut self.jobs, position, job);
        }
        count
    }

    /// Whether jobs are on their way to be parked.
    fn is_parking(&self) -> bool {
        !self.on_their_way.is_empty()
    }

    /// Whether nothing here is worth remembering.
    fn is_over(&self, now: Instant, over: Duration) -> bool {
        self.jobs.is_empty()
            && self.behind.is_empty()
            && !self.are_parked
            && !self.is_parking()
            && self.recent(now, over) < 1.0
    }
}

/// Where a job that cannot start goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goes {
    /// It waits here.
    Here,
    /// It is to be parked.
    Parked,
}

impl<T: HasPayload> Blocked<T> {
    /// Nothing waits. Leases last for `lease`.
    pub(crate) fn new(lease: Duration) -> Self {
        let (kinds, overdue, counted_over) = (HashMap::new(), VecDeque::new(), lease / PART_OF_LEASE);
        let (held, behind) = (Held::default(), 0);
        Self { kinds, held, behind, counted_over, overdue, none_could: None, opens: None, is_told: false }
    }

    /// How many wait here.
    pub(crate) fn held(&self) -> usize {
        self.held.jobs + self.overdue.len()
    }

    /// The first job of each kind, and those that are to be parked.
    pub(crate) fn fronts(&self) -> impl Iterator<Item = &T> {
        self.kinds
            .values()
            .filter_map(|waiting| waiting.jobs.front().or_else(|| waiting.behind.front()).map(|(_, job)| job))
            .chain(self.overdue.iter().map(|(_, job)| job))
    }

    /// Whether a job of this kind has to go behind others.
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

    /// Why jobs of this kind wait, as far as that is known and told.
    pub(crate) fn reason(&self, kind: &Kind) -> Option<DeferReason> {
        self.kinds.get(kind)?.reason
    }

    /// When the first of the jobs here may start, as far as that is known; answered once.
    pub(crate) fn opens(&mut self) -> Option<Instant> {
        self.opens.filter(|_| !std::mem::replace(&mut self.is_told, true))
    }

    /// Whether that is known, and was not answered yet.
    pub(crate) fn opens_at_new_time(&self) -> bool {
        self.opens.is_some() && !self.is_told
    }

    /// Keeps a job until it can start.
    pub(crate) fn keep(&mut self, kind: Kind, position: Position, job: T) {
        self.held.add(&job);
        if insert(&mut self.kinds.entry(kind).or_default().jobs, position, job) == 0 {
            // It has not been asked about as the first of its kind.
            self.none_could = None;
        }
    }

    /// Keeps a job until it can be parked: it must not start before those of its kind that are.
    pub(crate) fn keep_behind(&mut self, kind: Kind, position: Position, job: T) {
        self.held.add(&job);
        self.behind += 1;
        insert(&mut self.kinds.entry(kind).or_default().behind, position, job);
    }

    /// Takes the first in order of the jobs that go behind parked ones, to be parked.
    pub(crate) fn take_behind(&mut self) -> Option<(Kind, T)> {
        if self.behind == 0 {
            return None;
        }
        let of_kinds = self.kinds.iter_mut().filter(|(_, waiting)| !waiting.behind.is_empty());
        let (kind, waiting) =
            of_kinds.min_by_key(|(_, waiting)| waiting.behind.front().map(|(position, _)| *position))?;
        let (_, job) = waiting.behind.pop_front()?;
        self.behind -= 1;
        self.held.remove(&job);
        Some((kind.clone(), job))
    }

    /// A job of this kind is being parked: later ones go behind it. It is on its way until what is returned is dropped.
    pub(crate) fn parks(&mut self, kind: Kind, position: Position) -> OnItsWay {
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

    /// The first in order of the jobs of this kind that may have been missing in the stream when it was read, as they were on
    /// their way there: those behind it must not be taken back before it is.
    pub(crate) fn first_missed(&self, kind: &Kind) -> Option<Position> {
        self.kinds.get(kind)?.on_their_way.first_seen()
    }

    /// The stream is about to be asked which kinds are parked. What it says of a kind counts if no job of it is on its way
    /// there now, and none is sent there before the answer is used.
    pub(crate) fn before_asking(&mut self) {
        for waiting in self.kinds.values_mut() {
            waiting.settled = (!waiting.is_parking()).then_some(waiting.parks);
        }
    }

    /// The stream has jobs of exactly these kinds.
    pub(crate) fn are_parked(&mut self, kinds: &[Kind], now: Instant) {
        for kind in kinds {
            self.kinds.entry(kind.clone()).or_default().are_parked = true;
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
    }

    /// Whether a job has to go behind others that are parked, or on their way there.
    pub(crate) fn any_parked(&self) -> bool {
        self.kinds.values().any(|waiting| waiting.are_parked)
    }

    /// All jobs of this kind that the stream had are on their way back: no other has to go behind them any more.
    pub(crate) fn none_is_parked(&mut self, kind: &Kind) {
        if let Some(waiting) = self.kinds.get_mut(kind).filter(|waiting| waiting.settled == Some(waiting.parks)) {
            self.behind -= waiting.none_is_parked();
            self.none_could = None;
        }
    }

    /// How many of this kind are wanted back.
    pub(crate) fn wants(&self, kind: &Kind, room: Room, now: Instant) -> usize {
        let Room::For(free) = room else { return 0 };
        let free = free.min(MAX_KEPT);
        // Jobs of too many kinds wait here: those that could not start either have to wait where they are.
        if free == 0 && !self.held.has_room(1) {
            return 0;
        }
        let Some(waiting) = self.kinds.get(kind) else { return free.max(MIN_KEPT) };
        waiting.kept(now, self.counted_over).max(free).saturating_sub(waiting.jobs.len() + waiting.coming(now))
    }

    /// Whether jobs of this kind could start, but none is here.
    pub(crate) fn is_short_of(&self, kind: &Kind, room: Room) -> bool {
        let none_is_here = self.kinds.get(kind).is_none_or(|waiting| waiting.jobs.is_empty());
        none_is_here && matches!(room, Room::For(1..))
    }

    /// So many of this kind were taken back.
    pub(crate) fn coming(&mut self, kind: &Kind, count: usize, now: Instant) {
        let waiting = self.kinds.entry(kind.clone()).or_default();
        waiting.coming = (waiting.coming(now) + count, Some(now));
    }

    /// A job that was taken back has arrived.
    pub(crate) fn came_back(&mut self, kind: &Kind) {
        if let Some(waiting) = self.kinds.get_mut(kind) {
            waiting.coming.0 = waiting.coming.0.saturating_sub(1);
        }
    }

    /// A job of this kind starts. Says whether more are wanted back.
    pub(crate) fn started(&mut self, kind: &Kind, now: Instant) -> bool {
        let over = self.counted_over;
        let Some(waiting) = self.kinds.get_mut(kind) else { return false };
        waiting.started(now, over);
        waiting.are_parked && waiting.jobs.len() * 2 <= waiting.kept(now, over)
    }

    /// Takes the first in order of the kinds' first jobs that may start. Types may share capacity: the job that is
    /// first in order gets it. `news` counts what the gates had to tell: while it stays the same and no job's time has
    /// come, the jobs are not asked about again, because every start on this node would pay for it. Nor are those that
    /// `may_be_asked` leaves out: keys make many kinds, and news are of one of them.
    pub(crate) fn take(
        &mut self,
        (now, news): (Instant, u64),
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
        (self.none_could, self.opens, self.is_told) = (None, None, false);
        let (mut opens, over) = (None, self.counted_over);
        let is_front = |waiting: &Waiting<T>| waiting.jobs.front().is_some_and(|(_, job)| may_be_asked(job));
        let fronts = self.kinds.iter_mut().filter(|(_, waiting)| is_front(waiting));
        let mut fronts: Vec<(&Kind, &mut Waiting<T>)> = fronts.collect();
        fronts.sort_unstable_by_key(|(_, waiting)| waiting.jobs.front().map(|(place, _)| *place));
        for (kind, waiting) in fronts {
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
            (self.opens, self.is_told) = (opens, false);
        }
    }

    /// Sets aside jobs that have waited for too long, to be parked; and those of their kind that are behind them, which would
    /// overtake them otherwise.
    pub(crate) fn set_aside(&mut self, waited: impl Fn(&T) -> bool) {
        for (kind, waiting) in &mut self.kinds {
            let old = split_off(&mut waiting.jobs, &waited);
            waiting.are_parked |= !old.is_empty();
            let behind = split_off(&mut waiting.behind, &waited);
            self.behind -= behind.len();
            for (_, job) in old.into_iter().chain(behind) {
                self.held.remove(&job);
                self.overdue.push_back((kind.clone(), job));
            }
        }
    }

    /// Takes a job that has waited for too long.
    pub(crate) fn take_overdue(&mut self) -> Option<(Kind, T)> {
        self.overdue.pop_front()
    }

    /// Every job.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let kinds = self.kinds.values_mut();
        let waiting = kinds.flat_map(|waiting| waiting.jobs.iter_mut().chain(&mut waiting.behind));
        waiting.map(|(_, job)| job).chain(self.overdue.iter_mut().map(|(_, job)| job))
    }

    /// Takes out every job.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        (self.held, self.behind) = (Held::default(), 0);
        let waiting =
            self.kinds.values_mut().flat_map(|waiting| waiting.jobs.drain(..).chain(waiting.behind.drain(..)));
        self.overdue.drain(..).map(|(_, job)| job).chain(waiting.map(|(_, job)| job)).collect()
    }
}

/// Puts a job in its place in the order; says where that is.
fn insert<T>(jobs: &mut VecDeque<(Position, T)>, position: Position, job: T) -> usize {
    let at = jobs.partition_point(|(other, _)| *other <= position);
    jobs.insert(at, (position, job));
    at
}

/// Takes out the first job of which `is_wanted` says so, and all behind it.
fn split_off<T>(jobs: &mut VecDeque<(Position, T)>, is_wanted: impl Fn(&T) -> bool) -> VecDeque<(Position, T)> {
    let at = jobs.iter().position(|(_, job)| is_wanted(job)).unwrap_or(jobs.len());
    jobs.split_off(at)
}

/// The earlier of two moments that may be unknown.
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

#[cfg(test)]
mod tests {
    use longshore_backbone::wire::kind_key::KindKey;
    use longshore_domain::rank::Rank;
    use longshore_domain::{JobType, Priority, Tenant, Timestamp};

    use super::*;
    use crate::queue::held::{MAX_HELD, MAX_HELD_BYTES};

    const LEASE: Duration = Duration::from_secs(30);

    /// A number from a million on stands for a job with so many bytes.
    impl HasPayload for u64 {
        fn payload_bytes(&self) -> usize {
            if *self < 1_000_000 { 0 } else { usize::try_from(*self).unwrap() }
        }
    }

    fn kind(name: &str) -> Kind {
        Kind { tenant: Tenant::default_tenant(), job_type: JobType::parse(name).unwrap(), key: KindKey::default() }
    }

    fn place(number: u64) -> Position {
        (Rank::new(Timestamp::from_millis(7), Priority::DEFAULT, Duration::ZERO), number)
    }

    /// Keeps jobs as long as they are to wait here, and says which were to be parked.
    fn fill(blocked: &mut Blocked<u64>, of: &str, numbers: std::ops::Range<u64>, now: Instant) -> Vec<u64> {
        let mut parked = Vec::new();
        for number in numbers {
            match blocked.place_for(&kind(of), false, None, now) {
                Goes::Here => blocked.keep(kind(of), place(number), number),
                Goes::Parked => {
                    drop(blocked.parks(kind(of), place(number)));
                    parked.push(number);
                }
            }
        }
        parked
    }

    #[test]
    fn a_few_of_each_kind_stay_and_the_others_are_parked() {
        let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
        assert_eq!(fill(&mut blocked, "full", 0..5, now), [2, 3, 4]);
        assert!(fill(&mut blocked, "other", 5..7, now).is_empty());
        assert_eq!(blocked.held(), 4);
        assert!(blocked.has_others_before(&kind("full"), false) && !blocked.has_others_before(&kind("quick"), false));
        while blocked.take((now, 0), |_| true, |_| Ok(())).is_some() {}
        assert_eq!(fill(&mut blocked, "full", 7..8, now), [7], "behind those that are parked");
        assert!(blocked.has_others_before(&kind("full"), false) && !blocked.has_others_before(&kind("full"), true));
    }

    #[test]
    fn while_none_can_start_they_are_asked_about_again_only_if_a_gate_has_news_or_their_time_comes() {
        let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
        blocked.keep(kind("a"), place(1), 1);
        let opens = now + Duration::from_millis(2);
        let later = |_: &mut u64| {
            Err(HeldUp { until: Some(opens), reason: Some(DeferReason::RateLimited), soon: 0, waits: None })
        };
        assert_eq!(blocked.take((now, 7), |_| true, later), None);
        assert_eq!((blocked.opens(), blocked.opens()), (Some(opens), None), "answered once");
        assert_eq!(blocked.reason(&kind("a")), Some(DeferReason::RateLimited));
        assert_eq!(blocked.take((now, 7), |_| true, |_| panic!("nothing has changed")), None);
        assert_eq!(blocked.take((now, 8), |_| true, later), None, "a gate has news");
        assert_eq!(blocked.take((opens, 8), |_| true, |_| Ok(())), Some((kind("a"), 1)), "its time has come");
    }

    #[test]
    fn a_job_that_cannot_start_soon_is_parked_and_wanted_back_only_when_it_can() {
        let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
        let until = |until, soon| Some(HeldUp { until: Some(until), reason: None, soon, waits: None });
        assert_eq!(blocked.place_for(&kind("a"), false, until(now + SOON, 0), now), Goes::Here);
        let late = until(now + SOON * 2, 0);
        assert_eq!(blocked.place_for(&kind("a"), false, late, now), Goes::Parked);
        assert_eq!(blocked.place_for(&kind("a"), true, late, now), Goes::Here, "it was wanted back");
        assert_eq!(blocked.wants(&kind("a"), Room::NotYet, now), 0);
        assert_eq!(fill(&mut blocked, "a", 0..5, now), [2, 3, 4]);
        blocked.keep(kind("c"), place(5), 5);
        blocked.held_up(&kind("c"), HeldUp { until: Some(now), reason: None, soon: 1_000, waits: None });
        assert!(fill(&mut blocked, "c", 6..500, now).is_empty(), "what may start in a moment is not sent away");
        let held = blocked.held();
        let known = HeldUp { until: Some(now), reason: None, soon: 100, waits: None };
        assert_eq!(blocked.take((now, 1), |_| true, |_| Err(known)), None);
        assert_eq!(blocked.take_overdue().map(|(_, number)| number), Some(105), "once it is known how many may, it is");
        assert_eq!(blocked.held(), held - 1);
        drop(blocked.take_all());
        for number in 0..MAX_HELD as u64 {
            blocked.keep(kind(&format!("key{number}")), place(number), number);
        }
        assert_eq!(blocked.place_for(&kind("b"), false, None, now), Goes::Parked, "too many kinds wait here");
        assert_eq!(
            (blocked.wants(&kind("b"), Room::For(0), now), blocked.wants(&kind("b"), Room::For(1), now)),
            (0, 2)
        );
    }

    #[test]
    fn large_payloads_wait_parked_beyond_a_bound_on_their_bytes() {
        let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
        let (large, mut kept) = (4 << 20, 0);
        while blocked.place_for(&kind(&format!("key{kept}")), false, None, now) == Goes::Here {
            blocked.keep(kind(&format!("key{kept}")), place(kept), large);
            kept += 1;
        }
        assert_eq!(kept * large, MAX_HELD_BYTES as u64);
        assert_eq!(blocked.wants(&kind("parked"), Room::For(0), now), 0, "none comes back only to wait here");
        assert_eq!(blocked.wants(&kind("parked"), Room::For(1), now), MIN_KEPT, "but those that can start do");
        for number in kept..2 * kept {
            assert_eq!(blocked.place_for(&kind("back"), true, None, now), Goes::Here, "it was wanted back");
            blocked.keep(kind(&format!("back{number}")), place(number), large);
        }
        assert_eq!(blocked.place_for(&kind("back"), true, None, now), Goes::Parked);
        for left in (0..2 * kept).rev() {
            assert!(blocked.take((now, left), |_| true, |_| Ok(())).is_some());
        }
        assert_eq!(blocked.held, Held::default(), "what left counts no more");
        blocked.keep(kind("a"), place(1), large);
        blocked.set_aside(|_| true);
        assert_eq!(blocked.held, Held::default());
    }

    #[test]
    fn as_many_are_kept_and_wanted_back_as_start_in_a_while() {
        let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
        fill(&mut blocked, "full", 0..3, now);
        for _ in 0..100 {
            blocked.started(&kind("full"), now);
        }
        assert_eq!(blocked.wants(&kind("full"), Room::For(0), now), 98, "two are here");
        blocked.coming(&kind("full"), 90, now);
        assert_eq!(blocked.wants(&kind("full"), Room::For(0), now), 8);
        blocked.came_back(&kind("full"));
        assert_eq!(blocked.wants(&kind("full"), Room::For(0), now), 9);
        let later = now + COMES_WITHIN;
        assert!(blocked.wants(&kind("full"), Room::For(0), later) > 60, "another node has them");
        assert_eq!(blocked.wants(&kind("full"), Room::For(0), now + LEASE * 10), 0, "where none start, two are enough");
        assert_eq!(blocked.wants(&kind("anothers"), Room::For(0), now), MIN_KEPT);
        assert_eq!(blocked.wants(&kind("anothers"), Room::For(8), now), 8, "as many as could start at once");
        assert_eq!(blocked.wants(&kind("full"), Room::For(30), now + LEASE * 10), 28);
    }

    #[test]
    fn the_first_in_order_that_may_start_is_taken() {
        let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
        for (of, number) in [("a", 4), ("b", 2), ("a", 1), ("b", 3)] {
            blocked.keep(kind(of), place(number), number);
        }
        let full = |is_full: bool| {
            if is_full { Err(HeldUp { until: None, reason: None, soon: 0, waits: None }) } else { Ok(()) }
        };
        assert_eq!(blocked.take((now, 7), |_| false, |_| panic!("it was not to be asked about")), None);
        let taken = blocked.take((now, 0), |_| true, |number| full(*number == 1));
        assert_eq!(taken, Some((kind("b"), 2)), "1 cannot start, and 4 is behind it");
        assert_eq!(blocked.take((now, 0), |_| true, |_| full(false)), Some((kind("a"), 1)));
        assert_eq!(blocked.take((now, 0), |_| true, |_| full(true)), None);
        blocked.set_aside(|number| *number == 4);
        assert_eq!(blocked.iter_mut().map(|number| *number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((blocked.held(), blocked.take_overdue(), blocked.take_overdue()), (2, Some((kind("a"), 4)), None));
        assert_eq!(fill(&mut blocked, "a", 5..6, now), [5], "behind the one that waited for too long");
        assert_eq!(blocked.take_all(), [3]);
        assert_eq!(blocked.held(), 0);
    }

    /// Given jobs of a kind, of which one was taken back earlier than those before it, when it has waited for too long, then
    /// those behind it are parked as well, and in their order.
    #[test]
    fn none_overtakes_a_job_that_is_parked_again() {
        let mut blocked = Blocked::new(LEASE);
        for number in 1..=4 {
            blocked.keep(kind("a"), place(number), number);
        }
        blocked.keep(kind("b"), place(5), 5);
        blocked.set_aside(|number| *number == 2);
        let parked: Vec<_> = std::iter::from_fn(|| blocked.take_overdue()).collect();
        assert_eq!(parked, [(kind("a"), 2), (kind("a"), 3), (kind("a"), 4)]);
        let mut left = blocked.take_all();
        left.sort_unstable();
        assert_eq!(left, [1, 5]);
    }

    #[test]
    fn what_the_stream_does_not_know_of_yet_still_counts_as_parked() {
        let (mut blocked, now) = (Blocked::new(LEASE), Instant::now());
        fill(&mut blocked, "full", 0..2, now);
        let on_its_way = blocked.parks(kind("full"), place(2));
        while blocked.take((now, 0), |_| true, |_| Ok(())).is_some() {}
        let asks = |blocked: &mut Blocked<u64>, kinds: &[Kind]| {
            blocked.before_asking();
            blocked.are_parked(kinds, now);
        };
        asks(&mut blocked, &[kind("found")]);
        assert!(blocked.has_others_before(&kind("found"), false));
        assert!(blocked.has_others_before(&kind("full"), false), "it is on its way there");
        blocked.before_asking();
        drop(on_its_way);
        blocked.are_parked(&[], now);
        assert!(blocked.has_others_before(&kind("full"), false), "it may have come there after the stream was asked");
        blocked.before_asking();
        let on_its_way = blocked.parks(kind("full"), place(2));
        blocked.are_parked(&[], now);
        assert!(blocked.has_others_before(&kind("full"), false), "another is on its way since");
        drop(on_its_way);
        asks(&mut blocked, &[]);
        assert!(!blocked.any_parked() && blocked.kinds.is_empty(), "kinds without waiting jobs are forgotten");
    }

    #[test]
    fn once_all_are_on_their_way_back_no_job_goes_behind_them() {
        let (mut blocked, now) = (Blocked::<u64>::new(LEASE), Instant::now());
        blocked.before_asking();
        blocked.are_parked(&[kind("full")], now);
        blocked.before_asking();
        blocked.none_is_parked(&kind("full"));
        assert!(!blocked.any_parked());
        blocked.are_parked(&[kind("full")], now);
        blocked.before_asking();
        let _on_its_way = blocked.parks(kind("full"), place(0));
        blocked.none_is_parked(&kind("full"));
        assert!(blocked.any_parked(), "one more is on its way there");
    }

    #[test]
    fn a_job_on_its_way_may_have_been_missed_until_the_stream_is_read_after_it_arrived() {
        let mut blocked = Blocked::<u64>::new(LEASE);
        let full = kind("full");
        blocked.before_reading(&full);
        assert_eq!(blocked.first_missed(&full), None);
        let [third, first] = [3, 1].map(|number| blocked.parks(full.clone(), place(number)));
        assert_eq!(blocked.first_missed(&full), Some(place(1)), "it set out after the read began");
        drop(first);
        assert_eq!(blocked.first_missed(&full), Some(place(1)), "it may have arrived after the read");
        blocked.before_reading(&full);
        assert_eq!((blocked.first_missed(&full), blocked.first_missed(&kind("other"))), (Some(place(3)), None));
        let second = blocked.parks(full.clone(), place(2));
        drop((second, third));
        assert_eq!(blocked.first_missed(&full), Some(place(2)));
        blocked.before_reading(&full);
        assert_eq!(blocked.first_missed(&full), None);
    }

    #[test]
    fn a_job_behind_parked_ones_is_parked_in_order_and_waits_here_once_none_is() {
        let (mut blocked, now) = (Blocked::<u64>::new(LEASE), Instant::now());
        let full = kind("full");
        assert!(!blocked.has_parked_before(&full, false));
        drop(blocked.parks(full.clone(), place(0)));
        assert!(blocked.has_parked_before(&full, false) && !blocked.has_parked_before(&full, true));
        for number in [3, 1, 2] {
            blocked.keep_behind(full.clone(), place(number), number);
        }
        blocked.keep_behind(kind("other"), place(9), 9);
        assert!(blocked.take((now, 0), |_| true, |_| Ok(())).is_none(), "none of them may start");
        assert_eq!(blocked.iter_mut().count(), 4);
        assert_eq!((blocked.held(), blocked.take_behind()), (4, Some((full.clone(), 1))));
        blocked.before_asking();
        blocked.are_parked(&[kind("other")], now);
        assert_eq!(blocked.take((now, 0), |_| true, |_| Ok(())), Some((full.clone(), 2)));
        assert_eq!(blocked.take_behind(), Some((kind("other"), 9)));
        assert_eq!((blocked.take_behind(), blocked.held()), (None, 1));
        blocked.set_aside(|_| true);
        assert_eq!(blocked.take_overdue(), Some((full, 3)));
    }
}
