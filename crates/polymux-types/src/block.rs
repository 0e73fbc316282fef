//! Positions of blocks within a file.
//!
//! Invariant: the position of a block is no byte offset and no count of blocks, which are plain numbers. The conversions between them are methods
//! here.

use std::fmt;
use std::ops::{Add, Sub};

use crate::limits::{BLOCK_SIZE, RANGE_NODE_SIZE};

/// Blocks of a range node.
pub const BLOCKS_PER_NODE: u64 = RANGE_NODE_SIZE / BLOCK_SIZE;

/// Number of a block within a file: its first byte divided by [`BLOCK_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Block(pub u64);

impl Block {
    /// End of ranges that cover all blocks to come.
    pub const END: Block = Block(u64::MAX);

    /// The block that a byte lies in.
    #[inline]
    #[must_use]
    pub const fn holding(byte: u64) -> Self {
        Self(byte / BLOCK_SIZE)
    }

    /// The first block that begins at or after a byte.
    #[inline]
    #[must_use]
    pub const fn at_or_after(byte: u64) -> Self {
        Self(byte.div_ceil(BLOCK_SIZE))
    }

    /// First byte of the block; of one beyond the largest file, a byte beyond it too.
    #[inline]
    #[must_use]
    pub const fn first_byte(self) -> u64 {
        Self::bytes_of(self.0)
    }

    /// Bytes of a number of blocks; of more than the largest file has, more than its size too.
    #[inline]
    #[must_use]
    pub const fn bytes_of(blocks: u64) -> u64 {
        blocks.saturating_mul(BLOCK_SIZE)
    }

    /// Number of whole blocks in so many bytes.
    #[inline]
    #[must_use]
    pub const fn whole_in(bytes: u64) -> u64 {
        bytes / BLOCK_SIZE
    }

    /// The block a number of blocks before, or the first one.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, blocks: u64) -> Self {
        Self(self.0.saturating_sub(blocks))
    }

    /// Number of the range node that the block lies in.
    #[inline]
    #[must_use]
    pub const fn node(self) -> u64 {
        self.0 / BLOCKS_PER_NODE
    }

    /// Number of the first range node that begins at or after the block.
    #[inline]
    #[must_use]
    pub const fn node_at_or_after(self) -> u64 {
        self.0.div_ceil(BLOCKS_PER_NODE)
    }

    /// The first block of a range node. A node behind those of the largest file is a programmer's error.
    #[inline]
    #[must_use]
    pub const fn first_of_node(node: u64) -> Self {
        Self(node * BLOCKS_PER_NODE)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

/// The block a number of blocks further on.
impl Add<u64> for Block {
    type Output = Self;

    #[inline]
    fn add(self, blocks: u64) -> Self {
        Self(self.0 + blocks)
    }
}

/// The block a number of blocks before.
impl Sub<u64> for Block {
    type Output = Self;

    #[inline]
    fn sub(self, blocks: u64) -> Self {
        Self(self.0 - blocks)
    }
}

/// Number of blocks from one block to a later one.
impl Sub<Block> for Block {
    type Output = u64;

    #[inline]
    fn sub(self, earlier: Block) -> u64 {
        self.0 - earlier.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_to_blocks_downwards_and_upwards() {
        assert_eq!((Block::holding(0), Block::at_or_after(0)), (Block(0), Block(0)));
        assert_eq!((Block::holding(BLOCK_SIZE - 1), Block::at_or_after(1)), (Block(0), Block(1)));
        assert_eq!((Block::holding(BLOCK_SIZE), Block::at_or_after(BLOCK_SIZE)), (Block(1), Block(1)));
        assert_eq!((Block::whole_in(BLOCK_SIZE - 1), Block::whole_in(2 * BLOCK_SIZE + 1)), (0, 2));
        assert_eq!((Block(3).first_byte(), Block::END.first_byte()), (3 * BLOCK_SIZE, u64::MAX));
    }

    #[test]
    fn each_block_lies_in_the_node_that_begins_at_or_before_it() {
        let first = Block::first_of_node(7);
        assert_eq!(((first - 1).node(), first.node(), (first + 1).node()), (6, 7, 7));
        assert_eq!((first.node_at_or_after(), (first + 1).node_at_or_after()), (7, 8));
        assert_eq!((first + BLOCKS_PER_NODE) - first, BLOCKS_PER_NODE);
    }
}
