//! References by number to inodes that are not in memory (FUSE lookup counts).
//!
//! Invariants:
//! * The kernel refers to each inode that it knows, and a walk over a tree makes it know all of it. Inodes of which nothing else is to be
//!   remembered are a byte each here, in blocks of neighbouring numbers.
//! * A count that a byte cannot hold stands in a map of its own, and its byte is [`LARGE`].

use polymux_types::Ino;

use super::number_hash::NumberMap;

/// Numbers of one block.
const BLOCK: usize = 64;
const BLOCK_BITS: u32 = BLOCK.ilog2();
/// The count stands in the map of large ones.
const LARGE: u8 = u8::MAX;

/// Counts of inodes that are not in memory; those that are not here are 0.
#[derive(Debug, Default)]
pub(super) struct PinCounts {
    blocks: NumberMap<u64, [u8; BLOCK]>,
    large: NumberMap<Ino, u64>,
}

fn place(ino: Ino) -> (u64, usize) {
    let index = usize::try_from(ino.0 % BLOCK as u64).expect("less than a block");
    (ino.0 >> BLOCK_BITS, index)
}

impl PinCounts {
    /// Notes the count of an inode that has none here.
    pub(super) fn put(&mut self, ino: Ino, count: u64) {
        if count == 0 {
            return;
        }
        let (block, index) = place(ino);
        let byte = u8::try_from(count).unwrap_or(LARGE);
        let before = std::mem::replace(&mut self.blocks.entry(block).or_insert([0; BLOCK])[index], byte);
        assert_eq!(before, 0, "an inode that comes into memory takes its count along");
        if byte == LARGE {
            self.large.insert(ino, count);
        }
    }

    /// Takes the count of an inode out.
    pub(super) fn take(&mut self, ino: Ino) -> u64 {
        let (block, index) = place(ino);
        let Some(counts) = self.blocks.get_mut(&block) else { return 0 };
        let byte = std::mem::take(&mut counts[index]);
        if counts.iter().all(|count| *count == 0) {
            self.blocks.remove(&block);
        }
        match byte {
            LARGE => self.large.remove(&ino).expect("a large count is on the list"),
            byte => u64::from(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_out_as_they_went_in_and_leave_nothing_behind() {
        let counts = [(1, 1), (63, 254), (64, 255), (65, 256), (1 << 40, u64::MAX), (66, 0)];
        let mut pins = PinCounts::default();
        counts.iter().for_each(|(ino, count)| pins.put(Ino(*ino), *count));
        assert_eq!((pins.blocks.len(), pins.large.len()), (3, 3));
        for (ino, count) in counts {
            assert_eq!(pins.take(Ino(ino)), count, "of {ino}");
            assert_eq!(pins.take(Ino(ino)), 0, "of {ino}, again");
        }
        assert!(pins.blocks.is_empty() && pins.large.is_empty());
    }

    #[test]
    fn a_tree_that_was_walked_takes_little_more_than_a_byte_each() {
        let mut pins = PinCounts::default();
        (0..1_000_000).for_each(|ino| pins.put(Ino(ino), 2));
        assert_eq!(pins.blocks.len(), 1_000_000 / BLOCK);
        assert!(pins.large.is_empty());
    }
}
