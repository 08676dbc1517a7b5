//! What a delivery means, given the run's record.
//!
//! The server's acknowledgements fence nothing: a late one of an older delivery counts like a fresh one. So the record
//! decides, by compare-and-set, and this module says what a delivery may try. The rules:
//!
//! * A message speaks for one wait of one attempt, `(round, attempt, deferrals)`: a bare publish for `(1, 1, 0)`, a moved
//!   one for what its headers say, which is what the record said when its schedule was written.
//! * The record names the message that carries the run. Only when *that* message comes again is the carrying-out of a
//!   decision repeated; any other message of the same run is acknowledged unseen.
//! * A run that runs under *this* message has lost its lease: otherwise the server would not have handed the message
//!   out again. The delivery count tells the new delivery from one that lay unread in a frozen node's socket.

use crate::run::Holding;
use crate::{Run, RunState, Timestamp};

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
    /// It came by way of the timekeeper or a replay, not straight from a client.
    pub moved: bool,
    /// Its run id was minted from its sequence.
    pub minted: bool,
}

/// What is to be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Claim this attempt, on the record as it is or on none.
    Begin {
        /// Its round.
        round: u32,
        /// Its number.
        attempt: u32,
    },
    /// The same for an attempt that was handed back under this very message: its node may have died before telling, and
    /// the claim forgets that start, so tell the story on record first.
    BeginAgain {
        /// Its round.
        round: u32,
        /// Its number.
        attempt: u32,
    },
    /// As [`Verdict::Begin`], but what is on record is another run, of a stream that is gone: claim over it, as if it were not there.
    BeginAnew,
    /// The attempt on record lost its lease: settle it so, then carry that out.
    LeaseLost,
    /// What is on record was decided under this very message: carry it out again, all of it.
    CarryOut,
    /// The same for a run that waits, and that another node may still have in hand until its time comes: write the record
    /// again under this delivery first, unchanged; then write its schedule and acknowledge, never keep it in hand.
    TakeOver,
    /// The run was cancelled: tell that, then acknowledge.
    TellEnd,
    /// Another message answers for the run: acknowledge.
    Drop,
    /// This delivery is older than the one that is on record: leave it alone.
    Ignore,
}

/// Judges a delivery by what is on record.
#[must_use]
pub fn on_arrival(found: Option<&Run>, arrival: &Arrival) -> Verdict {
    let Some(run) = found else {
        return Verdict::Begin { round: arrival.round, attempt: arrival.attempt };
    };
    let message = &arrival.holding.message;
    if arrival.minted && !arrival.moved && run.origin != message.at {
        return Verdict::BeginAnew;
    }
    let holder = run.held_by.as_ref().filter(|held| held.message == *message);
    let speaks_for_it =
        (run.round, run.next_attempt(), run.deferrals) == (arrival.round, arrival.attempt, arrival.deferrals);
    match run.state {
        RunState::Running => match holder {
            Some(held) if arrival.holding.delivery <= held.delivery => Verdict::Ignore,
            Some(_) => Verdict::LeaseLost,
            None => Verdict::Drop,
        },
        RunState::Cancelled => Verdict::TellEnd,
        state if state.is_ended() => {
            if holder.is_some() && run.round == arrival.round {
                Verdict::CarryOut
            } else {
                Verdict::Drop
            }
        }
        // It waits. Its own message goes on where it stood: a put-back attempt starts again, a schedule is written again.
        _ => match (&run.held_by, holder) {
            (_, Some(_)) if run.run_at.is_some() => Verdict::TakeOver,
            (_, Some(_)) => Verdict::BeginAgain { round: run.round, attempt: run.next_attempt() },
            (None, None) if speaks_for_it => Verdict::Begin { round: run.round, attempt: run.next_attempt() },
            // Only a run that waits for its time has left its message behind; one that was put back comes with its own.
            (Some(_), None) if speaks_for_it && arrival.moved && run.run_at.is_some() => {
                Verdict::Begin { round: run.round, attempt: run.next_attempt() }
            }
            _ => Verdict::Drop,
        },
    }
}

/// What a repeated submission finds to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The run was noted, but perhaps nobody published its job: publish it again, as one that must claim its run.
    Publish,
    /// The run waits for this time, but perhaps nobody wrote its schedule: where none stands, tell and write it again.
    Schedule(Timestamp),
    /// The run goes its way.
    Nothing,
}

