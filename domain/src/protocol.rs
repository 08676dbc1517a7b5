//! Decides what a node does with a delivery, given the run's record.
//!
//! Acknowledgements do not fence: a late one for an older delivery counts like a fresh one. So the record decides, by
//! compare-and-set, and this module says what a delivery may try. The rules:
//!
//! * A message speaks for one wait of one attempt, `(round, attempt, deferrals)`. A bare publish speaks for
//!   `(1, 1, 0)`; a moved message speaks for the values in its headers, which the record had when its schedule was
//!   written.
//! * The run's *seal* proves that a node wrote a message: a random number that is stored in the record and travels only
//!   in a header of such messages. Without the record's seal, nothing that a message says of its run is believed.
//! * The record names the message that carries the run. Only when *that* message comes again does a node carry a
//!   decision out again; it acknowledges any other message of the same run and does nothing else.
//! * A run that runs under *this* message may have lost its lease. The delivery proves nothing: a server that was
//!   killed delivers again too early, and with any delivery count. Time decides, from the holder's last sign of life
//!   ([`lease_is_lost`]).
//! * A read may be stale. If a delivery speaks for a later wait than the record knows, the *record* is stale: the node
//!   acknowledges and deletes nothing after such a read.

use std::cmp::Ordering;
use std::time::Duration;

use smol_str::SmolStr;

use crate::run::{Holding, State, Wait};
use crate::{Run, RunId, Timestamp};

/// A message of a run, just delivered.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Which message, and which delivery of it.
    pub holding: Holding,
    /// The round it speaks for.
    pub round: u32,
    /// The attempt it speaks for.
    pub attempt: u32,
    /// How often its run had been deferred in this round when it was scheduled.
    pub deferrals: u32,
    /// The time for which it waited among the schedules or was parked, if it did.
    pub due_at: Option<Timestamp>,
    /// It came through the timekeeper or a replay, not straight from a client.
    pub moved: bool,
    /// The seal it carries; `None` for a client's own publish.
    pub seal: Option<SmolStr>,
    /// Its run id was derived from its sequence.
    pub has_derived_id: bool,
    /// It was stored longer ago than a read may be stale, so a read now shows everything that led to it. One lease is
    /// taken for that: a leader that is cut off steps down within 20 s, so a shorter lease proves nothing on several
    /// servers.
    pub has_aged: bool,
}

impl Arrival {
    fn position(&self) -> (u32, u32, u32) {
        (self.round, self.attempt, self.deferrals)
    }
}

/// What a node does with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Claim this attempt, over the record as it is or without a record.
    Begin {
        /// Its round.
        round: u32,
        /// Its number.
        attempt: u32,
    },
    /// The same for an attempt that was released under this very message: its node may have died before it published
    /// the events, and the claim removes that start, so publish the record's events first.
    BeginAgain {
        /// Its round.
        round: u32,
        /// Its number.
        attempt: u32,
    },
    /// As [`Verdict::Begin`], but the record belongs to another run, from a stream that is gone, and that run has
    /// ended: claim over the record as if it were not there.
    BeginAnew,
    /// The id belongs to another run, from a stream that is gone, and that run has not ended: this job runs under
    /// another id.
    Occupied,
    /// An attempt runs under this message: [`lease_is_lost`] says whether to settle it as lost.
    HeldElsewhere,
    /// The record's decision was made under this very message: carry it out again, completely.
    CarryOut,
    /// The same for a waiting run that another node may still hold locally until its time comes, or that was
    /// rescheduled to a later time than that of this message: first write the record again, unchanged, under this
    /// delivery; then write its schedule and acknowledge. Never hold it locally.
    TakeOver,
    /// The run was cancelled, or ended as a duplicate before its message came: publish that, then acknowledge.
    PublishEnd,
    /// Another message carries the run: acknowledge this one.
    Drop,
    /// The message speaks for a wait that the record does not know yet, so the read was too early: leave the delivery
    /// alone; it comes again.
    StaleRecord,
    /// The record does not prove what the message says of its run: it counts as a client's, and is invalid. It may be a
    /// node's own that comes once more when another run has its id: an ended run has a dead letter too many then. To
    /// acknowledge such messages would lose the jobs of clients that carry a wrong seal.
    Unproven,
}

