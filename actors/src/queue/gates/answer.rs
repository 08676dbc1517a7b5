//! What the gates answer, and the permits that a job holds from then on.

use std::sync::Arc;
use std::time::Instant;

use longshore_domain::run::DeferReason;
use tokio::sync::Notify;

use crate::concurrency::{SlotPermit, Waits};
use crate::limits::Tokens;
use crate::shared::breakers::BreakerPass;
use crate::shared::capacity::CapacityPermit;

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

/// What the gates gave a job that may start. Each permit goes back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// To be with a remote handler.
    pub(crate) capacity: Option<CapacityPermit>,
    /// The report on its end to its circuit breaker.
    pub(crate) breaker: Option<BreakerPass>,
    /// Of its concurrency limits. The call of the handler has it, too, until the handler is done.
    pub(crate) slots: Option<Arc<SlotPermit>>,
    /// Of a job that has to wait: the slot that it waits for.
    pub(crate) waits: Option<Waits>,
    /// Of its rate limits.
    pub(crate) tokens: Option<Box<Tokens>>,
    /// Whom its end wakes, if the next of its key may start then.
    pub(crate) wakes: Option<Wakes>,
}

/// Wakes somebody when it is dropped.
#[derive(Debug)]
pub(crate) struct Wakes(Option<Arc<Notify>>);

impl Wakes {
    pub(crate) fn new(notify: Arc<Notify>) -> Self {
        Self(Some(notify))
    }

    /// Nobody is woken.
    pub(crate) fn call_off(mut self) {
        self.0 = None;
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        if let Some(notify) = &self.0 {
            notify.notify_one();
        }
    }
}

impl Permits {
    /// The job starts now. Says whether it may: tokens are only good for some time.
    pub(crate) fn spend(&mut self, now: Instant) -> bool {
        self.tokens.take().is_none_or(|tokens| tokens.spend(now))
    }

    /// The job starts now. Says whether it still has its slots.
    pub(crate) fn has_slots(&self, now: Instant) -> bool {
        self.slots.as_ref().is_none_or(|slots| slots.spend(now))
    }
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