/// Judges a submission that came again by what is on record: whoever noted the run may have died over the next step. As
/// long as no message carries the run, another one does no harm: the first to come claims it, the other is dropped.
#[must_use]
pub fn on_repeat(run: &Run) -> Repeat {
    if run.held_by.is_some() || run.has_started() || run.round != 1 {
        return Repeat::Nothing;
    }
    match (run.state, run.run_at) {
        (RunState::Enqueued, None) => Repeat::Publish,
        (RunState::Scheduled, Some(at)) => Repeat::Schedule(at),
        _ => Repeat::Nothing,
    }
}

/// What a dead letter is by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LetterVerdict {
    /// It stands: to be kept, replayed or discarded. Where no record is left, the one in the letter is replayed.
    Stands,
    /// Its run was replayed, but perhaps nobody published the job: tell, publish, then delete the letter.
    Replayed,
    /// Its run is beyond it: tell the run's end, if it has ended, and delete the letter.
    Stale,
}

/// Judges the letter of round `round` by what is on record. A letter may be written late, by a node that froze before.
#[must_use]
pub fn on_letter(found: Option<&Run>, round: u32) -> LetterVerdict {
    let Some(run) = found else { return LetterVerdict::Stands };
    let unseen = run.state == RunState::Enqueued && !run.has_started() && run.held_by.is_none();
    match run.state {
        RunState::Dead if run.round == round => LetterVerdict::Stands,
        _ if unseen && run.round == round + 1 => LetterVerdict::Replayed,
        _ => LetterVerdict::Stale,
    }
}