/// Judges a delivery by the stored record.
pub fn on_arrival(found: Option<&Run>, arrival: &Arrival) -> Verdict {
    let from_a_node = arrival.moved || arrival.seal.is_some();
    let Some(run) = found else {
        return match from_a_node {
            // The record of a run that waits for its message is kept until that message comes.
            true => unproven(arrival),
            false => Verdict::Begin { round: arrival.round, attempt: arrival.attempt },
        };
    };
    if arrival.has_derived_id && !from_a_node && run.origin != arrival.holding.message.at {
        return if run.state.is_terminal() { Verdict::BeginAnew } else { Verdict::Occupied };
    }
    if from_a_node {
        let is_proven = !run.seal.is_empty() && arrival.seal.as_ref() == Some(&run.seal);
        match (is_proven, is_beyond(arrival, run)) {
            (true, true) => return Verdict::StaleRecord,
            (true, false) => {}
            (false, _) => return unproven(arrival),
        }
    }
    on_own_arrival(run, arrival)
}

/// No record supports a message that claims to be a node's. The read may have asked a leader that does not know that it
/// was cut off, and a node writes the record before the message: a young message is left alone and comes again.
fn unproven(arrival: &Arrival) -> Verdict {
    if arrival.has_aged || arrival.seal.is_none() { Verdict::Unproven } else { Verdict::StaleRecord }
}

/// Whether a message speaks for a wait that the record does not know yet. Waits only move forward: the next round comes
/// after every attempt of this one, a deferral after the start that it took back, and nothing of a round comes after
/// its end.
fn is_beyond(arrival: &Arrival, run: &Run) -> bool {
    let attempt = match &run.state {
        state if state.is_terminal() => return arrival.round > run.round,
        State::Running => run.attempt,
        _ => run.next_attempt(),
    };
    arrival.position() > (run.round, attempt, run.deferrals)
}

/// Judges a message that is known to be the run's.
fn on_own_arrival(run: &Run, arrival: &Arrival) -> Verdict {
    let message = &arrival.holding.message;
    let is_holder = run.held_by.as_ref().is_some_and(|held| held.message == *message);
    let begin = Verdict::Begin { round: run.round, attempt: run.next_attempt() };
    let speaks_for_it = arrival.position() == (run.round, run.next_attempt(), run.deferrals);
    match &run.state {
        State::Running if is_holder => Verdict::HeldElsewhere,
        State::Running => Verdict::Drop,
        // It was cancelled while another message carried it, which comes or has come.
        State::Cancelled { left: None, .. } if run.held_by.is_some() && !is_holder => Verdict::Drop,
        State::Cancelled { .. } => Verdict::PublishEnd,
        // A job of its key ended it while its message was still to come: none had carried it, or it waited outside of
        // its lane. The message of its last wait publishes that: no node may have done so before.
        State::Duplicate { left, .. } if !is_holder && speaks_for_it && (run.held_by.is_none() || left.is_some()) => {
            Verdict::PublishEnd
        }
        state if state.is_terminal() && is_holder && run.round == arrival.round => Verdict::CarryOut,
        state if state.is_terminal() => Verdict::Drop,
        // The run waits. Its own message continues where it stopped: a requeued attempt starts again, a schedule is
        // written again.
        _ if is_holder && run.state.wait().is_some() => Verdict::TakeOver,
        _ if is_holder => Verdict::BeginAgain { round: run.round, attempt: run.next_attempt() },
        _ if !speaks_for_it => Verdict::Drop,
        // The run was rescheduled after its schedule had fired, or the node that did so died before it wrote the new
        // one.
        _ if is_before_its_time(run, arrival) => Verdict::TakeOver,
        _ if run.held_by.is_none() => {
            // `submit` made the record and published its own message, and only that one counts; if `submit` died before
            // that, any other message with this id counts.
            let is_another = run.published && arrival.seal.is_none();
            if is_another { Verdict::Drop } else { begin }
        }
        // Only a run that waits for its time has left its message behind; a released run comes with its own message.
        _ if arrival.moved && run.state.wait().is_some() => begin,
        _ => Verdict::Drop,
    }
}

/// Whether a message of a wait was scheduled for an earlier time than the one for which the run waits now.
fn is_before_its_time(run: &Run, arrival: &Arrival) -> bool {
    matches!((run.state.wait(), arrival.due_at), (Some(Wait::Until(at)), Some(due_at)) if due_at < at)
}

/// What the judging node knows about the node that holds a running attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderStatus {
    /// It says that it holds the job.
    Holds,
    /// It says that it claimed the attempt, took the claim for failed because the answer was lost, and abandons it: the
    /// attempt was never started. It says so once.
    NeverStarted,
    /// The process that held it is gone: another process has its node name, or says that it is not that process.
    Gone,
    /// It does not say that it holds the job; it gave its last sign of life, if any, at this time.
    Silent(Option<Timestamp>),
}

