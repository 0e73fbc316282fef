//! Chance that is the same in each run.
//!
//! Invariant: all numbers follow from the seed, so that each side of a comparison does the same.

/// Numbers that look like chance and are the same in each run.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// A series of its own for each seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (splitmix64).
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next bytes; so many, rounded up to whole numbers.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next_number().to_le_bytes()).take(count.div_ceil(8)).flatten().collect()
    }

    /// The next number below a limit.
    ///
    /// # Panics
    /// Where the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The remainder of a number of 64 bits is even enough for limits of less than 40 bits.
        self.next_number() % limit
    }
}

/// All numbers below a limit, each once, in the order of chance.
#[must_use]
pub fn shuffled(limit: u64, seed: u64) -> Vec<u64> {
    let mut noise = Noise::new(seed);
    let mut numbers: Vec<u64> = (0..limit).collect();
    for (at, below) in (0..numbers.len()).zip(1_u64..).skip(1) {
        let other = usize::try_from(noise.below(below)).unwrap_or(0);
        numbers.swap(at, other);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once_in_an_order_that_a_seed_gives() {
        let numbers = shuffled(1000, 5);
        assert_eq!(numbers, shuffled(1000, 5));
        assert_ne!(numbers, shuffled(1000, 6));
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000) && numbers[..10] != [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
