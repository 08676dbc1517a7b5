//! Jobs on their way back to their lanes, because they have waited in the buffer for too long.
//!
//! The server reads returns and pulls by different queues. A pull that is sent with a return may get the job behind the
//! one that went back, which then waits for the next pull of its lane and is overtaken by all that starts meanwhile. So
//! a lane is not pulled from until the server has what goes back to it.

use std::task::{Context, Poll};

use longshore_backbone::Backbone;
use longshore_backbone::delivery::AckToken;
use longshore_domain::QueueLane;
use tokio::task::JoinSet;

/// The returns that the server has not confirmed. Dropped, those that are sent arrive nevertheless.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    of: [usize; QueueLane::COUNT],
    tasks: JoinSet<usize>,
}

impl Returning {
    /// Returns jobs of a lane, in their order.
    pub(crate) fn begin(&mut self, backbone: &Backbone, lane: usize, ack_tokens: Vec<AckToken>) {
        self.of[lane] += 1;
        let backbone = backbone.clone();
        self.tasks.spawn(async move {
            backbone.nak_confirmed(ack_tokens).await;
            lane
        });
    }

    /// Whether jobs are on their way back to this lane.
    pub(crate) fn is_returning(&self, lane: usize) -> bool {
        self.of[lane] > 0
    }

    /// Whether any have arrived; wakes the task when more have.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some(arrived)) = self.tasks.poll_join_next(context) {
            match arrived {
                Ok(lane) => self.of[lane] = self.of[lane].saturating_sub(1),
                // By a panic in the client library. No lane may be left alone for it; only the order depends on this.
                Err(_) => self.of = [0; QueueLane::COUNT],
            }
            any = true;
        }
        any
    }
}
