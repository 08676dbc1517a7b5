//! How large a job may be, so that everything that may become of it has room in one message of the server.
//!
//! A job grows on its way: its schedule and the move into a lane add headers, its dead letter adds its record. The server
//! bounds a message, headers and all; what cannot be written any more would be wedged for ever, so there is a margin at
//! each step, the largest where a client can still be told.

/// Kept free of what `submit` takes: the headers that it writes from the request's fields come on top.
const OF_SUBMIT: usize = 16 * 1024;
/// Kept free of a job that is taken up from its lane: a moved one has a few headers more.
const OF_ARRIVAL: usize = 10 * 1024;
/// Kept free by a lane: its dead letter has its record beside it, shortened if need be (`crate::dead_letters`).
const OF_LANE: usize = 8 * 1024;

/// Most bytes of payload and headers in a submission.
pub(crate) fn in_submit(max_payload: usize) -> usize {
    max_payload.saturating_sub(OF_SUBMIT)
}

/// Most bytes of a job as a client published it; a larger one can be read, but not be carried on.
pub(crate) fn on_arrival(max_payload: usize) -> usize {
    max_payload.saturating_sub(OF_ARRIVAL)
}

/// Most bytes of a run record: three quarters, so that an answer of the API can show it with something around it.
pub(crate) fn in_record(max_payload: usize) -> usize {
    max_payload - max_payload / 4
}

/// Most bytes of any message in a lane.
pub(crate) fn in_lane(max_payload: usize) -> usize {
    max_payload.saturating_sub(OF_LANE)
}
