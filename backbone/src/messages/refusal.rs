//! JetStream's refusals of a request, and the codes that Longshore distinguishes.

use serde::Deserialize;

use crate::error::Error;

/// Why JetStream refused.
#[derive(Debug, Clone, Deserialize, thiserror::Error)]
#[error("{description} (code {err_code})")]
pub struct Refusal {
    /// JetStream's own code.
    #[serde(default)]
    pub err_code: u64,
    /// JetStream's description.
    #[serde(default)]
    pub description: String,
}

impl Refusal {
    /// Whether a compare-and-set failed because another write was first.
    pub fn is_wrong_sequence(&self) -> bool {
        self.err_code == WRONG_SEQUENCE
    }

    /// The refusal as the error of what was sent to that subject.
    pub(crate) fn of(self, subject: String) -> Error {
        Error::Refused { subject, code: self.err_code, description: self.description }
    }

    /// Whether the message that was to be deleted is not there: also if another node deletes it at the same time.
    pub(crate) fn is_no_message(&self) -> bool {
        NO_MESSAGE.contains(&self.err_code) || (self.err_code == NOT_DELETED && self.description == "no message found")
    }
}

/// The compare-and-set failed, and that is final.
pub(crate) const WRONG_SEQUENCE: u64 = 10_071;
/// The compare-and-set was refused because another write is in flight: undecided, try again.
pub(crate) const WRITE_IN_FLIGHT: u64 = 10_164;
/// JetStream's error codes for a message that is not there.
pub(crate) const NO_MESSAGE: [u64; 2] = [10_037, 10_043];
/// JetStream's error code for a message that could not be deleted, whatever the reason; its description has that.
const NOT_DELETED: u64 = 10_057;
/// Too few servers are there that could have the stream.
pub(crate) const NO_PEERS: u64 = 10_005;
pub(crate) const NO_STREAM: u64 = 10_059;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_somebody_else_deleted_is_not_there() {
        let refusal = |err_code, description: &str| Refusal { err_code, description: description.to_owned() };
        assert!(refusal(10_043, "sequence 7 not found").is_no_message());
        assert!(refusal(10_057, "no message found").is_no_message());
        assert!(!refusal(10_057, "stream store EOF").is_no_message());
    }
}
