//! What ends the work of an attempt, and how the attempt ends then. Pure: no clock, no handler, no server.
//!
//! The code that waits for a handler says what happened; this says what follows. The lease has the last word: once it
//! is gone, nothing that the handler did counts.

use std::any::Any;
use std::time::Duration;

use longshore_backbone::wire::record;
use longshore_domain::outcome::Outcome;
use longshore_domain::{DurationText, ErrorKind, Failure};

use crate::handlers::handler::{HandlerError, Success};
use crate::runtime::supervision::panic_text;

/// How long a handler that was asked to stop may take to do so before it is dropped.
pub(crate) const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// How the work ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// It ended with this outcome, which is still to be judged.
    Outcome(Outcome),
    /// The lease is gone, or the run went on elsewhere: nothing is sent.
    NotOurs,
}

/// The owner of a run that was begun without a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Us,
    Cancelled,
    Another,
}

/// Something that happens to an attempt while its handler works.
#[derive(Debug)]
pub(crate) enum AttemptEvent {
    Done(Outcome),
    /// Others may have the attempt's slots.
    SlotsLost,
    /// The write of the record that says that the attempt runs was answered, and shows whose run it is.
    Owned(Owner),
    /// The lease-keeper stops the attempt: `released`, as the node ends; else its run is cancelled, or its lease gone.
    Stopped {
        released: bool,
    },
    /// It has worked for as long as it may.
    OutOfTime {
        limit: Duration,
    },
}

/// What becomes of the handler when the attempt ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handler {
    /// It has ended by itself.
    Ended,
    /// It is asked to stop and dropped at once: another attempt may begin.
    Dropped,
    /// It is asked to stop, and has [`STOPS_WITHIN`] for that.
    Stops,
}

/// The work has ended; `None`: as its slots were lost. Cancelled runs are not tried again.
pub(crate) fn done(outcome: Option<Outcome>, is_cancelled: bool) -> AttemptEvent {
    match outcome {
        Some(Outcome::Failed { .. }) if is_cancelled => AttemptEvent::Done(Outcome::Cancelled),
        Some(outcome) => AttemptEvent::Done(outcome),
        None => AttemptEvent::SlotsLost,
    }
}

/// What ends the attempt by this event; `None`: it goes on.
pub(crate) fn by(event: AttemptEvent) -> Option<(End, Handler)> {
    Some(match event {
        AttemptEvent::Done(outcome) => (End::Outcome(outcome), Handler::Ended),
        AttemptEvent::SlotsLost => (End::NotOurs, Handler::Dropped),
        AttemptEvent::Owned(owner) => (end_of(owner)?, Handler::Stops),
        AttemptEvent::Stopped { released: true } => (End::Outcome(Outcome::Released), Handler::Dropped),
        AttemptEvent::Stopped { released: false } => (End::Outcome(Outcome::Cancelled), Handler::Stops),
        AttemptEvent::OutOfTime { limit } => {
            let message = format!("the attempt took longer than its limit of {}", DurationText(whole(limit)));
            (End::Outcome(Outcome::failed(ErrorKind::Timeout, message)), Handler::Stops)
        }
    })
}

/// How an attempt ends whose handler has stopped: `owner` is what a write of its record says that was still under way.
pub(crate) fn at_last(end: End, owner: Owner, is_lease_lost: bool) -> End {
    if is_lease_lost { End::NotOurs } else { end_of(owner).unwrap_or(end) }
}

/// How an attempt ends if its run is no longer ours.
fn end_of(owner: Owner) -> Option<End> {
    match owner {
        Owner::Us => None,
        // The record has its end already; judging it once more publishes and acknowledges it.
        Owner::Cancelled => Some(End::Outcome(Outcome::Cancelled)),
        Owner::Another => Some(End::NotOurs),
    }
}

/// Limits are written in whole milliseconds; rounding hides the time that has passed since.
fn whole(limit: Duration) -> Duration {
    Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).div_ceil(10) * 10)
}

pub(super) fn panicked(panic: &(dyn Any + Send)) -> Outcome {
    Outcome::failed(ErrorKind::Panic, format!("the handler panicked: {}", panic_text(panic)))
}

pub(super) fn outcome_of(ended: Result<Result<Success, HandlerError>, Box<dyn Any + Send>>) -> Outcome {
    let result = match ended {
        Ok(result) => result,
        Err(panic) => return panicked(&*panic),
    };
    match result {
        Ok(Success::Done { result, content_type }) => {
            Outcome::Completed(record::keep(&result, content_type.as_deref()))
        }
        Ok(Success::Snooze(wait)) => Outcome::Snoozed(wait),
        Err(error) => {
            let kind = if error.permanent { ErrorKind::Permanent } else { ErrorKind::Retryable };
            Outcome::Failed { failure: Failure::new(kind, error.message), retry_after: error.retry_after }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use longshore_domain::run::RunResult;

    fn completed() -> Outcome {
        Outcome::Completed(RunResult::None)
    }

    /// An end in a few words.
    fn said(end: &End) -> String {
        match end {
            End::NotOurs => "not ours".to_owned(),
            End::Outcome(Outcome::Failed { failure, .. }) => format!("{:?}: {}", failure.kind, failure.message),
            End::Outcome(outcome) => format!("{outcome:?}"),
        }
    }

    #[test]
    fn what_each_event_means_for_attempt_and_handler() {
        let limit = Duration::from_micros(1_499_300);
        let rows = [
            (AttemptEvent::Done(completed()), "Completed(None)", Handler::Ended),
            (AttemptEvent::SlotsLost, "not ours", Handler::Dropped),
            (AttemptEvent::Stopped { released: true }, "Released", Handler::Dropped),
            (AttemptEvent::Stopped { released: false }, "Cancelled", Handler::Stops),
            (AttemptEvent::Owned(Owner::Cancelled), "Cancelled", Handler::Stops),
            (AttemptEvent::Owned(Owner::Another), "not ours", Handler::Stops),
            (
                AttemptEvent::OutOfTime { limit },
                "Timeout: the attempt took longer than its limit of 1500ms",
                Handler::Stops,
            ),
        ];
        for (event, end, handler) in rows {
            let text = format!("{event:?}");
            let ended = by(event).expect("it ends the attempt");
            assert_eq!((said(&ended.0).as_str(), ended.1), (end, handler), "{text}");
        }
        assert!(by(AttemptEvent::Owned(Owner::Us)).is_none());
    }

    #[test]
    fn the_lease_has_the_last_word_and_the_record_the_one_before() {
        let done = || End::Outcome(completed());
        for (owner, end) in
            [(Owner::Us, "Completed(None)"), (Owner::Cancelled, "Cancelled"), (Owner::Another, "not ours")]
        {
            assert_eq!(said(&at_last(done(), owner, false)), end);
            assert_eq!(said(&at_last(done(), owner, true)), "not ours", "{owner:?}");
        }
    }

    #[test]
    fn a_cancelled_run_is_not_tried_again_as_its_handler_heard_of_it_first() {
        let failed = || Some(Outcome::failed(ErrorKind::Retryable, "stopped"));
        let end = |event: AttemptEvent| format!("{:?}", by(event));
        assert_eq!(end(done(failed(), true)), end(AttemptEvent::Done(Outcome::Cancelled)));
        assert_eq!(end(done(failed(), false)), end(AttemptEvent::Done(failed().unwrap())));
    }
}
