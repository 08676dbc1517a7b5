//! A model of JetStream, as far as the protocol depends on it, with the faults that were measured on the real server.
//!
//! It promises: every answered write is stored, in order; a compare-and-set knows the record's revision. It does not
//! promise more: it takes an ack, NAK or renewal from any client, for any delivery, and however late; a schedule fires
//! at least once; message ids are remembered for a while; a killed server forgets late acks and message ids, and
//! delivers again too soon, with any delivery count. A leader that was cut off answers reads for a while from its last
//! state.

use std::rc::Rc;

use longshore_chance::Chance;
use longshore_domain::{Run, Timestamp};

use crate::tests::simulation::plan::OF_A_KEY;

/// How long the server waits for an ack: the lease and some time for the way there.
pub(crate) const ACK_WAIT: i64 = crate::tests::simulation::world::LEASE + 60;

/// No time at which anything happens.
pub(crate) const NEVER: i64 = i64::MAX;

/// Identifies a record: one per run id.
pub(crate) type Key = usize;

/// Keys of ids with the time at which their job was stored begin here; the plan is added.
pub(crate) const TIMED: Key = 32;
/// Keys of derived ids begin here; the sequence is added.
pub(crate) const DERIVED: Key = 64;

/// The wait that a message or a schedule speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) plan: usize,
    pub(crate) round: u32,
    pub(crate) attempt: u32,
    pub(crate) deferrals: u32,
    /// It is of the run under the id with the time.
    pub(crate) timed: bool,
}

/// The id by which the server knows a publish for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageId {
    Submitted(u64),
    Replayed(u64, u32),
    /// The fingerprint of its text.
    Moved(u64),
    Letter(usize, u32, Timestamp),
    /// Of lines for the event log.
    Batch(u128),
}

/// A job in its lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) sequence: u64,
    pub(crate) at: i64,
    /// The wait that it speaks for.
    pub(crate) place: Place,
    /// The run whose job it is; if the message names another's run, the forger's.
    pub(crate) plan: usize,
    pub(crate) moved: bool,
    /// It is in the lane of jobs that were taken back.
    pub(crate) returned: bool,
    /// Proves that a node wrote it; 0 for a client's own.
    pub(crate) seal: u64,
    /// When it was published, or fell due.
    pub(crate) since: i64,
    pub(crate) delivered: u64,
    /// Until then a node holds it.
    pub(crate) until: i64,
}

/// A job whose time has come, on its way to its lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    pub(crate) sequence: u64,
    pub(crate) schedule: Schedule,
    pub(crate) until: i64,
}

/// A job that waits for its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// Given by the server.
    pub(crate) sequence: u64,
    pub(crate) place: Place,
    pub(crate) seal: u64,
    pub(crate) at: i64,
    /// When the server fires it: later than it should, or never, if it fell due while its stream had no leader.
    pub(crate) fires_at: i64,
}

impl Schedule {
    /// Waits until `at`.
    pub(crate) fn new(place: Place, seal: u64, at: i64) -> Self {
        Self { sequence: 0, place, seal, at, fires_at: at }
    }
}

/// The owner of an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) plan: usize,
    pub(crate) published: bool,
    pub(crate) taken_from: TakenFrom,
    /// Its run has the id with the time.
    pub(crate) timed: bool,
    pub(crate) revision: u64,
}

/// Runs that had a key before, and are to end as duplicates.
pub(crate) type TakenFrom = [Option<usize>; OF_A_KEY];

/// A reply to a delivery, which the server takes from any client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    Ack,
    /// The message comes again after this many milliseconds.
    HandBack(i64),
    Renew,
}

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) revision: u64,
    pub(crate) plan: usize,
    pub(crate) run: Rc<Run>,
}

#[derive(Debug, Clone)]
pub(crate) struct DeadLetter {
    pub(crate) sequence: u64,
    pub(crate) plan: usize,
    pub(crate) round: u32,
    /// When its run was first published.
    pub(crate) origin: Timestamp,
    /// The run as it died.
    pub(crate) run: Rc<Run>,
}

/// A write of a record, perhaps one that its sender has given up on and that arrives all the same.
#[derive(Debug)]
pub(crate) struct Late {
    pub(crate) at: i64,
    pub(crate) plan: usize,
    pub(crate) key: Key,
    pub(crate) expected: u64,
    pub(crate) run: Rc<Run>,
}

