//! What a round of the sweep takes up of what it reads, and where the next round goes on.
//!
//! Pure: the clock and what was read are arguments. The sweep reads for it, and so does the simulation.

use std::time::Duration;

use longshore_domain::{Run, Timestamp};

use crate::api::stranded::{self, Lost};

/// Pages of 256 messages in a round: a million schedules are read within half an hour.
const PAGES: usize = 20;
/// Bytes of payload in a round.
const BYTES: usize = 16 << 20;
/// Overdue jobs that are moved in a round; the next round goes on where this one stopped.
pub(crate) const MOVES: usize = 2_048;
/// Records that are checked more closely in a round.
pub(crate) const LOOKS: usize = 64;

/// The first sequence of a stream, where each pass through it begins.
pub(crate) const FIRST: u64 = 1;

/// How far a round has read a stream.
#[derive(Debug)]
pub(crate) struct Round {
    /// Where the next page is read, or the next round goes on.
    pub(crate) from: u64,
    pages: usize,
    bytes: usize,
    max: usize,
    is_over: bool,
}

impl Round {
    /// A round that goes on from this sequence, and ends once it has found `max` of what it looks for.
    pub(crate) fn new(from: u64, max: usize) -> Self {
        Self { from, pages: 0, bytes: 0, max, is_over: false }
    }

    /// From where the next page is read; `None`: the round is over.
    pub(crate) fn reads_from(&self) -> Option<u64> {
        (!self.is_over).then_some(self.from)
    }

    /// A page of so many bytes was read, behind which the one from `next` follows; with it, the round has found so
    /// many. Says whether the stream ends there.
    pub(crate) fn has_read(&mut self, bytes: usize, next: Option<u64>, found: usize) -> bool {
        self.pages += 1;
        self.bytes += bytes;
        self.from = next.unwrap_or(FIRST);
        self.is_over = next.is_none() || self.pages >= PAGES || self.bytes > BYTES || found >= self.max;
        next.is_none()
    }
}

/// Whether a schedule that stands for this time should have fired by now, and did not.
pub(crate) fn is_overdue(at: Timestamp, grace: Duration, now: Timestamp) -> bool {
    at < now.minus(grace)
}

/// The runs of open records that may be stranded: those that wait for a time that is over, and those that have been
/// running for longer than an unrenewed lease lasts.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    pub(crate) waiting: Vec<(Run, u64)>,
    pub(crate) running: Vec<(Run, u64)>,
}

impl Suspects {
    /// Adds those of a page of records.
    pub(crate) fn take_in(&mut self, found: Vec<(Run, u64)>, lease: Duration, now: Timestamp) {
        for (run, revision) in found {
            match stranded::suspected(&run, lease, now) {
                Some(Lost::Schedule) => self.waiting.push((run, revision)),
                Some(Lost::Message) => self.running.push((run, revision)),
                None => {}
            }
        }
    }

    /// The sequence of the first that waits and that this round has no time for; `None`: there is none.
    pub(crate) fn next_waiting(&self) -> Option<u64> {
        self.waiting.get(LOOKS).map(|(_, revision)| *revision)
    }

    /// How many there are, of the sort of which there are more.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len().max(self.running.len())
    }
}

#[cfg(test)]
mod tests;
