//! The headers that only nodes write on a job: which round and attempt it is about, and the proof of it.

use longshore_domain::run::DeferReason;
use longshore_domain::{SmolStr, Timestamp};

use super::options::PREFIX;
use super::value::{ATTEMPTS_MAX, TAG_MAX, number, text};
use super::{HeaderError, names};

/// Why a header that a client may not write is refused.
pub(super) const RESERVED: &str = "is reserved: only nodes write it. Of the headers that a handler was sent, a follow-up job may \
                        carry on Content-Type, traceparent, tracestate and the user's own, none of Longshore's";

/// What a node wrote on a job that it moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// The round that it is about.
    pub round: u32,
    /// The attempt that it is about.
    pub attempt: u32,
    /// Which wait of that attempt it is about.
    pub deferrals: u32,
    /// When it fell due; its rank counts from there.
    pub due_at: Option<Timestamp>,
    /// Why it had to wait, if that was published as a deferral.
    pub deferred_for: Option<DeferReason>,
    /// Its place in the order of its concurrency key, if its type is `ordered`.
    pub place: Option<u64>,
    /// How many bytes its payload had, if that had to be left out.
    pub left_out: Option<u64>,
}

/// The headers that only nodes write on a job.
const NAMES: [&str; 8] = [
    names::ROUND,
    names::ATTEMPT,
    names::DEFERRALS,
    names::DEFERRED_FOR,
    names::DUE_AT,
    names::PLACE,
    names::LEFT_OUT,
    names::SEAL,
];

/// What those headers say, as far as they are read.
#[derive(Default)]
pub(super) struct ByNode {
    first: Option<&'static str>,
    /// Whether one of them is about [`Moved`]; its round and attempt are 0 until they are read.
    is_moved: bool,
    moved: Moved,
    pub(super) seal: Option<SmolStr>,
}

impl ByNode {
    /// Reads a header if it is one of these; returns whether it is.
    pub(super) fn read(&mut self, short: &str, value: &str) -> Result<bool, String> {
        let no_number = |_| RESERVED.to_owned();
        let moved = &mut self.moved;
        match short {
            "round" => moved.round = number(value, u32::MAX)?,
            "attempt" => moved.attempt = number(value, ATTEMPTS_MAX)?,
            "deferrals" => moved.deferrals = value.parse().map_err(no_number)?,
            "deferred-for" => {
                moved.deferred_for = Some(DeferReason::parse(value).ok_or_else(|| RESERVED.to_owned())?);
            }
            "due-at" => moved.due_at = Some(Timestamp::from_millis(value.parse().map_err(no_number)?)),
            "place" => moved.place = Some(value.parse().map_err(no_number)?),
            "payload-left-out" => moved.left_out = Some(value.parse().map_err(no_number)?),
            "seal" => self.seal = Some(SmolStr::from(text(value, TAG_MAX)?)),
            _ => return Ok(false),
        }
        self.is_moved |= short != "seal";
        let is_it = |name: &&str| name[PREFIX.len()..].eq_ignore_ascii_case(short);
        self.first = self.first.or_else(|| NAMES.into_iter().find(is_it));
        Ok(true)
    }

    /// All or nothing: the headers that a node wrote on a job are complete, and proven by a seal.
    pub(super) fn checked(self, has_run_id: bool) -> Result<(Option<Moved>, Option<SmolStr>), HeaderError> {
        let Self { first: Some(first), is_moved, moved, seal } = self else { return Ok((None, None)) };
        let is_complete = !is_moved || moved.round > 0 && moved.attempt > 0;
        if !is_complete || seal.is_none() || !has_run_id {
            return Err(HeaderError { header: first.to_owned(), reason: RESERVED.to_owned() });
        }
        Ok((is_moved.then_some(moved), seal))
    }
}
