//! Draws chance from a seed: the same seed gives the same world, on every machine. The simulations of the protocol and
//! of the circuit breakers play their worlds by it.
//!
//! SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", 2014): one multiplication
//! chain per draw, and good enough to choose which node dies. The domain itself draws nothing.

use std::cell::Cell;

/// Draws numbers, by a shared reference: all tasks of a world draw from one.
#[derive(Debug)]
pub struct Chance(Cell<u64>);

impl Chance {
    /// Chance of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    fn draw(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly 0 ≤ n < `bound`. The bias of a plain multiplication is far below what a world can notice.
    pub fn below(&self, bound: u32) -> u32 {
        let high = (self.draw() >> 32) * u64::from(bound);
        u32::try_from(high >> 32).unwrap_or(0)
    }

    /// Evenly `from` ≤ n ≤ `to`.
    pub fn between(&self, from: i64, to: i64) -> i64 {
        from + i64::from(self.below(u32::try_from(to - from + 1).unwrap_or(1)))
    }

    /// True `share` times in 10,000.
    pub fn hits(&self, share: u32) -> bool {
        self.below(10_000) < share
    }

    /// Evenly 0 ≤ x < 1.
    pub fn unit(&self) -> f64 {
        f64::from(self.below(1 << 24)) / f64::from(1 << 24)
    }

    /// One of these.
    pub fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(u32::try_from(of.len()).unwrap_or(1)) as usize]
    }
}
