//! Extent records (`e<ino><end block>`), version 1: exceptions of the block lookup table (M6).
//!
//! Invariants: extents of one inode do not overlap; none is empty; one that ends at [`Block::END`] covers the tail
//! of the file.

use polymux_types::Block;

use super::frame::{Reader, Writer};
use crate::blockmap::Owner;
use crate::error::Error;

const VERSION: u8 = 1;
const FLAG_HOLE: u8 = 1;

/// Value of an `e` record; its end stands in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRecord {
    /// First block; the block behind the last one is in the key.
    pub start_block: Block,
    /// The slot that owns the blocks, or a hole.
    pub owner: Owner,
}

impl ExtentRecord {
    /// The bytes of the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        let (slot, flags) = match self.owner {
            Owner::Slot(slot) => (slot, 0),
            Owner::Hole => (0, FLAG_HOLE),
        };
        // The offset delta is 0 as long as blocks keep their file offset on every tier (DESIGN section 4).
        writer.u64(self.start_block.0).u8(slot).u8(flags).i64(0);
        writer.finish()
    }

    /// Reads a record.
    pub fn decode(record: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new("an extent", record, VERSION)?;
        let start_block = Block(reader.u64()?);
        let (slot, flags, delta) = (reader.u8()?, reader.u8()?, reader.i64()?);
        if delta != 0 {
            return Err(reader.invalid("it has an offset delta, which this program does not know"));
        }
        let owner = match flags {
            0 => Owner::Slot(slot),
            FLAG_HOLE => Owner::Hole,
            other => return Err(reader.invalid(format!("it has unknown flags {other}"))),
        };
        reader.finish()?;
        Ok(Self { start_block, owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_reads_back_as_it_was_written() {
        for owner in [Owner::Slot(63), Owner::Hole] {
            let extent = ExtentRecord { start_block: Block(1 << 50), owner };
            assert_eq!(ExtentRecord::decode(&extent.encode()).unwrap(), extent);
        }
    }
}
