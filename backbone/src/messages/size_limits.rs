//! Size limits of jobs, so that every later form of a job fits into one message of the server.
//!
//! A job grows on its way: its schedule and the move into a lane add headers, its dead letter adds its record. The
//! server limits a message, headers included. A job that cannot be written any more would be stuck for ever, so there
//! is a margin at each step, the largest where a client can still get an error.

/// Margin of what `submit` accepts: the headers that it writes from the request's fields come on top.
const OF_SUBMIT: usize = 16 * 1024;
/// Margin of a job that is taken from its lane: a moved job has a few headers more.
const OF_ARRIVAL: usize = 10 * 1024;
/// Margin of a message in a lane: a dead letter has its record beside it, shortened if need be
/// (`crate::runs::dead_letters`).
const OF_LANE: usize = 8 * 1024;

/// Maximum bytes of payload and headers in a submission.
pub(crate) fn in_submit(max_payload: usize) -> usize {
    max_payload.saturating_sub(OF_SUBMIT)
}

/// Maximum bytes of a job as a client published it; a larger one can be read, but not published again.
pub(crate) fn on_arrival(max_payload: usize) -> usize {
    max_payload.saturating_sub(OF_ARRIVAL)
}

/// Maximum bytes of a run record: three quarters, so that an answer of the API can hold it and more around it.
pub(crate) fn in_record(max_payload: usize) -> usize {
    max_payload - max_payload / 4
}

/// Maximum bytes of any message in a lane.
pub(crate) fn in_lane(max_payload: usize) -> usize {
    max_payload.saturating_sub(OF_LANE)
}
