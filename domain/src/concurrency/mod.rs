//! Concurrency limits, exact across the cluster: the record of who has which *slots* of a limit, on which the nodes
//! agree by compare-and-set ([`SlotRecord`]), what one node does with its own ([`Holder`]), and when a node that fell
//! silent has certainly lost them ([`session`]).
//!
//! An attempt starts only with a slot. A node has its slots in a block, so that the next attempt may begin with the
//! slot of the last one, and costs the cluster nothing. It gives back what it does not use, and, if others want slots,
//! what is beyond its share.
//!
//! # The bound
//!
//! Of a limit of `n`, never more than `n` attempts are at work. A block belongs to a *session* of a node, which the
//! node renews. Blocks count until their session has ended, and a session ends only after its node can no longer use
//! it: the node counts its lease from the sending of the last renewal that was confirmed, and the node that ends it has
//! seen no renewal for a whole lease, and ends it by compare-and-set.
//!
//! A handler in another process may go on without its node. Its run starts again elsewhere once the lease is over, and
//! by default so does its slot: the two may overlap, as they do without a limit. Of a type that asks for strictness
//! ([`Hold::Timeout`]) a block counts for the longest time limit of its attempts at work beyond the end of its session.

mod holder;
mod id;
mod line;
mod order;
mod record;
pub mod session;

pub use holder::{Holder, SlotRefusal};
pub use id::ConcurrencyId;
pub use line::{Entry, Judged, Leaving, Line, Member, Place};
pub use order::{BATCH, Next, Order, OrderId, Turn};
pub use record::{Ask, Block, MAX_HOLD, SlotRecord, SlotVersion};

crate::named! {
    /// What happens to a job whose concurrency key is busy. Beyond waiting, a key is busy as long as as many of its
    /// runs as may have been let in and have not ended ([`Line`]).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum OnBusy {
        /// It waits.
        #[default]
        Wait = "wait",
        /// It ends as cancelled, without an attempt.
        DropNew = "drop_new",
        /// It waits, and whichever waited before ends as cancelled.
        KeepNewest = "keep_newest",
        /// The oldest run that was let in ends as cancelled, and it takes that one's place.
        CancelRunning = "cancel_running",
    }
}

crate::named! {
    /// For how long the slot of an attempt at a handler in another process is kept once its node is gone.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Hold {
        /// For the node's lease, as long as the run itself.
        #[default]
        Lease = "lease",
        /// For the attempt's time limit as well, at most [`MAX_HOLD`].
        Timeout = "timeout",
    }
}
