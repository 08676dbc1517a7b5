//! A running attempt, and where a worker keeps it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use longshore_domain::publication::Published;
use longshore_domain::{Run, SmolStr};
use tokio::sync::oneshot;

use crate::attempt::assignment::Assignment;
use crate::ports::encode::EncodedEvents;
use crate::runtime::Unpoisoned as _;
use crate::runtime::deferred::Deferred;

#[derive(Debug)]
pub(crate) struct AttemptState {
    /// The record as it is, or would be if it were written now.
    pub(crate) run: Box<Run>,
    /// The revision that its next write must find.
    pub(crate) expected: u64,
    /// Which events of the round are published.
    pub(crate) published: Published,
    /// Events that were published live and still have to go into the log.
    pub(crate) lines: Option<EncodedEvents>,
    /// A record says that it runs.
    pub(crate) is_stored: bool,
    /// Lines of its handler's progress that the log lacks, because it does not know of the start yet.
    pub(crate) progress: Vec<u8>,
    /// The token of a write of this attempt whose answer was lost: a record with this token is this attempt's.
    pub(crate) unclear: Option<SmolStr>,
    pub(crate) is_counted: bool,
    /// Why the run was last deferred before this attempt.
    pub(crate) deferred: Option<Deferred>,
}

impl AttemptState {
    /// The state of an attempt of `run`, with the events that are `published` so far.
    pub(crate) fn new(run: Box<Run>, expected: u64, published: Published, is_stored: bool) -> Self {
        let deferred = Deferred::of(&run);
        Self {
            run,
            expected,
            published,
            lines: None,
            is_stored,
            progress: Vec::new(),
            unclear: None,
            is_counted: false,
            deferred,
        }
    }
}

/// The attempt that a worker works on. It is kept here, not in the worker, so that it survives the worker's death and
/// can be settled afterwards.
#[derive(Debug)]
pub(crate) struct RunningAttempt {
    pub(crate) assignment: Box<Assignment>,
    pub(crate) attempt_state: AttemptState,
    /// When the handler was called, and when it must be done; `None`: it was not called yet, or is over.
    pub(crate) at_work: Option<(Instant, Instant)>,
    /// How many lines its handler wrote.
    pub(crate) logged: u32,
    /// By what its handler, if that is a remote one, may end it later.
    pub(crate) token: SmolStr,
    /// Ends it at a step of this name, while faults are set.
    pub(crate) fail_at_step: Option<oneshot::Sender<SmolStr>>,
}

impl RunningAttempt {
    /// An attempt whose handler has not been called yet.
    pub(crate) fn new(assignment: Box<Assignment>, attempt_state: AttemptState) -> Self {
        Self { assignment, attempt_state, at_work: None, logged: 0, token: SmolStr::default(), fail_at_step: None }
    }
}

pub(crate) type CurrentAttempt = Arc<Mutex<Option<RunningAttempt>>>;

/// What `look` finds at the current attempt; `None`: there is none.
pub(super) fn of_current<T>(current: &CurrentAttempt, look: impl FnOnce(&mut RunningAttempt) -> T) -> Option<T> {
    current.lock().unpoisoned().as_mut().map(look)
}