#[derive(Debug, Default)]
pub(crate) struct Server {
    sequence: u64,
    lane_sequence: u64,
    /// The lane was made anew at some time.
    pub(crate) made_anew: bool,
    pub(crate) lane: Vec<Message>,
    acked: Vec<Message>,
    /// Replies to deliveries; they arrive later than they should.
    pub(crate) late_words: Vec<(i64, u64, Word)>,
    /// Message ids, and whether they are still known.
    ids: Vec<(MessageId, bool)>,
    /// Every version of each record, and since when it is stored.
    records: Vec<Vec<(i64, Option<Stored>)>>,
    claims: Vec<(usize, Claim)>,
    revision: u64,
    pub(crate) late: Vec<Late>,
    /// Runs that are being cancelled.
    pub(crate) cancel_notes: Vec<(usize, i64)>,
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) due: Vec<Due>,
    due_acked: Vec<Due>,
    /// Parked jobs.
    pub(crate) parked: Vec<Due>,
    pub(crate) letters: Vec<DeadLetter>,
}

impl Server {
    /// Whether `id` is known to have been used before.
    pub(crate) fn is_known(&mut self, id: MessageId, chance: &Chance) -> bool {
        if let Some((_, known)) = self.ids.iter().find(|(other, _)| *other == id) {
            return *known && !chance.hits(1_000);
        }
        self.ids.push((id, true));
        false
    }

    /// Whether `id` was used before, also if that is forgotten.
    pub(crate) fn has_known(&self, id: MessageId) -> bool {
        self.ids.iter().any(|(other, _)| *other == id)
    }

    /// Stores a job; `None` if its id was known.
    pub(crate) fn publish(&mut self, message: Message, id: Option<MessageId>, chance: &Chance) -> Option<u64> {
        if id.is_some_and(|id| self.is_known(id, chance)) {
            return None;
        }
        self.lane_sequence += 1;
        self.lane.push(Message { sequence: self.lane_sequence, ..message });
        Some(self.lane_sequence)
    }

    /// Takes a reply about a message, from any client.
    pub(crate) fn hear(&mut self, sequence: u64, word: Word, now: i64) {
        let Some(at) = self.lane.iter().position(|message| message.sequence == sequence) else { return };
        match word {
            Word::Ack => {
                let message = self.lane.remove(at);
                self.acked.push(message);
            }
            Word::HandBack(wait) => self.lane[at].until = now + wait,
            Word::Renew => self.lane[at].until = now + ACK_WAIT,
        }
    }

    /// Deletes a job from the lane, whether or not a node holds it: it never comes again, and an ack of it does
    /// nothing.
    pub(crate) fn take_out(&mut self, is_it: impl Fn(&Message) -> bool) -> bool {
        let at = self.lane.iter().position(is_it);
        at.map(|at| self.lane.remove(at)).is_some()
    }

    pub(crate) fn read(&self, key: Key) -> Option<Stored> {
        self.records.get(key).and_then(|versions| versions.last()?.1.clone())
    }

    /// The record as it was stored at `at`.
    pub(crate) fn read_as_of(&self, key: Key, at: i64) -> Option<Stored> {
        let versions = self.records.get(key)?;
        versions.iter().rev().find(|(since, _)| *since <= at).and_then(|(_, stored)| stored.clone())
    }

    /// Writes the record if it still has the revision `expected`; 0 is none.
    pub(crate) fn compare_and_set(&mut self, late: Late) -> Option<u64> {
        let Late { at, plan, key, expected, run } = late;
        if self.read(key).map_or(0, |stored| stored.revision) != expected {
            return None;
        }
        self.revision += 1;
        let revision = self.revision;
        self.put(key, Some(Stored { revision, plan, run }), at);
        Some(revision)
    }

    fn put(&mut self, key: Key, stored: Option<Stored>, now: i64) {
        if self.records.len() <= key {
            self.records.resize_with(key + 1, Vec::new);
        }
        self.records[key].push((now, stored));
    }

    /// Whether a message or a dead letter of the run is left.
    pub(crate) fn has_message_of(&self, plan: usize) -> bool {
        self.has_job_of(plan) || self.letters_of(plan).next().is_some()
    }

