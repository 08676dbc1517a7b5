//! A model of JetStream, as far as the protocol leans on it, with the faults that were measured on the real one.
//!
//! What is promised: what was answered is stored, in order; a compare-and-set knows the record's revision. What is not:
//! an ack, nak or renewal is taken from anybody, whichever delivery it was for; a schedule fires at least once; message
//! ids are remembered for a while; a killed server forgets late acks, delivery counts and message ids.

use std::rc::Rc;

use longshore_domain::Run;

use crate::chance::Chance;

/// How long the server waits for an ack: the lease and some room for the way there.
pub(crate) const ACK_WAIT: i64 = crate::world::LEASE + 60;

/// Which record: one for each run id.
pub(crate) type Key = usize;

/// Keys of minted ids begin here; the sequence is added.
pub(crate) const MINTED: Key = 32;

/// What a message or a schedule speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) plan: usize,
    pub(crate) round: u32,
    pub(crate) attempt: u32,
    pub(crate) deferrals: u32,
}

/// What a publish is known by for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageId {
    Submitted(usize),
    Replayed(usize, u32),
    Moved(Place),
    Letter(usize, u32),
}

/// A job in its lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) sequence: u64,
    pub(crate) at: i64,
    pub(crate) place: Place,
    pub(crate) moved: bool,
    /// The record's revision, where `submit` wrote one.
    pub(crate) revision: Option<u64>,
    /// Published again by an intake that cannot know whether it was before.
    pub(crate) must_claim: bool,
    pub(crate) delivered: u64,
    /// Until then it is in somebody's hand.
    pub(crate) until: i64,
}

/// A job whose time has come, on its way to its lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Due {
    pub(crate) sequence: u64,
    pub(crate) place: Place,
    pub(crate) until: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) revision: u64,
    pub(crate) run: Rc<Run>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct DeadLetter {
    pub(crate) sequence: u64,
    pub(crate) plan: usize,
    pub(crate) round: u32,
}

/// A write that its sender has given up on and that arrives all the same.
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
    pub(crate) lane: Vec<Message>,
    acked: Vec<Message>,
    /// Message ids, and whether they are still known.
    ids: Vec<(MessageId, bool)>,
    /// Runs with a job that was stored again, because its message id was forgotten.
    pub(crate) stored_twice: Vec<usize>,
    records: Vec<Option<Stored>>,
    revision: u64,
    pub(crate) late: Vec<Late>,
    pub(crate) schedules: Vec<(Place, i64)>,
    pub(crate) due: Vec<Due>,
    due_acked: Vec<Due>,
    pub(crate) letters: Vec<DeadLetter>,
}

impl Server {
    /// Whether `id` was used before, and whether that is known.
    fn used(&mut self, id: MessageId, chance: &Chance) -> (bool, bool) {
        if let Some((_, known)) = self.ids.iter().find(|(other, _)| *other == id) {
            return (true, *known && !chance.hits(1_000));
        }
        self.ids.push((id, true));
        (false, false)
    }

    /// Stores a job; `None` where its id was known.
    pub(crate) fn publish(&mut self, message: Message, id: Option<MessageId>, chance: &Chance) -> Option<u64> {
        let (used, known) = id.map_or((false, false), |id| self.used(id, chance));
        if known {
            return None;
        }
        if used {
            self.stored_twice.push(message.place.plan);
        }
        self.lane_sequence += 1;
        self.lane.push(Message { sequence: self.lane_sequence, ..message });
        Some(self.lane_sequence)
    }

    pub(crate) fn ack(&mut self, sequence: u64) {
        if let Some(at) = self.lane.iter().position(|message| message.sequence == sequence) {
            let message = self.lane.remove(at);
            self.acked.push(message);
        }
    }

    /// Deletes a job where it lies, in somebody's hand or not: it never comes again, and an ack of it does nothing.
    pub(crate) fn take_out(&mut self, is_it: impl Fn(&Message) -> bool) {
        if let Some(at) = self.lane.iter().position(is_it) {
            self.lane.remove(at);
        }
    }

    pub(crate) fn hold(&mut self, sequence: u64, until: i64) {
        if let Some(message) = self.lane.iter_mut().find(|message| message.sequence == sequence) {
            message.until = until;
        }
    }

    pub(crate) fn read(&self, key: Key) -> Option<Stored> {
        self.records.get(key).and_then(Clone::clone)
    }