/// How a write to the record came out, when its answer was a refusal or none at all and the record was read instead.
#[must_use]
pub fn was_mine(found: Option<&Run>, token: &str) -> bool {
    found.is_some_and(|run| run.token == token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::Backoff;
    use crate::run::{MessageId, RunResult};
    use crate::settlement::{Outcome, Settlement, Terms, settle};
    use crate::{ErrorKind, Failure, Job, JobType, Priority, Queue, RunId, Tenant};

    fn job() -> Job {
        Job {
            tenant: Tenant::default_tenant(),
            queue: Queue::main(),
            priority: Priority::DEFAULT,
            job_type: JobType::parse("t").unwrap(),
            run_id: RunId::parse("main-p5-7").unwrap(),
            options: None,
        }
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn arrival(sequence: u64, delivery: u64, round: u32, attempt: u32, moved: bool) -> Arrival {
        let message = MessageId { stream: "S".into(), sequence, at: at(100) };
        Arrival { holding: Holding { message, delivery }, round, attempt, deferrals: 0, moved, minted: true }
    }

    fn running(by: &Arrival) -> Run {
        let mut run = Run::new(&job(), 3, at(100));
        run.begin(1, &"a".into(), at(200));
        run.held_by = Some(by.holding.clone());
        run
    }

    fn after(mut run: Run, settlement: Settlement) -> Run {
        run.settle(settlement, at(300));
        run
    }

    fn failed(run: Run) -> Run {
        let backoff = Backoff::default();
        let terms = Terms {
            attempt: run.attempt,
            max_attempts: 3,
            backoff: &backoff,
            deadline: None,
            snoozes: 0,
            max_snoozes: 3,
            busy: 0,
            no_handler: None,
            no_handler_grace: std::time::Duration::ZERO,
        };
        let failure = Failure::new(ErrorKind::Retryable, "x");
        let settlement = settle(Outcome::Failed { failure, retry_after: None }, terms, at(300), 0.5);
        after(run, settlement)
    }

    #[test]
    fn the_decision_table() {
        let first = arrival(7, 1, 1, 1, false);
        let again = arrival(7, 2, 1, 1, false);
        let other = arrival(9, 1, 1, 1, false);
        let second = arrival(12, 1, 1, 2, true);
        let begin = |round, attempt| Verdict::Begin { round, attempt };
        let judge = |run: &Run, arrival: &Arrival| on_arrival(Some(run), &Arrival { minted: false, ..arrival.clone() });

        assert_eq!(on_arrival(None, &again), begin(1, 1));

        let run = running(&first);
        assert_eq!(judge(&run, &first), Verdict::Ignore);
        assert_eq!(judge(&run, &again), Verdict::LeaseLost);
        assert_eq!(judge(&run, &other), Verdict::Drop);

        let done = after(running(&first), Settlement::Complete(RunResult::None));
        assert_eq!(judge(&done, &again), Verdict::CarryOut);
        assert_eq!(judge(&done, &other), Verdict::Drop);
        assert_eq!(judge(&done, &second), Verdict::Drop);

        let retrying = failed(running(&first));
        assert_eq!(judge(&retrying, &again), Verdict::TakeOver);
        assert_eq!(judge(&retrying, &second), begin(1, 2));
        assert_eq!(judge(&retrying, &other), Verdict::Drop);

        let released = after(running(&first), Settlement::Release);
        assert_eq!(judge(&released, &again), Verdict::BeginAgain { round: 1, attempt: 1 });
        assert_eq!(judge(&released, &other), Verdict::Drop);

        let snoozed = after(
            running(&first),
            Settlement::Defer {
                at: at(900),
                reason: crate::run::DeferReason::Snoozed,
                put_back: Some(crate::run::PutBack::Snoozed),
            },
        );
        assert_eq!(judge(&snoozed, &again), Verdict::TakeOver);
        let moved = Arrival { deferrals: 1, ..arrival(13, 1, 1, 1, true) };
        assert_eq!(judge(&snoozed, &moved), begin(1, 1));
        assert_eq!(judge(&snoozed, &arrival(11, 2, 1, 1, true)), Verdict::Drop, "of an earlier wait");
        let put_back = after(running(&moved), Settlement::Release);
        assert_eq!(judge(&put_back, &arrival(14, 1, 1, 1, true)), Verdict::Drop, "its own message comes again");

        let cancelled = after(running(&first), Settlement::Cancel);
        assert_eq!(judge(&cancelled, &other), Verdict::TellEnd);

        let submitted = Run::new(&job(), 3, at(100));
        assert_eq!(judge(&submitted, &first), begin(1, 1));
    }

    #[test]
    fn a_repeated_submission_does_what_a_dead_node_could_not() {
        let noted = Run::new(&job(), 3, at(100));
        assert_eq!(on_repeat(&noted), Repeat::Publish);
        let mut scheduled = after(noted, Settlement::Schedule { at: at(900) });
        assert_eq!(on_repeat(&scheduled), Repeat::Schedule(at(900)));
        scheduled.held_by = Some(arrival(7, 1, 1, 1, false).holding);
        assert_eq!(on_repeat(&scheduled), Repeat::Nothing, "a message carries it, and comes again");
        let run = running(&arrival(7, 1, 1, 1, false));
        assert_eq!(on_repeat(&run), Repeat::Nothing);
        let mut dead = after(run, Settlement::Dead { failure: Failure::new(ErrorKind::Permanent, "x") });
        assert_eq!(on_repeat(&dead), Repeat::Nothing);
        dead.replay(at(400));
        assert_eq!(on_repeat(&dead), Repeat::Nothing, "the letter is there until its job is published");
    }

    #[test]
    fn a_letter_stands_until_its_run_is_beyond_it() {
        let failure = Failure::new(ErrorKind::Permanent, "x");
        let mut run = after(running(&arrival(7, 1, 1, 1, false)), Settlement::Dead { failure });
        assert_eq!(on_letter(None, 1), LetterVerdict::Stands);
        assert_eq!(on_letter(Some(&run), 1), LetterVerdict::Stands);
        run.replay(at(400));
        assert_eq!(on_letter(Some(&run), 1), LetterVerdict::Replayed);
        let replayed = arrival(12, 1, 2, 1, true);
        assert_eq!(on_arrival(Some(&run), &replayed), Verdict::Begin { round: 2, attempt: 1 });
        run.begin(1, &"a".into(), at(500));
        run.held_by = Some(replayed.holding.clone());
        assert_eq!(on_letter(Some(&run), 1), LetterVerdict::Stale);
        let mut run = after(run, Settlement::Dead { failure: Failure::new(ErrorKind::Permanent, "x") });
        assert_eq!(on_letter(Some(&run), 2), LetterVerdict::Stands);
        run.discard(at(600));
        assert_eq!(on_letter(Some(&run), 2), LetterVerdict::Stale);
    }

    #[test]
    fn a_sequence_of_a_stream_made_anew_is_another_run() {
        let old = after(running(&arrival(7, 1, 1, 1, false)), Settlement::Complete(RunResult::None));
        let mut new = arrival(7, 1, 1, 1, false);
        new.holding.message.at = at(5_000);
        assert_eq!(on_arrival(Some(&old), &new), Verdict::BeginAnew);
    }

    #[test]
    fn a_put_back_attempt_starts_again_under_its_number() {
        let mut run = after(running(&arrival(7, 1, 1, 1, false)), Settlement::Release);
        run.begin(run.next_attempt(), &"b".into(), at(400));
        assert_eq!((run.attempt, run.attempts.len(), run.attempts[0].start), (1, 1, 2));
    }
}