    /// Whether a message is left that brings the run's job to a node.
    pub(crate) fn has_job_of(&self, plan: usize) -> bool {
        self.lane.iter().any(|message| message.place.plan == plan)
            || self.due.iter().any(|due| due.schedule.place.plan == plan)
            || self.schedules.iter().any(|schedule| schedule.place.plan == plan)
            || self.parked.iter().any(|parked| parked.schedule.place.plan == plan)
    }

    /// The record has been kept for long enough; by then no message of its run is left that might come again.
    pub(crate) fn expire(&mut self, key: Key, plan: usize, now: i64) {
        self.put(key, None, now);
        self.acked.retain(|message| message.place.plan != plan);
        self.due_acked.retain(|due| due.schedule.place.plan != plan);
    }

    pub(crate) fn claim_of(&self, key: usize) -> Option<Claim> {
        self.claims.iter().find(|(other, _)| *other == key).map(|(_, claim)| *claim)
    }

    /// Writes the claim of a key over that of revision `expected`; 0 is none.
    pub(crate) fn write_claim(
        &mut self,
        key: usize,
        expected: u64,
        (plan, published, timed): (usize, bool, bool),
        taken_from: TakenFrom,
    ) -> Option<u64> {
        if self.claim_of(key).map_or(0, |claim| claim.revision) != expected {
            return None;
        }
        self.revision += 1;
        self.claims.retain(|(other, _)| *other != key);
        self.claims.push((key, Claim { plan, published, taken_from, timed, revision: self.revision }));
        Some(self.revision)
    }

    /// The claim of a key goes away, if it has the revision `expected`.
    pub(crate) fn give_back(&mut self, key: usize, expected: u64) -> Option<u64> {
        if self.claim_of(key).map_or(0, |claim| claim.revision) != expected {
            return None;
        }
        self.claims.retain(|(other, _)| *other != key);
        Some(expected)
    }

    pub(crate) fn take_late(&mut self, now: i64) -> Option<Late> {
        let at = self.late.iter().position(|late| late.at <= now)?;
        Some(self.late.remove(at))
    }

    pub(crate) fn take_late_word(&mut self, now: i64) -> Option<(u64, Word)> {
        let at = self.late_words.iter().position(|(at, ..)| *at <= now)?;
        let (_, sequence, word) = self.late_words.swap_remove(at);
        Some((sequence, word))
    }

    /// One schedule per subject: a later write replaces an earlier one.
    pub(crate) fn schedule(&mut self, schedule: Schedule, same_subject: impl Fn(Place) -> bool) {
        self.schedules.retain(|other| !same_subject(other.place));
        self.sequence += 1;
        self.schedules.push(Schedule { sequence: self.sequence, ..schedule });
    }

    /// Stores due jobs; rarely one of them twice, and rarely one much later or never.
    pub(crate) fn fire(&mut self, now: i64, twice: impl Fn() -> bool, forgotten: impl Fn() -> Option<i64>) {
        let mut at = 0;
        while at < self.schedules.len() {
            let schedule = self.schedules[at];
            if schedule.fires_at > now {
                at += 1;
                continue;
            }
            if let Some(later) =
                Some(schedule).filter(|schedule| schedule.fires_at == schedule.at).and_then(|_| forgotten())
            {
                self.schedules[at].fires_at = later;
                at += 1;
                continue;
            }
            for _ in 0..1 + u32::from(twice()) {
                self.sequence += 1;
                self.due.push(Due { sequence: self.sequence, schedule, until: now });
            }
            self.schedules.remove(at);
        }
    }

    /// When the server next has something to do, when it has a due job for a node, and when a job of either lane.
    pub(crate) fn next(&self) -> (i64, i64, [i64; 2]) {
        let (mut own, mut due, mut lanes) = (NEVER, NEVER, [NEVER; 2]);
        self.late.iter().for_each(|late| own = own.min(late.at));
        self.late_words.iter().for_each(|(at, ..)| own = own.min(*at));
        self.schedules.iter().for_each(|schedule| own = own.min(schedule.fires_at));
        for message in &self.lane {
            let lane = &mut lanes[usize::from(message.returned)];
            *lane = (*lane).min(message.until);
        }
        self.due.iter().for_each(|job| due = due.min(job.until));
        (own, due, lanes)
    }

