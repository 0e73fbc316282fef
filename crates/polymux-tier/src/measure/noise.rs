//! Incompressible bytes, blocks of which none is like another, and an order in which each comes once.

/// Bytes in which each block differs from every other one.
const BLOCK_BYTES: usize = 4096;

/// Rounds after which nothing of the order of the input is left.
const ROUNDS: u32 = 4;

/// The generator splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Noise(u64);

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Noise {
    /// Another one for each seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let next = self.next().to_le_bytes();
            part.copy_from_slice(&next[..part.len()]);
        }
    }

    /// Makes each block that was filled once one that never existed before. That costs nothing beside writing it.
    pub fn renew(&mut self, bytes: &mut [u8]) {
        for block in bytes.chunks_mut(BLOCK_BYTES) {
            // At both ends and in the middle, so that no half or quarter of a block is an old one either.
            for at in [0, BLOCK_BYTES / 4, BLOCK_BYTES / 2, BLOCK_BYTES / 4 * 3] {
                let next = self.next().to_le_bytes();
                if let Some(part) = block.get_mut(at..at + next.len()) {
                    part.copy_from_slice(&next);
                }
            }
        }
    }
}

/// The numbers below a count, each once, in no order: a Feistel network over the next power of four.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    /// The numbers below `count`, which is at least 1, in another order for each seed.
    #[must_use]
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// The number at a place below the count.
    #[must_use]
    pub fn at(&self, place: u64) -> u64 {
        let mut number = place;
        loop {
            number = self.permuted(number);
            // The network permutes a few more numbers than there are; those lead on to one that there is.
            if number < self.count {
                return number;
            }
        }
    }

    fn permuted(&self, number: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            let key = self.seed.wrapping_add(u64::from(round) << 56);
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_shuffle_has_each_number_once_and_in_no_order() {
        for count in [1, 2, 3, 5, 64, 1000, 4097] {
            let shuffle = Shuffle::new(count, 7);
            let numbers: Vec<u64> = (0..count).map(|place| shuffle.at(place)).collect();
            assert_eq!(numbers.iter().copied().collect::<BTreeSet<_>>(), (0..count).collect());
            let next = numbers.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
            assert!(count < 64 || next < 8, "{count}: {next} numbers follow the one before them");
        }
    }

    #[test]
    fn no_block_is_like_another_and_none_has_a_pattern() {
        let mut noise = Noise::new(1);
        let mut bytes = vec![0; 64 * BLOCK_BYTES];
        noise.fill(&mut bytes);
        let mut seen = BTreeSet::new();
        for _ in 0..20 {
            noise.renew(&mut bytes);
            for quarter in bytes.chunks(BLOCK_BYTES / 4) {
                assert!(seen.insert(quarter.to_vec()), "a quarter of a block came twice");
            }
        }
        let mut counts = [0_u32; 256];
        bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        assert!(counts.iter().all(|count| (800..1250).contains(count)), "{counts:?}");
    }
}