/// Whether the record's running attempt has lost its lease: its holder is gone, or gave no sign of life for one lease.
pub fn lease_is_lost(run: &Run, holder: HolderStatus, now: Timestamp, lease: Duration) -> bool {
    match holder {
        HolderStatus::Holds | HolderStatus::NeverStarted => false,
        HolderStatus::Gone => true,
        HolderStatus::Silent(seen_at) => now.since(last_sign(run, seen_at)) >= lease,
    }
}

/// When the holder of the record's attempt gave its last sign of life, if its node was last seen at `seen_at`. The
/// start of the attempt is such a sign.
pub fn last_sign(run: &Run, seen_at: Option<Timestamp>) -> Timestamp {
    let started_at = run.attempts.last().map(|attempt| attempt.started_at);
    started_at.max(seen_at).unwrap_or(run.origin)
}

/// Whether a run is the one of this very message, by now perhaps in another round: the message holds it, or it began
/// with the message and has its id. `derived` is the id that the message's position in its lane gives; the run may have
/// that with the message's time as well. A replayed run has no message until its new one is taken up.
pub fn is_of(run: &Run, arrival: &Arrival, derived: &RunId) -> bool {
    let message = &arrival.holding.message;
    let has_its_id = arrival.has_derived_id || run.run_id == RunId::derived_at(derived, message.at);
    let is_held_by_it = run.held_by.as_ref().is_some_and(|held| held.message == *message);
    is_held_by_it || (has_its_id && run.origin == message.at)
}

/// What a repeated submission has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The run has a pre-created record, but its job may not have been published: publish it again, under the same
    /// seal.
    Publish,
    /// The run waits for this time, but its schedule may not have been written: if there is none, publish the events
    /// and write it again.
    Schedule(Timestamp),
    /// Nothing: the run needs no help.
    Nothing,
}

/// Judges a repeated submission by the stored record: the node that pre-created the record may have died before the
/// next step. As long as no message carries the run, a second message does no harm: the first to come claims the run,
/// the other is dropped.
pub fn on_repeat(run: &Run) -> Repeat {
    if run.published || run.held_by.is_some() || run.has_started() || run.round != 1 {
        return Repeat::Nothing;
    }
    match run.state {
        State::Enqueued { wait: None } => Repeat::Publish,
        State::Scheduled { at } => Repeat::Schedule(at),
        _ => Repeat::Nothing,
    }
}

/// The present state of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetterVerdict {
    /// It stands: it may be kept, replayed or discarded. If no record is left, a replay uses the record in the dead
    /// letter.
    Stands,
    /// Its run was replayed, but the job may not have been published: publish the events, publish the job, then delete
    /// the dead letter.
    Replayed,
    /// Its run is past it: publish the run's end, if it has ended, and delete the dead letter.
    Stale,
    /// The record was read too early: it does not know yet that the run died. Leave the dead letter alone.
    StaleRecord,
    /// Its id now belongs to another run, from a stream that was created again: it can be discarded, but not replayed.
    OtherRun,
}

/// Judges the dead letter of round `round`, of the run that was first published at `origin`, by the stored record. A
/// node that was frozen may write a dead letter late.
pub fn on_dead_letter(found: Option<&Run>, round: u32, origin: Timestamp) -> DeadLetterVerdict {
    let Some(run) = found else { return DeadLetterVerdict::Stands };
    match run.origin.cmp(&origin) {
        Ordering::Less => return DeadLetterVerdict::StaleRecord,
        Ordering::Equal => {}
        Ordering::Greater => return DeadLetterVerdict::OtherRun,
    }
    match &run.state {
        // A dead letter is only written once its round has ended dead.
        _ if run.round < round => DeadLetterVerdict::StaleRecord,
        State::Dead { .. } if run.round == round => DeadLetterVerdict::Stands,
        State::Discarded { .. } if run.round == round => DeadLetterVerdict::Stale,
        _ if run.round == round => DeadLetterVerdict::StaleRecord,
        _ if run.is_unseen() && run.round == round + 1 => DeadLetterVerdict::Replayed,
        _ => DeadLetterVerdict::Stale,
    }
}

/// Whether the write with `token` succeeded, if its answer was a refusal or was lost and the record was read instead.
pub fn was_mine(found: Option<&Run>, token: &str) -> bool {
    found.is_some_and(|run| run.token == token)
}

#[cfg(test)]
mod tests;
