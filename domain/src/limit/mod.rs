//! Rate limits, exact across the cluster: what a limit allows ([`RateLimit`]), the record of what was taken, on which
//! the nodes agree by compare-and-set ([`Record`]), and the tokens that one node holds ([`Holder`]).
//!
//! A node takes tokens in small blocks, so that a start costs it nothing but a subtraction. A block is charged when it
//! is taken and must be used within its lease, by the node's own clock. What is not used is given back, once. What a
//! dead node held counts as used: it may have used it. So no fault lets more jobs start than the bound below, and a
//! death costs at most the blocks that the dead node held.
//!
//! # The bound
//!
//! With rate `r` (tokens in a second) and burst `b`:
//!
//! * **Bucket**: in any span of time `w`, jobs of at most `max(b, r × 0.2 s + 1) + r × w` tokens start, and of at most
//!   `b + r × w` if b ≥ r × 2 s: the bucket and the nodes' hands together never hold more than the first term. A job
//!   that costs more than that starts once all is there, and its cost is taken all the same.
//! * **Fixed window**: at most `rate` tokens in each window, which begins at whole multiples of its length since 1970.
//! * **Sliding window**: at most `rate` tokens in any span of the window's length. Each token counts from the end of
//!   its lease, so that about a twentieth of the rate is not used.
//!
//! A limit that is changed holds from the first block that is taken under it: the bucket keeps what it has, at most as
//! much as the new one may have. Blocks that were taken before may be used up until their leases end.
//!
//! Nodes' clocks are corrected by the server's. Where they still differ by `s`, the span counts as longer by `s`.

mod holder;
mod id;
mod record;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use holder::{Asked, Holder, Taken, Wait};
pub use id::{LimitId, Scope};
pub use record::{Answer, Ask, Lease, Record};

/// What a limit allows, in the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Tokens in each [`Self::per`]; 1 or more.
    pub rate: u32,
    /// The span of time; 100 ms or more.
    #[serde(rename = "per_ms", serialize_with = "write_millis", deserialize_with = "read_millis")]
    pub per: Duration,
    /// How many tokens there are at once after a quiet time; windows have no use for it.
    pub burst: u32,
    /// How starts are counted.
    pub window: Window,
}

crate::named! {
    /// How a limit counts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Window {
        /// A token bucket: it fills steadily.
        #[default]
        Bucket = "bucket",
        /// Windows that follow each other.
        Fixed = "fixed",
        /// Every span of the window's length.
        Sliding = "sliding",
    }
}

/// How far ahead tokens that are not there yet may be taken: so that nodes get theirs in turn.
pub const RESERVE_WITHIN: Duration = Duration::from_secs(1);

/// The shortest lease of tokens of a bucket: enough for an answer of the cluster, and for the start of a job.
const BUCKET_LEASE: Duration = Duration::from_millis(100);

const MAX_LEASE: Duration = Duration::from_secs(5);

/// The time for which one block lasts if all tokens are in use.
const BLOCK: Duration = Duration::from_millis(200);

/// The shortest span of time, and the shortest window: a shorter one would be over before a node had used its tokens.
pub const MIN_PER: Duration = Duration::from_millis(100);
/// See [`MIN_PER`].
pub const MIN_WINDOW: Duration = Duration::from_secs(1);

fn write_millis<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(crate::run::whole_millis(*span))
}

fn read_millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

impl RateLimit {
    /// Whether a limit can be kept like this.
    ///
    /// # Errors
    /// The part of it that is wrong, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let shortest = if self.window == Window::Bucket { MIN_PER } else { MIN_WINDOW };
        match () {
            () if self.rate == 0 => Err(("rate", "is zero".to_owned())),
            () if self.burst == 0 => Err(("burst", "is zero".to_owned())),
            () if self.per < shortest => {
                let shortest = crate::DurationText(shortest);
                Err(("per", format!("{} is too short; {shortest} or more", crate::DurationText(self.per))))
            }
            () if self.per > crate::duration::MAX_DURATION => Err(("per", "is more than 3650 days".to_owned())),
            () => Ok(()),
        }
    }

    /// Tokens per millisecond.
    pub fn per_ms(&self) -> f64 {
        f64::from(self.rate) / (self.per.as_secs_f64() * 1_000.0)
    }

    /// How many tokens flow into the bucket during the shortest lease.
    fn in_a_lease(&self) -> f64 {
        self.per_ms() * BUCKET_LEASE.as_secs_f64() * 1_000.0
    }

    /// Whether the burst is large beside what nodes hold.
    fn is_wide(&self) -> bool {
        self.burst >= 3 && f64::from(self.burst) >= 2.0 * self.in_a_lease() + 1.0
    }

    /// How long a block may be used. Tokens of a slow limit may be used for longer, because a node that stands still
    /// for a moment would lose what takes long to come again.
    pub fn lease(&self) -> Duration {
        let slow = match self.window {
            Window::Bucket => Duration::try_from_secs_f64(f64::from(self.burst) / self.per_ms() / 20_000.0),
            Window::Fixed | Window::Sliding => Ok(self.per / 100),
        };
        self.quick_lease().max(slow.unwrap_or(MAX_LEASE).min(MAX_LEASE))
    }

    /// How long a block may be used, were tokens to come again soon.
    fn quick_lease(&self) -> Duration {
        let (least, most) = (Duration::from_millis(50), Duration::from_millis(500));
        match self.window {
            Window::Bucket if self.is_wide() => {
                let third = f64::from(self.burst) / self.per_ms() / 3_000.0;
                Duration::from_secs_f64(third.min(1.0)).clamp(BUCKET_LEASE, most)
            }
            Window::Bucket => BUCKET_LEASE,
            Window::Fixed => (self.per / 10).clamp(least, most),
            Window::Sliding => (self.per / 20).clamp(least, most),
        }
    }

    /// How many tokens there are at most at once, also in the nodes' hands.
    pub fn capacity(&self) -> f64 {
        match self.window {
            // A token counts as held until its lease is over. So that others flow in meanwhile, there must be more
            // than are held, unless a lease is short beside the time in which a token flows in.
            Window::Bucket if self.is_wide() || f64::from(self.burst) >= 20.0 * self.in_a_lease() => self.burst.into(),
            Window::Bucket => f64::from(self.burst).max(2.0 * self.in_a_lease() + 1.0),
            Window::Fixed | Window::Sliding => f64::from(self.rate),
        }
    }

    /// How many tokens one node takes at once at most, beside the cost of a single job; `holders` nodes take some.
    pub fn block(&self, holders: usize) -> u32 {
        let all = (self.per_ms() * BLOCK.as_secs_f64() * 1_000.0).min(self.capacity() / 2.0);
        (all / holders.max(1) as f64).clamp(1.0, f64::from(u32::MAX)) as u32
    }

    /// How many tokens' worth of jobs may start in a span of `span`, wherever it begins.
    pub fn bound(&self, span: Duration) -> f64 {
        let millis = span.as_secs_f64() * 1_000.0;
        match self.window {
            Window::Bucket => self.capacity() + self.per_ms() * millis,
            Window::Fixed => f64::from(self.rate) * ((span.as_secs_f64() / self.per.as_secs_f64()).ceil() + 1.0),
            Window::Sliding => f64::from(self.rate) * (span.as_secs_f64() / self.per.as_secs_f64()).ceil().max(1.0),
        }
    }
}

#[cfg(test)]
mod tests;
