//! The permits that a job holds from its gates on.

use std::sync::Arc;
use std::time::Instant;

use crate::handlers::capacity::CapacityPermit;
use crate::limits::breaker::BreakerPass;
use crate::limits::concurrency::{AwaitedLimit, SlotPermit};
use crate::limits::rate::Tokens;
use crate::runtime::gate_news::Wakes;

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
    pub(crate) waits: Option<AwaitedLimit>,
    /// Of its rate limits.
    pub(crate) tokens: Option<Box<Tokens>>,
    /// Whom its end wakes, if the next of its key may start then.
    pub(crate) wakes: Option<Wakes>,
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
