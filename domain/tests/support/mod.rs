//! What the seeded worlds of several protocols share.

/// Chance from a seed: the same seed gives the same world. Xorshift (G. Marsaglia, "Xorshift RNGs", 2003), 13, 7, 17.
pub(crate) struct Chance(u64);

impl Chance {
    /// The chance of a world.
    pub(crate) fn of_world(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Evenly 0 ≤ n < `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }

    /// True `percent` times in 100.
    pub(crate) fn hits(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
