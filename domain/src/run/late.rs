//! Attempts that end later than their handlers reply.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::{DeferReason, Detached, Failure, Run, RunResult, State, Wait, whole_millis};
use crate::outcome::Outcome;
use crate::{DurationText, ErrorKind, Timestamp};

/// How an attempt goes on whose handler has replied that it will end later.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Late {
    /// Proves that a caller knows the attempt.
    pub token: SmolStr,
    /// How long it may take from its handler's reply, and from each report of its progress, in milliseconds.
    pub lasts_ms: u64,
    /// When the whole run must have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// How it ended; `None`: it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<LateEnd>,
}

impl Late {
    /// An attempt that may take so long from each of its signs.
    pub(crate) fn new(token: SmolStr, lasts: Duration, deadline: Option<Timestamp>) -> Self {
        Self { token, lasts_ms: whole_millis(lasts), deadline, end: None }
    }

    /// Until when it may take after a sign of it.
    fn until(&self, sign: Timestamp) -> Timestamp {
        let at = sign.plus(Duration::from_millis(self.lasts_ms));
        self.deadline.map_or(at, |deadline| at.min(deadline.max(sign)))
    }
}

/// How it ended. What it ended with is here until a node settles the attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LateEnd {
    /// It succeeded, with this result.
    Completed(Option<Box<RawValue>>),
    /// It failed.
    Failed {
        /// Why; `None` once the attempt is settled.
        failure: Option<Failure>,
        /// The next attempt starts no sooner than after this, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// It did not end in time.
    Over,
}

/// What became of a call about an attempt that ends late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLate {
    /// The attempt waits for it.
    Awaited,
    /// The same end was noted before.
    Repeated,
    /// No attempt of the run ends late just now; one that runs may do so soon.
    NotYet,
    /// The token is not that of its attempt.
    Foreign,
    /// The attempt, or the run, is over.
    Over,
}

