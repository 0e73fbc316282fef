//! The interface between a log and its medium.
//!
//! Invariants:
//! * Offsets and lengths of writes are multiples of [`BLOCK`], and so is the address of the bytes in a [`BlockBuffer`].
//! * After [`LogMedium::write_durable`] these bytes survive a power failure; after [`LogMedium::write`] they do once
//!   [`LogMedium::flush`] has returned. A crash may keep any part of the blocks of an unfinished write, and any subset of
//!   the writes since the last flush.
//! * The length never changes after it was made: nothing but the bytes themselves has to reach the device.

use std::io;

/// Unit of writing in bytes.
pub const BLOCK: u64 = 4096;

/// A file or region of fixed length that a log lives on.
pub trait LogMedium: Send + Sync {
    /// Bytes that it holds.
    fn length(&self) -> u64;

    /// Reads exactly `bytes.len()` bytes.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes blocks, durable after the next flush.
    fn write(&self, offset: u64, blocks: &[u8]) -> io::Result<()>;

    /// Writes blocks, durable when it returns. Says nothing about earlier writes.
    fn write_durable(&self, offset: u64, blocks: &[u8]) -> io::Result<()>;

    /// Makes all finished writes durable.
    fn flush(&self) -> io::Result<()>;

    /// How it is written, for people: `block, direct`, for instance.
    fn description(&self) -> String;
}

/// Bytes whose address is a multiple of [`BLOCK`], as direct I/O wants them.
pub(crate) struct BlockBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl BlockBuffer {
    /// Zeros, `length` of them, a multiple of [`BLOCK`].
    pub(crate) fn new(length: usize) -> Self {
        let block = usize::try_from(BLOCK).expect("a block fits into memory");
        assert!(length.is_multiple_of(block), "a buffer holds whole blocks");
        let bytes = vec![0; length + block];
        let start = bytes.as_ptr().align_offset(block);
        assert!(start < block, "an aligned address is found within one block");
        Self { bytes, start, length }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_buffer_is_aligned() {
        let mut buffer = BlockBuffer::new(8192);
        assert_eq!(buffer.as_slice().as_ptr().align_offset(4096), 0);
        assert_eq!((buffer.len(), buffer.as_mut_slice().len()), (8192, 8192));
    }
}
