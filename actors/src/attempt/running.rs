//! An attempt that is on its way, and where a worker keeps it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use longshore_domain::publication::Published;
use longshore_domain::{Run, SmolStr};

use crate::attempt::assignment::Assignment;
use crate::commit::encode::EncodedEvents;

/// An attempt on its way.
#[derive(Debug)]
pub(crate) struct AttemptState {
    /// The record as it is, or would be if it were written now.
    pub(crate) run: Box<Run>,
    /// The revision that its next write must find.
    pub(crate) expected: u64,
    /// What of the round is published.
    pub(crate) published: Published,
    /// What was published live and is still to be given to the log.
    pub(crate) lines: Option<EncodedEvents>,
    /// A record says that it runs.
    pub(crate) is_stored: bool,
    /// Lines of its handler's progress that the log has not, because it does not know of the start yet.
    pub(crate) progress: Vec<u8>,
    /// The token of a write of this attempt whose answer was lost: what is on record under it is this attempt's.
    pub(crate) unclear: Option<SmolStr>,
}

impl AttemptState {
    /// A course of a run of which so much is published.
    pub(crate) fn new(run: Box<Run>, expected: u64, published: Published, is_stored: bool) -> Self {
        Self { run, expected, published, lines: None, is_stored, progress: Vec::new(), unclear: None }
    }
}

/// What a worker works on. It lies here, not in the worker, so that a worker's death takes nothing with it: whoever
/// finds it here afterwards settles it.
#[derive(Debug)]
pub(crate) struct RunningAttempt {
    pub(crate) assignment: Box<Assignment>,
    pub(crate) attempt_state: AttemptState,
    /// Since when the handler is at work, and when it must be done.
    pub(crate) at_work: Option<(Instant, Instant)>,
}

impl RunningAttempt {
    /// An attempt whose handler was not called yet.
    pub(crate) fn new(assignment: Box<Assignment>, attempt_state: AttemptState) -> Self {
        Self { assignment, attempt_state, at_work: None }
    }
}

/// A worker's place of work.
pub(crate) type CurrentAttempt = Arc<Mutex<Option<RunningAttempt>>>;
