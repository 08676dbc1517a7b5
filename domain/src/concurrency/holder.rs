//! The slots of one limit that a node has, and what it has to write about them.
//!
//! Whatever faults there are, the record lists at least as many slots for the node's session as it uses: it takes a
//! slot into use only after a write that gave it was confirmed, and counts one that it gives back as gone before it
//! sends the write. After an answer was lost it writes once more what it has, by compare-and-set: that settles it, as
//! the write in question either came before or never can.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use super::record::{Ask, Block, SlotRecord, SlotVersion};

/// Slots that are not used are given back after this time; sooner, if other nodes want slots.
const IDLE: Duration = Duration::from_millis(500);
const IDLE_IF_WANTED: Duration = Duration::from_millis(5);
/// A node's wish for slots is known for this long; it is sent more often than that.
const WISH_LASTS: Duration = Duration::from_secs(1);
/// Where there are fewer slots than nodes that want some, a node uses its own for this long before it gives them back.
const QUANTUM: Duration = Duration::from_millis(50);
/// Then it leaves them to others for this long.
const REST: Duration = Duration::from_millis(20);
/// A wish that no job repeats is given up after this time.
const GIVEN_UP: Duration = Duration::from_secs(2);
/// A block is written again after this time, long before its record would be forgotten.
const WRITTEN_AGAIN: Duration = Duration::from_secs(6 * 60 * 60);

/// What a node has of a limit.
#[derive(Debug)]
pub struct Holder {
    session: SmolStr,
    max: u32,
    /// Slots that it may use: never more than the record lists for its session.
    granted: u32,
    used: u32,
    /// For how long the record keeps them beyond the end of the session, at least.
    holds_for: Duration,
    /// Of the attempts at work those that ask for that, by how long.
    held: BTreeMap<Duration, u32>,
    known: Option<KnownRecord>,
    /// The number of the write that is on its way, and of the next one.
    writing: Option<u64>,
    next: u64,
    /// A write's answer was lost: the record may list more.
    is_unclear: bool,
    /// A job wants a slot that is kept for so long.
    wanted: Option<(Instant, Duration)>,
    /// When the first of its slots was granted, when one was last used or given back by a job, and when one was last
    /// in need of being kept for as long as they are.
    since: Instant,
    used_at: Instant,
    held_at: Instant,
    written_at: Instant,
    rests_until: Instant,
    /// The node takes no more slots, and gives back those that are not used.
    leaves: bool,
    /// Other nodes that want slots, by session, and when they said so.
    rivals: BTreeMap<SmolStr, Instant>,
}

#[derive(Debug)]
struct KnownRecord {
    record: SlotRecord,
    revision: u64,
    /// How many slots are free.
    free: u32,
    /// It lists slots that are over.
    has_over: bool,
}

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotRefusal {
    /// The cluster has to be asked.
    Unknown,
    /// All are taken.
    Full,
}

impl Holder {
    /// Nothing is known of the limit, which allows `max`.
    pub fn new(session: SmolStr, max: u32, now: Instant) -> Self {
        Self {
            session,
            max,
            granted: 0,
            used: 0,
            holds_for: Duration::ZERO,
            held: BTreeMap::new(),
            known: None,
            writing: None,
            next: 0,
            is_unclear: false,
            wanted: None,
            since: now,
            used_at: now,
            held_at: now,
            written_at: now,
            rests_until: now,
            leaves: false,
            rivals: BTreeMap::new(),
        }
    }

    /// The session under which it has its slots.
    pub fn session(&self) -> &SmolStr {
        &self.session
    }

    /// How many slots the limit allows.
    pub fn max(&self) -> u32 {
        self.max
    }

    /// Takes a slot into use for an attempt that asks for it to be kept for so long once the node is gone.
    ///
    /// # Errors
    /// There is none here; the wish for one is kept.
    pub fn take(&mut self, now: Instant, holds_for: Duration) -> Result<(), SlotRefusal> {
        if self.has_one(now, holds_for) {
            (self.used, self.used_at) = (self.used + 1, now);
            if !holds_for.is_zero() {
                *self.held.entry(holds_for).or_default() += 1;
            }
            return Ok(());
        }
        Err(self.wish(now, holds_for))
    }

