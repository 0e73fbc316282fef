//! Reading durable parts of the log again while it goes on, for the second copy.
//!
//! Invariant: the block of position `p` is overwritten only by a position that is a whole ring later, and a place
//! is taken (`tail`) before anything of it is written. So blocks that were read before `tail` passed their own end by a
//! ring are the bytes written there.

use super::Log;
use super::header_format::LogHeader;
use super::medium::{BLOCK, BlockBuffer};
use super::ring::pieces;
use crate::error::StoreError;

impl Log {
    /// The header as it was written last.
    pub(crate) fn header(&self) -> LogHeader {
        *self.header.lock()
    }

    /// Where this opening began to append.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Reads the blocks from `from` on, which is a multiple of [`BLOCK`]. Returns whether they are still those positions;
    /// otherwise the log has gone round since, or a region gave them up because the tables had them.
    pub(crate) fn read_back(&self, from: u64, blocks: &mut [u8]) -> Result<bool, StoreError> {
        assert!(from.is_multiple_of(BLOCK), "whole blocks are read");
        let to = from + blocks.len() as u64;
        // The content of the region does not move to the medium while this is held.
        let _no_spill = self.window.region().map(|region| region.spill_buffer.lock());
        for (offset, start, end) in pieces(self.ring_length, from, to) {
            let index = |position: u64| usize::try_from(position - from).expect("the blocks fit into memory");
            let target = &mut blocks[index(start)..index(end)];
            self.medium.read(offset, target).map_err(|error| StoreError::Io(format!("reading the log: {error}")))?;
        }
        if let Some(region) = self.window.region() {
            region.overlay(from, u64::MAX, blocks);
            let checkpoint = self.checkpoint();
            if from < region.low().min(checkpoint - checkpoint % BLOCK) {
                return Ok(false);
            }
        }
        Ok(self.tail() <= from + self.ring_length)
    }
}

/// Zeros from `position`, which lies in the last of these blocks, to their end.
pub(crate) fn cut_last_block(blocks: &mut BlockBuffer, position: u64) {
    let cut = usize::try_from(BLOCK - position % BLOCK).expect("a block fits into memory");
    let keep = blocks.len() - cut;
    blocks.as_mut_slice()[keep..].fill(0);
}