    /// Stores a parked job.
    pub(crate) fn park(&mut self, schedule: Schedule) {
        self.sequence += 1;
        self.parked.push(Due { sequence: self.sequence, schedule, until: 0 });
    }

    /// Deletes the parked job with this sequence; says whether it was there.
    pub(crate) fn take_parked(&mut self, sequence: u64) -> bool {
        let before = self.parked.len();
        self.parked.retain(|parked| parked.sequence != sequence);
        self.parked.len() < before
    }

    pub(crate) fn put_off(&mut self, sequence: u64, until: i64) {
        if let Some(due) = self.due.iter_mut().find(|due| due.sequence == sequence) {
            due.until = until;
        }
    }

    pub(crate) fn ack_due(&mut self, sequence: u64) {
        if let Some(at) = self.due.iter().position(|due| due.sequence == sequence) {
            let due = self.due.remove(at);
            self.due_acked.push(due);
        }
    }

    pub(crate) fn put_letter(&mut self, plan: usize, run: &Run, chance: &Chance) {
        let (round, origin) = (run.round, run.origin);
        if !self.is_known(MessageId::Letter(plan, round, origin), chance) {
            self.sequence += 1;
            let run = Rc::new(run.clone());
            self.letters.push(DeadLetter { sequence: self.sequence, plan, round, origin, run });
        }
    }

    pub(crate) fn letters_of(&self, plan: usize) -> impl Iterator<Item = &DeadLetter> {
        self.letters.iter().filter(move |letter| letter.plan == plan)
    }

    pub(crate) fn last_of_lane(&self) -> u64 {
        self.lane_sequence
    }

    /// The lane's stream is deleted and created again: its sequences begin at 1 again. It is empty by then.
    pub(crate) fn make_lane_anew(&mut self) {
        self.lane_sequence = 0;
        self.made_anew = true;
        self.acked.clear();
        self.late_words.clear();
    }

    /// Nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.lane.is_empty()
            && self.late_words.is_empty()
            && self.schedules.is_empty()
            && self.due.is_empty()
            && self.parked.is_empty()
            && self.late.is_empty()
    }

    /// Delivers a waiting message of the lanes that were pulled from: any of them, because redeliveries have no order.
    /// Says how many more wait in its lane.
    pub(crate) fn hand_out(
        &mut self,
        now: i64,
        is_pulled: impl Fn(&Message) -> bool,
        chance: &Chance,
    ) -> Option<(Message, u64)> {
        let waits = |message: &Message| message.until <= now && is_pulled(message);
        let count = self.lane.iter().filter(|message| waits(message)).count();
        let nth = chance.below(u32::try_from(count).ok()?) as usize;
        let message = self.lane.iter_mut().filter(|message| waits(message)).nth(nth)?;
        message.delivered += 1;
        message.until = now + ACK_WAIT;
        let message = *message;
        let is_behind = |other: &&Message| other.until <= now && other.returned == message.returned;
        Some((message, self.lane.iter().filter(is_behind).count() as u64))
    }

    pub(crate) fn hand_out_due(&mut self, now: i64) -> Option<Due> {
        let due = self.due.iter_mut().find(|due| due.until <= now)?;
        due.until = now + ACK_WAIT;
        Some(*due)
    }

    /// The server is killed and started again: it may forget late acks, counts and ids, and at once delivers again the
    /// messages that nodes hold, running or not; nothing that was stored is lost.
    pub(crate) fn die(&mut self, now: i64, chance: &Chance) {
        let recent = self.acked.len().saturating_sub(6);
        for message in self.acked.split_off(recent) {
            let forgotten = chance.hits(5_000);
            let to = if forgotten { &mut self.lane } else { &mut self.acked };
            to.push(Message { delivered: 0, until: now, ..message });
        }
        for message in &mut self.lane {
            if chance.hits(5_000) {
                message.delivered = u64::from(chance.below(u32::try_from(message.delivered).unwrap_or(0) + 2));
                message.until = now;
            }
        }
        let recent = self.due_acked.len().saturating_sub(2);
        for due in self.due_acked.split_off(recent) {
            let to = if chance.hits(5_000) { &mut self.due } else { &mut self.due_acked };
            to.push(Due { until: now, ..due });
        }
        for (_, known) in &mut self.ids {
            *known &= chance.hits(7_000);
        }
    }
}