    /// An attempt wants a slot, and there is none here. Says why.
    pub fn wish(&mut self, now: Instant, holds_for: Duration) -> SlotRefusal {
        self.wanted = Some((now, holds_for));
        if self.is_full() { SlotRefusal::Full } else { SlotRefusal::Unknown }
    }

    /// Whether all slots are known to be taken. One that the record lists for this node is not while a write brings it,
    /// or gives it back: the record may be heard of before the write's answer.
    pub fn is_full(&self) -> bool {
        let on_its_way = |known: &KnownRecord| known.record.of(&self.session).slots > self.granted;
        self.known.as_ref().is_some_and(|known| known.free == 0 && !on_its_way(known))
    }

    /// Whether such an attempt could take a slot into use.
    pub fn has_one(&self, now: Instant, holds_for: Duration) -> bool {
        self.used < self.granted && holds_for <= self.holds_for && !self.yields(now)
    }

    /// An attempt that asked for this has ended, or did not start.
    pub fn put_back(&mut self, now: Instant, holds_for: Duration) {
        (self.used, self.used_at) = (self.used.saturating_sub(1), now);
        if let Some(held) = self.held.get_mut(&holds_for) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&holds_for);
            }
            if holds_for == self.holds_for {
                self.held_at = now;
            }
        }
    }

    /// For how long its slots have to be kept: as long as an attempt at work asks, and, for the next such attempt, as
    /// one asked a moment ago.
    fn holds(&self, now: Instant) -> Duration {
        let at_work = self.held.last_key_value().map_or(Duration::ZERO, |(longest, _)| *longest);
        let is_recent = now.saturating_duration_since(self.held_at) < IDLE;
        if is_recent { at_work.max(self.holds_for) } else { at_work }
    }

    /// How many more attempts could begin here, as far as is known.
    pub fn room(&self, now: Instant) -> u32 {
        let own = if self.yields(now) { 0 } else { self.granted.saturating_sub(self.used) };
        own + self.known.as_ref().map_or(1, |known| known.free)
    }

    /// Another node wants slots.
    pub fn is_wanted_by(&mut self, session: &str, now: Instant) {
        self.rivals.retain(|_, at| now.saturating_duration_since(*at) < WISH_LASTS);
        self.rivals.insert(session.into(), now);
    }

    /// Whether it has slots to give back now.
    pub fn gives_back(&self, now: Instant) -> bool {
        self.keeps(now) < self.granted
    }

    /// The node ends: it wants no more slots, and gives back those that are not used.
    pub fn leave(&mut self) {
        self.leaves = true;
    }

    /// Whether it has given back all but what it uses.
    pub fn has_left(&self) -> bool {
        self.granted <= self.used && self.writing.is_none()
    }

    /// Whether this node wants slots and none is free, so that others should know.
    pub fn lacks(&self, now: Instant) -> bool {
        self.wants(now) && self.used >= self.granted && self.known.as_ref().is_some_and(|known| known.free == 0)
    }

    /// Whether a job here has asked for a slot in vain, a moment ago.
    pub fn wants(&self, now: Instant) -> bool {
        !self.leaves && self.wanted.is_some_and(|(at, _)| now.saturating_duration_since(at) < GIVEN_UP)
    }

    /// How many slots a node has at most, if others want some; 0 if there are fewer slots than nodes: they take turns.
    fn share(&self, now: Instant) -> Option<u32> {
        let wishes = self.rivals.iter().filter(|(_, at)| now.saturating_duration_since(**at) < WISH_LASTS);
        let mut wish = wishes.map(|(session, _)| session).peekable();
        wish.peek()?;
        let have = self.known.iter().flat_map(|known| known.record.sessions());
        let others: std::collections::BTreeSet<&SmolStr> =
            wish.chain(have).filter(|session| **session != self.session).collect();
        let nodes = 1 + u32::try_from(others.len()).unwrap_or(u32::MAX - 1);
        // What is left over goes to the one that asks first: else it would be used by none.
        Some(if self.max < nodes { 0 } else { self.max.div_ceil(nodes) })
    }

    /// Whether the next slot is for other nodes.
    fn yields(&self, now: Instant) -> bool {
        match self.share(now) {
            None => false,
            Some(0) => self.granted > 0 && now.saturating_duration_since(self.since) >= QUANTUM,
            Some(share) => self.used >= share,
        }
    }

    /// How many slots it keeps.
    fn keeps(&self, now: Instant) -> u32 {
        let share = self.share(now);
        let idle = if share.is_some() { IDLE_IF_WANTED } else { IDLE };
        match share {
            _ if self.leaves || now.saturating_duration_since(self.used_at) >= idle => self.used,
            Some(0) if self.yields(now) => self.used,
            Some(share @ 1..) => self.granted.min(self.used.max(share)),
            Some(0) | None => self.granted,
        }
    }

    /// Whether there may be something to read or to write.
    pub fn is_due(&self, now: Instant) -> bool {
        let is_old = self.granted > 0 && now.saturating_duration_since(self.written_at) >= WRITTEN_AGAIN;
        let is_kept_too_long = self.granted > 0 && self.holds(now) < self.holds_for;
        let is_stale = is_old || is_kept_too_long || self.lists_over();
        self.is_unclear || is_stale || self.wants(now) || self.gives_back(now)
    }

    /// Whether the cluster's record has to be read before anything can be written.
    pub fn is_to_be_read(&self, now: Instant) -> bool {
        let has_news = self.is_unclear || self.wants(now) || self.keeps(now) < self.granted;
        self.known.is_none() && self.writing.is_none() && has_news
    }

    /// What is to be written now, and the revision and record it is based on. What is given back by it must not be used
    /// any more, whatever becomes of the write.
    pub fn ask(&mut self, now: Instant) -> Option<(Ask, SlotRecord, u64)> {
        if self.writing.is_some() {
            return None;
        }
        let keeps = self.keeps(now);
        let free = self.known.as_ref()?.free;
        let wish = self.wanted.filter(|_| self.wants(now) && now >= self.rests_until && !self.yields(now));
        let lacks_one = self.used >= self.granted;
        let most = match self.share(now) {
            // Others want slots, too: each takes its share, and what is left one by one.
            Some(share) => share.saturating_sub(keeps).max(1),
            None => free.div_ceil(2).max(1),
        };
        let wants = if wish.is_some() && lacks_one { free.min(most) } else { 0 };
        let has_place = wants > 0 || keeps > self.used;
        let wished = wish.filter(|_| has_place).map_or(Duration::ZERO, |(_, holds_for)| holds_for);
        let holds_for = self.holds(now).max(wished);
        let is_other = keeps > 0 && holds_for != self.holds_for;
        let is_old = keeps > 0 && now.saturating_duration_since(self.written_at) >= WRITTEN_AGAIN;
        let is_stale = is_old || is_other || self.lists_over();
        if keeps == self.granted && wants == 0 && !self.is_unclear && !is_stale {
            return None;
        }
        if keeps < self.granted && self.share(now).is_some() {
            self.rests_until = now + REST;
        }
        // Until what is given back was written, the record may list more: if another write comes first, it is written
        // once more.
        self.is_unclear |= keeps < self.granted;
        let known = self.known.as_ref()?;
        let number = self.next;
        let ask = Ask { session: self.session.clone(), number, keeps, wants, holds_for };
        (self.granted, self.writing, self.next) = (keeps, Some(number), number + 1);
        self.holds_for = self.holds_for.min(holds_for);
        Some((ask, known.record.clone(), known.revision))
    }

    /// Whether this is the write that is on its way; then it no longer is. A former session's does not count.
    fn has_ended(&mut self, ask: &Ask) -> bool {
        self.writing.take_if(|number| *number == ask.number).is_some()
    }

    /// The record was written as this node made it.
    pub fn won(&mut self, ask: &Ask, next: SlotVersion, now: Instant, is_over: impl Fn(&str, &Block) -> bool) {
        if !self.has_ended(ask) {
            return;
        }
        let Block { slots, holds_for_ms } = next.record.of(&self.session);
        let holds_for = Duration::from_millis(holds_for_ms);
        if self.granted == 0 && self.used == 0 {
            self.since = now;
        }
        if slots > self.granted || holds_for > self.holds_for {
            (self.wanted, self.used_at, self.held_at) = (None, now, now);
        }
        (self.granted, self.holds_for) = (slots, holds_for);
        (self.is_unclear, self.written_at) = (false, now);
        self.learned(next, is_over);
    }

    /// Another write came first: the record has to be read.
    pub fn lost(&mut self, ask: &Ask) {
        if self.has_ended(ask) {
            self.known = None;
        }
    }

    /// It is not known whether it was written.
    pub fn unclear(&mut self, ask: &Ask) {
        if self.has_ended(ask) {
            (self.is_unclear, self.known) = (true, None);
        }
    }

    /// The answer of a write that is on its way will not be read.
    pub fn write_is_unclear(&mut self) {
        if self.writing.take().is_some() {
            (self.is_unclear, self.known) = (true, None);
        }
    }

    /// What is known of the record may be old: it is read again before anything is written.
    pub fn forget_record(&mut self) {
        self.known = None;
    }

    /// A version of the record is known.
    pub fn learned(&mut self, version: SlotVersion, is_over: impl Fn(&str, &Block) -> bool) {
        let SlotVersion { record, revision } = version;
        if self.known.as_ref().is_some_and(|known| known.revision > revision) {
            return;
        }
        let own = record.of(&self.session).slots;
        // A write that was late has found no record any more, as the one before was forgotten, and was taken for the
        // first: no node would give back what it lists. Written once more, the record lists what the node has.
        self.is_unclear |= self.writing.is_none() && own > self.granted;
        let taken = record.taken_beside(&self.session, &is_over).saturating_add(own);
        let free = self.max.saturating_sub(taken);
        let has_over = record.blocks().any(|(session, block)| *session != self.session && is_over(session, block));
        self.known = Some(KnownRecord { record, revision, free, has_over });
    }

    /// Counts again what is free: sessions have ended.
    pub fn count_again(&mut self, is_over: impl Fn(&str, &Block) -> bool) {
        if let Some(KnownRecord { record, revision, .. }) = self.known.take() {
            self.learned(SlotVersion { record, revision }, is_over);
        }
    }

    /// Whether the record lists slots of that session.
    pub fn lists(&self, session: &str) -> bool {
        self.known.as_ref().is_some_and(|known| known.record.of(session).slots > 0)
    }

    /// Whether the record lists slots that are over: it is written without them.
    fn lists_over(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.has_over)
    }

    /// The sessions whose slots this node waits for.
    pub fn waits_for(&self, now: Instant) -> impl Iterator<Item = &SmolStr> {
        let waits = self.wants(now) && self.used >= self.granted;
        let sessions = self.known.iter().filter(move |_| waits).flat_map(|known| known.record.sessions());
        sessions.filter(|session| **session != self.session)
    }

    /// The node has another session: none of the slots of the former one is its own any more.
    pub fn begin_again(&mut self, session: SmolStr, now: Instant) {
        // Its record is read and written once more: it may list the former session, which is over soon.
        let is_unclear = self.is_unclear || self.granted > 0 || self.used > 0 || self.writing.is_some();
        let (wanted, next, leaves) = (self.wanted, self.next, self.leaves);
        *self = Self { is_unclear, wanted, next, leaves, ..Self::new(session, self.max, now) };
    }

    /// Whether nothing here is worth remembering.
    pub fn is_over(&self, now: Instant) -> bool {
        let is_quiet = now.saturating_duration_since(self.used_at) >= 2 * IDLE && !self.wants(now);
        let has_none = self.granted == 0 && self.used == 0;
        is_quiet && has_none && self.writing.is_none() && !self.is_unclear && !self.lists_over()
    }
}
