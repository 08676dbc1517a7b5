//! Why a run had to wait before an attempt: its record forgets that once the attempt has begun, and its trace says it.

use longshore_domain::run::DeferReason;
use longshore_domain::{Run, Timestamp};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Deferred {
    pub(crate) reason: DeferReason,
    /// When the start ended that was put back or snoozed, and that the attempt takes the place of.
    pub(crate) since: Option<Timestamp>,
}

impl Deferred {
    /// What the record says; best before the attempt begins.
    pub(crate) fn of(run: &Run) -> Option<Self> {
        let replaced = run.attempts.last().filter(|last| last.put_back.is_some());
        let since = replaced.and_then(|last| last.ended_at);
        run.deferral.as_ref().map(|deferral| Self { reason: deferral.reason, since })
    }
}
