//! What the gates answer.

use std::time::Instant;

use longshore_domain::run::DeferReason;

use crate::attempt::permits::Permits;
use crate::concurrency::Waits;

/// The gates' answer for a job.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It may start, with these permits.
    Go(Permits),
    /// It may not start before this moment; about so many of its kind will within a second of it.
    NotBefore(Instant, DeferReason, usize),
    /// No handler was there: the next is looked for at this moment. That alone is not published as a deferral.
    NoHandlerBefore(Instant),
    /// It may start only after another job gives its permit back. Without a reason, its wait is not published as a
    /// deferral.
    WhenFreed(Option<DeferReason>),
    /// It waits for a slot, for this reason. While the cluster is being asked, up to so many may start in a moment.
    ForSlot(Waits, Option<DeferReason>, usize),
}

/// Why a job cannot start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldUp {
    /// It cannot start before this moment; `None`: not before a permit comes back.
    pub(crate) until: Option<Instant>,
    /// What it waits for, if that is published as a deferral.
    pub(crate) reason: Option<DeferReason>,
    /// About how many of its kind start within a second once some may, if that is known.
    pub(crate) soon: usize,
    /// The slot that it waits for.
    pub(crate) waits: Option<Waits>,
}

impl HeldUp {
    /// Whether the cluster is being asked for the slot that it waits for.
    pub(crate) fn asks_for_slot(&self) -> bool {
        self.waits.is_some() && self.reason.is_none()
    }
}