    /// Writes the record if it still has the revision `expected`; 0 is none.
    pub(crate) fn compare_and_set(&mut self, key: Key, expected: u64, run: Rc<Run>) -> Option<u64> {
        if self.records.len() <= key {
            self.records.resize_with(key + 1, || None);
        }
        let slot = &mut self.records[key];
        if slot.as_ref().map_or(0, |stored| stored.revision) != expected {
            return None;
        }
        self.revision += 1;
        *slot = Some(Stored { revision: self.revision, run });
        Some(self.revision)
    }

    pub(crate) fn take_late(&mut self, now: i64) -> Option<Late> {
        let at = self.late.iter().position(|late| late.at <= now)?;
        Some(self.late.remove(at))
    }

    /// One schedule a subject: a later write replaces an earlier one.
    pub(crate) fn schedule(&mut self, place: Place, at: i64, same_subject: impl Fn(Place) -> bool) {
        self.schedules.retain(|(other, _)| !same_subject(*other));
        self.schedules.push((place, at));
    }

    /// Stores due jobs; rarely one of them twice.
    pub(crate) fn fire(&mut self, now: i64, twice: impl Fn() -> bool) {
        let mut at = 0;
        while at < self.schedules.len() {
            let (place, when) = self.schedules[at];
            if when > now {
                at += 1;
                continue;
            }
            for _ in 0..1 + u32::from(twice()) {
                self.sequence += 1;
                self.due.push(Due { sequence: self.sequence, place, until: now });
            }
            self.schedules.remove(at);
        }
    }

    pub(crate) fn ack_due(&mut self, sequence: u64) {
        if let Some(at) = self.due.iter().position(|due| due.sequence == sequence) {
            let due = self.due.remove(at);
            self.due_acked.push(due);
        }
    }

    pub(crate) fn put_letter(&mut self, plan: usize, round: u32, chance: &Chance) {
        let (_, known) = self.used(MessageId::Letter(plan, round), chance);
        if !known {
            self.sequence += 1;
            self.letters.push(DeadLetter { sequence: self.sequence, plan, round });
        }
    }

    pub(crate) fn letters_of(&self, plan: usize) -> impl Iterator<Item = &DeadLetter> {
        self.letters.iter().filter(move |letter| letter.plan == plan)
    }

    pub(crate) fn last_of_lane(&self) -> u64 {
        self.lane_sequence
    }

    /// The lane's stream is deleted and made anew: its sequences begin at 1 again. That is so long after the last fault
    /// that no moved message of a run from before comes again: nothing would tell it from one of the new run's.
    pub(crate) fn make_lane_anew(&mut self) {
        self.lane_sequence = 0;
        self.acked.clear();
        self.due_acked.clear();
    }

    /// Nothing is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.lane.is_empty() && self.schedules.is_empty() && self.due.is_empty() && self.late.is_empty()
    }

    /// Hands a waiting message out: any of them, as several lanes and redeliveries know no order.
    pub(crate) fn hand_out(&mut self, now: i64, chance: &Chance) -> Option<Message> {
        let waits = |message: &Message| message.until <= now;
        let count = self.lane.iter().filter(|message| waits(message)).count();
        let nth = chance.below(u32::try_from(count).ok()?) as usize;
        let message = self.lane.iter_mut().filter(|message| waits(message)).nth(nth)?;
        message.delivered += 1;
        message.until = now + ACK_WAIT;
        Some(*message)
    }

    pub(crate) fn hand_out_due(&mut self, now: i64) -> Option<Due> {
        let due = self.due.iter_mut().find(|due| due.until <= now)?;
        due.until = now + ACK_WAIT;
        Some(*due)
    }

    /// Killed and started again: late acks, counts and ids may be forgotten, nothing that was stored is.
    pub(crate) fn die(&mut self, now: i64, chance: &Chance) {
        let recent = self.acked.len().saturating_sub(6);
        for message in self.acked.split_off(recent) {
            let forgotten = chance.hits(5_000);
            let to = if forgotten { &mut self.lane } else { &mut self.acked };
            to.push(Message { delivered: 0, until: now, ..message });
        }
        for message in &mut self.lane {
            if chance.hits(5_000) {
                message.delivered = u64::from(chance.below(u32::try_from(message.delivered).unwrap_or(0) + 1));
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
