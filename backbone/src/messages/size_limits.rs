//! Size limits of jobs, so that every later form of a job fits into one message of the server.
//!
//! A job grows on its way: its schedule and the move into a lane add headers, its dead letter adds its record. The
//! server limits a message, headers included. A job that cannot be written any more would be stuck for ever, so there
//! is a margin at each step, the largest where a client can still get an error.

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::wire::header::{names, size_of};

/// Margin of what `submit` accepts: the headers that it writes from the request's fields come on top.
pub(crate) const OF_SUBMIT: usize = 16 * 1024;
/// Margin of a job that is taken from its lane: a moved job has a few headers more.
pub(crate) const OF_ARRIVAL: usize = 10 * 1024;
/// Margin of a message in a lane: a dead letter has its record beside it, shortened if need be
/// (`crate::runs::dead_letters`).
const OF_LANE: usize = 8 * 1024;

/// A job's payload, as far as the server takes it beside these headers: it may take less than when the job came. If it
/// does not, the payload is left out, and the headers say how many bytes it had: a node that gets the job ends it.
pub(crate) fn fitting(headers: &mut HeaderMap, payload: Bytes, max_payload: usize) -> Bytes {
    if size_of(headers) + payload.len() <= in_lane(max_payload) {
        return payload;
    }
    headers.insert(names::LEFT_OUT, payload.len().to_string());
    Bytes::new()
}

/// Maximum bytes of any message in a lane.
pub(crate) fn in_lane(max_payload: usize) -> usize {
    max_payload.saturating_sub(OF_LANE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_takes_no_more_is_left_out_and_its_size_said() {
        let fits = |bytes: usize, max| {
            let mut headers = HeaderMap::new();
            headers.insert("a", "b");
            let left = fitting(&mut headers, Bytes::from(vec![0; bytes]), max);
            (left.len(), headers.get(names::LEFT_OUT).map(|said| said.as_str().to_owned()))
        };
        assert_eq!(fits(1_200_000, 8 << 20), (1_200_000, None));
        assert_eq!(fits(1_200_000, 1 << 20), (0, Some("1200000".to_owned())));
        let most = (1 << 20) - OF_ARRIVAL;
        assert_eq!(fits(most, 1 << 20), (most, None), "what may come can be carried on");
    }
}
