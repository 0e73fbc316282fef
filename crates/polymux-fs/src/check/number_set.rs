//! A set of numbers that mostly follow one another: a bit for each, in pieces that are made when they are needed.

use std::collections::HashMap;

/// Numbers of one piece.
const PIECE: u64 = 65_536;
const WORDS: usize = 1024;

#[derive(Default)]
pub(super) struct NumberSet {
    pieces: HashMap<u64, Box<[u64; WORDS]>>,
}

impl NumberSet {
    /// Adds a number; returns whether it was not there.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let piece = self.pieces.entry(number / PIECE).or_insert_with(|| Box::new([0; WORDS]));
        let (word, bit) = place(number);
        let is_new = piece[word] & bit == 0;
        piece[word] |= bit;
        is_new
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.pieces.get(&(number / PIECE)).is_some_and(|piece| piece[word] & bit != 0)
    }
}

fn place(number: u64) -> (usize, u64) {
    let within = number % PIECE;
    let word = usize::try_from(within / 64).expect("a piece has 1,024 words");
    (word, 1 << (within % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_new_once() {
        let mut set = NumberSet::default();
        for number in [0, 63, 64, 65_535, 65_536, u64::MAX] {
            assert!(!set.contains(number));
            assert!(set.insert(number));
            assert!(!set.insert(number));
            assert!(set.contains(number));
        }
        assert!(!set.contains(1) && !set.contains(65_537));
    }
}
