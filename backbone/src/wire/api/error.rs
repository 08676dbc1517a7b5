//! Error answers: the codes, and the body that carries one.

use std::borrow::Cow;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::error::Error;

longshore_domain::named! {
    /// Why a request was refused; the codes and their words are the contract's, after HTTP.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Code {
        /// 400
        Malformed = "malformed",
        /// 403
        Forbidden = "forbidden",
        /// 404
        NotFound = "not_found",
        /// 404, too: there was such a run, but its type keeps nothing of runs that complete at once.
        NotKept = "not_kept",
        /// 409
        WrongState = "wrong_state",
        /// 409, too: the key came with another job before.
        IdempotencyMismatch = "idempotency_mismatch",
        /// 409, too: another run has the key, and the client asked for a refusal.
        KeyTaken = "key_taken",
        /// 409, too: what is stored of the run is no record that the node can read.
        Unreadable = "unreadable",
        /// The schedule is not as it was any more when the client last saw it.
        Changed = "changed",
        /// 413
        TooLarge = "too_large",
        /// 429
        RateLimited = "rate_limited",
        /// 503
        Unavailable = "unavailable",
        /// 500: the node's fault.
        Internal = "internal",
    }
}

impl Code {
    /// The number.
    pub fn number(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Forbidden => 403,
            Self::NotFound | Self::NotKept => 404,
            Self::WrongState | Self::IdempotencyMismatch | Self::KeyTaken | Self::Unreadable => 409,
            Self::Changed => 412,
            Self::TooLarge => 413,
            Self::RateLimited => 429,
            Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }
}

/// An error answer: `{"code","error","message","retry_after_ms"?,"hint"?}`.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, JsonSchema)]
#[error("{code} {error}: {message}")]
pub struct ApiError {
    /// The number.
    pub code: u16,
    /// The word for it.
    pub error: String,
    /// A description; names the field if one is wrong.
    pub message: String,
    /// When to try again, in milliseconds from now.
    pub retry_after_ms: Option<u64>,
    /// What to do about it, if the message does not say that; it names endpoints and settings, no client's own words.
    pub hint: Option<Cow<'static, str>>,
    /// Whether the message is about subjects and streams, which are no business of a client without a NATS user.
    #[serde(skip)]
    pub is_of_nats: bool,
}

/// What holds of repeats after an error that leaves open whether the request was carried out.
const REPEATS: &str = "the request may have been carried out all the same: a submit with a run id or key may be \
                       repeated; before you repeat any other change, look";

impl ApiError {
    /// An error answer.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let (code, error) = (code.number(), code.as_str().to_owned());
        Self { code, error, message: message.into(), retry_after_ms: None, hint: None, is_of_nats: false }
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn hint(self, hint: impl Into<Cow<'static, str>>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The same about a field of this one.
    #[must_use]
    pub fn within(self, field: &str) -> Self {
        Self { message: format!("{field}.{}", self.message), ..self }
    }

    /// 504: no node answered.
    pub fn no_answer(within: Duration) -> Self {
        let message = format!("no answer within {within:?}");
        Self { code: 504, error: "no_answer".to_owned(), ..Self::new(Code::Unavailable, message) }.hint(format!(
            "the nodes are busy, lack something (health says what) or are gone (nodes.list); {REPEATS}; a NATS user \
             needs the right to publish there and to read the inbox of the answer, as docs/contract.md lists"
        ))
    }

    /// 400.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(Code::Malformed, message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// 503, for what passes by itself.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, message).hint(format!("health says what a node misses; {REPEATS}"))
    }
}

/// The answer of an endpoint to which NATS did not answer; or the error says that asking again does not help.
impl From<&Error> for ApiError {
    fn from(error: &Error) -> Self {
        let message = error.with_causes();
        let unavailable = |message| Self { is_of_nats: true, ..Self::unavailable(message) };
        match error.stored_instead() {
            Some(stored) => Self::new(Code::Unreadable, format!("{message}; stored is: {stored}; {BY_HAND}")),
            None if error.is_server_full() => Self::unavailable(SERVER_FULL)
                .hint("raise the server's max_file_store, or delete streams or messages that nobody needs"),
            None if error.is_stream_full() => unavailable(message).hint("raise the stream's bound under storage"),
            None => unavailable(message),
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

/// What is wrong where a server reaches its `max_file_store`.
pub const SERVER_FULL: &str = "the NATS server has no room left, and stores nothing more";

/// What a person can do about it.
const BY_HAND: &str = "if it is a run's record, runs.cancel ends the run, and runs.erase removes what is stored, so that \
                       its job, if there is one, starts anew or becomes an invalid dead letter; any other key may be \
                       deleted with a NATS client";