impl Run {
    /// The running attempt goes on elsewhere, and its job waits until it ends or its time is over.
    pub(super) fn detach(&mut self, late: Late, now: Timestamp) {
        let at = late.until(now);
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.detached = Some(Box::new(Detached { at: now, until: at }));
        }
        self.late = Some(Box::new(late));
        self.wait_until(at, DeferReason::Detached, false, now);
    }

    /// Whether its last attempt goes on elsewhere, and its job waits for the end.
    pub fn is_detached(&self) -> bool {
        let waits = matches!(self.state, State::Enqueued { wait: Some(Wait::Until(_)) });
        waits && self.late.is_some() && self.attempts.last().is_some_and(|last| last.ended_at.is_none())
    }

    /// Whether that attempt has ended, and its job is about to come, so that a node settles it.
    pub fn ends_late(&self) -> bool {
        self.is_detached() && self.late.as_ref().is_some_and(|late| late.end.is_some())
    }

    /// Judges a call that names `token`, and says how the attempt has ended, or that it goes on.
    pub fn on_late(&self, token: &str, end: Option<&LateEnd>) -> OnLate {
        let ours = self.late.as_ref().filter(|late| late.token == token);
        match ours {
            Some(late) => match (&late.end, end) {
                (None, _) if self.is_detached() => OnLate::Awaited,
                (Some(LateEnd::Completed(_)), Some(LateEnd::Completed(_)))
                | (Some(LateEnd::Failed { .. }), Some(LateEnd::Failed { .. })) => OnLate::Repeated,
                _ => OnLate::Over,
            },
            None if self.state.is_terminal() => OnLate::Over,
            None if self.is_detached() => OnLate::Foreign,
            None => OnLate::NotYet,
        }
    }

    /// The attempt that went on elsewhere has ended so: its job is due, and a node settles it.
    pub fn note_late_end(&mut self, end: LateEnd, now: Timestamp) {
        if let Some(late) = &mut self.late {
            late.end = Some(end);
        }
        self.state = State::Enqueued { wait: Some(Wait::Until(now)) };
    }

    /// The attempt that goes on elsewhere has given a sign: its time counts anew. Returns until when.
    pub fn note_late_progress(&mut self, progress: Option<Box<RawValue>>, now: Timestamp) -> Timestamp {
        self.progress = progress.or_else(|| self.progress.take());
        let at = self.late.as_ref().map_or(now, |late| late.until(now));
        self.state = State::Enqueued { wait: Some(Wait::Until(at)) };
        at
    }

    /// The job of an attempt that went on elsewhere has come: the attempt runs again as far as its record goes, and
    /// ends as is returned. `None`: it is no such attempt.
    pub fn end_late(&mut self) -> Option<Outcome> {
        if !self.is_detached() {
            return None;
        }
        let late = self.late.as_mut()?;
        let outcome = match late.end.get_or_insert(LateEnd::Over) {
            LateEnd::Completed(result) => Outcome::Completed(result.take().map_or(RunResult::None, RunResult::Json)),
            LateEnd::Failed { failure, retry_after_ms } => Outcome::Failed {
                failure: failure.take().unwrap_or_else(|| Failure::new(ErrorKind::Retryable, "it failed")),
                retry_after: retry_after_ms.map(Duration::from_millis),
            },
            LateEnd::Over => {
                let message = if late.deadline.is_some_and(|deadline| self.state.run_at() >= Some(deadline)) {
                    "it was detached, and had not ended by its deadline".to_owned()
                } else {
                    let lasts = DurationText(Duration::from_millis(late.lasts_ms));
                    format!("it was detached, and neither ended nor gave a sign for {lasts}")
                };
                Outcome::failed(ErrorKind::Timeout, message)
            }
        };
        self.state = State::Running;
        Some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;
    use crate::events::of_round;
    use crate::settlement::Settlement;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// A run whose first attempt was detached for ten milliseconds.
    fn detached() -> Run {
        let mut run = Run::new(&Job::example(), 2, at(1));
        run.begin(1, &"n".into(), at(2));
        let late = Late::new("t".into(), Duration::from_millis(10), Some(at(50)));
        run.settle(Settlement::Detach(Box::new(late)), at(3));
        run
    }

    fn published(run: &Run) -> Vec<String> {
        of_round(run).iter().map(|event| event.id().split_once('/').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn its_events_are_only_added_at_the_end() {
        let before = ["r/1/0/enqueued", "r/1/1/started", "r/1/1/deferred"];
        let waiting = detached();
        assert_eq!((published(&waiting), waiting.next_attempt()), (before.map(str::to_owned).to_vec(), 1));
        assert_eq!(of_round(&waiting).last().unwrap().run_at(), Some(at(13)));
        let failed = || Some(Failure::new(ErrorKind::Retryable, "x"));
        let ends = [
            (LateEnd::Completed(None), vec!["r/1/1/completed"]),
            (LateEnd::Failed { failure: failed(), retry_after_ms: None }, vec!["r/1/1/failed"]),
        ];
        for (end, more) in ends {
            let mut run = detached();
            run.note_late_end(end, at(5));
            assert_eq!((published(&run), run.state.run_at()), (published(&waiting), Some(at(5))));
            let settlement = match run.end_late().unwrap() {
                Outcome::Completed(result) => Settlement::Complete(result),
                Outcome::Failed { failure, .. } => Settlement::Retry { at: at(9), failure },
                other => panic!("{other:?}"),
            };
            run.settle(settlement, at(6));
            assert_eq!(published(&run), [&before[..], &more].concat());
            assert_eq!(of_round(&run)[2].run_at(), Some(at(13)), "the event stays as it was");
            let took = run.attempts[0].ended_at.map(|ended_at| ended_at.since(run.attempts[0].started_at));
            assert_eq!((run.attempts[0].start, took), (1, Some(Duration::from_millis(4))));
        }
        let mut cancelled = detached();
        cancelled.settle(Settlement::Cancel, at(5));
        assert_eq!(published(&cancelled), [&before[..], &["r/1/1/cancelled"]].concat());
    }

    #[test]
    fn only_who_has_the_token_ends_it_and_only_once() {
        let completed = || LateEnd::Completed(None);
        let failed = LateEnd::Failed { failure: None, retry_after_ms: None };
        let mut run = Run::new(&Job::example(), 2, at(1));
        run.begin(1, &"n".into(), at(2));
        assert_eq!(run.on_late("t", Some(&completed())), OnLate::NotYet, "it still runs");
        let mut run = detached();
        assert_eq!((run.on_late("x", None), run.on_late("t", None)), (OnLate::Foreign, OnLate::Awaited));
        run.note_late_end(completed(), at(5));
        let judged = [run.on_late("t", Some(&completed())), run.on_late("t", Some(&failed)), run.on_late("t", None)];
        assert_eq!(judged, [OnLate::Repeated, OnLate::Over, OnLate::Over], "noted, and not settled yet");
        run.end_late().unwrap();
        run.settle(Settlement::Complete(RunResult::None), at(6));
        assert_eq!((run.on_late("t", Some(&completed())), run.on_late("x", None)), (OnLate::Repeated, OnLate::Over));
        assert!(run.end_late().is_none());
    }

    #[test]
    fn its_time_counts_anew_from_each_sign_up_to_the_deadline() {
        let says = |run: &mut Run| match run.end_late() {
            Some(Outcome::Failed { failure, .. }) => (failure.kind, failure.message),
            other => panic!("{other:?}"),
        };
        let silent = "it was detached, and neither ended nor gave a sign for 10ms";
        assert_eq!(says(&mut detached()), (ErrorKind::Timeout, silent.to_owned()));
        let mut run = detached();
        let signs = [(8, 18), (30, 40), (45, 50), (60, 60)];
        for (now, until) in signs {
            assert_eq!(run.note_late_progress(None, at(now)), at(until));
            assert_eq!(run.state.run_at(), Some(at(until)));
        }
        let cut = "it was detached, and had not ended by its deadline";
        assert_eq!(says(&mut run), (ErrorKind::Timeout, cut.to_owned()));
        assert_eq!(run.on_late("t", None), OnLate::Over);
    }
}
