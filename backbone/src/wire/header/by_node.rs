//! The headers that only nodes write on a job: which round and attempt it is about, and the proof of it.

use longshore_domain::run::DeferReason;
use longshore_domain::{SmolStr, Timestamp};

use super::error::HeaderError;
use super::names;
use super::value::{ATTEMPTS_MAX, TAG_MAX, number, text};

/// Why a header that a client may not write is refused.
pub(super) const RESERVED: &str = "is reserved: only nodes write it. Of the headers that a handler was sent, a follow-up job may \
                        carry on Content-Type, traceparent, tracestate and the user's own, none of Longshore's";

/// What a node wrote on a job that it moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Default)]
pub(super) struct ByNode {
    first: Option<&'static str>,
    round: Option<u32>,
    attempt: Option<u32>,
    deferrals: Option<u32>,
    due_at: Option<Timestamp>,
    deferred_for: Option<DeferReason>,
    place: Option<u64>,
    left_out: Option<u64>,
    pub(super) seal: Option<SmolStr>,
}

impl ByNode {
    /// Reads a header if it is one of these; returns whether it is.
    pub(super) fn read(&mut self, short: &str, value: &str) -> Result<bool, String> {
        let no_number = |_| RESERVED.to_owned();
        let name = match short {
            "round" => {
                self.round = Some(number(value, u32::MAX)?);
                names::ROUND
            }
            "attempt" => {
                self.attempt = Some(number(value, ATTEMPTS_MAX)?);
                names::ATTEMPT
            }
            "deferrals" => {
                self.deferrals = Some(value.parse().map_err(no_number)?);
                names::DEFERRALS
            }
            "deferred-for" => {
                self.deferred_for = Some(DeferReason::parse(value).ok_or_else(|| RESERVED.to_owned())?);
                names::DEFERRED_FOR
            }
            "due-at" => {
                self.due_at = Some(Timestamp::from_millis(value.parse().map_err(no_number)?));
                names::DUE_AT
            }
            "place" => {
                self.place = Some(value.parse().map_err(no_number)?);
                names::PLACE
            }
            "payload-left-out" => {
                self.left_out = Some(value.parse().map_err(no_number)?);
                names::LEFT_OUT
            }
            "seal" => {
                self.seal = Some(SmolStr::from(text(value, TAG_MAX)?));
                names::SEAL
            }
            _ => return Ok(false),
        };
        self.first.get_or_insert(name);
        Ok(true)
    }

    /// All or nothing: the headers that a node wrote on a job are complete, and proven by a seal.
    pub(super) fn checked(self, has_run_id: bool) -> Result<(Option<Moved>, Option<SmolStr>), HeaderError> {
        let Self { first: Some(first), round, attempt, deferrals, due_at, deferred_for, place, left_out, seal } = self
        else {
            return Ok((None, None));
        };
        let moved = match (round, attempt) {
            (Some(round), Some(attempt)) => {
                let deferrals = deferrals.unwrap_or(0);
                Some(Moved { round, attempt, deferrals, due_at, deferred_for, place, left_out })
            }
            (None, None)
                if deferrals.is_none()
                    && due_at.is_none()
                    && deferred_for.is_none()
                    && place.is_none()
                    && left_out.is_none() =>
            {
                None
            }
            _ => return Err(HeaderError { header: first.to_owned(), reason: RESERVED.to_owned() }),
        };
        if seal.is_none() || !has_run_id {
            return Err(HeaderError { header: first.to_owned(), reason: RESERVED.to_owned() });
        }
        Ok((moved, seal))
    }
}
