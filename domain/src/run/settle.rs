//! What a settlement writes into the run. Which settlement it is, [`crate::settlement`] decides.

use super::{EndLog, PutBack, Run, State, Wait};
use crate::settlement::Settlement;
use crate::{ErrorKind, Failure, Timestamp};

impl Run {
    /// Writes down what follows from the running attempt or, if none was started, from the waiting job.
    pub fn settle(&mut self, settlement: Settlement, now: Timestamp) {
        match settlement {
            Settlement::Complete(result) => {
                self.end_attempt(now, None);
                self.error = None;
                self.end(State::Completed { ended_at: now, result });
            }
            Settlement::Retry { at, failure } => {
                self.end_attempt(now, Some(failure.clone()));
                if let Some(attempt) = self.attempts.last_mut() {
                    attempt.retry_at = Some(at);
                }
                self.error = Some(failure);
                self.deferral = None;
                self.state = State::Retrying { wait: Wait::Until(at) };
            }
            Settlement::Dead(failure) => {
                self.end_attempt(now, Some(failure.clone()));
                self.error = Some(failure);
                self.end(State::Dead { ended_at: now });
            }
            Settlement::NotStarted(failure) => {
                if let State::Running = self.state {
                    self.take_back_start(now);
                }
                self.error = Some(failure);
                self.end(State::Dead { ended_at: now });
            }
            Settlement::Defer { at, reason, put_back } => self.defer(at, reason, put_back, now),
            Settlement::Detach(late) => self.detach(*late, now),
            Settlement::Release => {
                self.put_back(PutBack::Released, None, now);
                self.deferral = None;
                self.state = State::Enqueued { wait: None };
            }
            Settlement::Park { since, reason } => self.park(since, reason, now),
            Settlement::Schedule(at) => {
                self.state = State::Scheduled { at };
                self.enqueued_at = None;
            }
            Settlement::Expire => self.end(State::Expired { ended_at: now }),
            Settlement::Cancel => self.cancel(Failure::new(ErrorKind::Cancelled, "the run was cancelled"), now),
            Settlement::MakeWay(failure) => {
                self.error = Some(failure.clone());
                self.cancel(failure, now);
            }
            Settlement::Duplicate(of) => self.end(State::Duplicate { ended_at: now, of, left: None }),
        }
    }

    fn cancel(&mut self, failure: Failure, now: Timestamp) {
        self.end_attempt(now, Some(failure));
        self.end(State::Cancelled { ended_at: now, left: self.state.wait(), end_log: EndLog::default() });
    }
}
