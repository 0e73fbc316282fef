//! Hash of numbers that this program gives out itself (inodes, descriptions).
//!
//! They are consecutive, so that one multiplication spreads them, and no program can choose them, so that
//! the keyed hash of the standard library would protect against nothing.

use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are one number of 64 bits.
pub(crate) type NumberMap<Key, Value> = std::collections::HashMap<Key, Value, BuildHasherDefault<NumberHasher>>;

/// Hashes one `u64`.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher {
    hash: u64,
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The table takes its place from the low bits and its mark from the high ones; the best of a product lie in its
        // middle.
        self.hash = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_a_row_spread_over_low_and_high_bits() {
        let hash = |number| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        for shift in [0, 57] {
            let mut places = [0_u32; 128];
            for number in 0..128 * 64 {
                places[usize::try_from(hash(number) >> shift & 127).expect("seven bits fit")] += 1;
            }
            assert!(places.iter().all(|count| (32..128).contains(count)), "shift {shift}: {places:?}");
        }
    }
}
