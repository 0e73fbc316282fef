//! The target of a measurement: a file on a tier, or a simulated device.

use crate::error::TierError;

/// How reads and writes were made to reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Past the page cache (`O_DIRECT`); the device flushes after each load of writes.
    Direct,
    /// Through the page cache: each write is synced before it counts (`RWF_DSYNC`), and a range is taken out of the cache
    /// before it is read.
    Synced,
    /// The file system is in memory: there is no device.
    Memory,
}

/// A place for a measurement. Everything in it goes when it is dropped.
///
/// Requests come from several threads at once, each at a multiple of its own length, which is one of 4 KiB, in memory at a
/// multiple of 4 KiB.
pub trait Ground: Send + Sync {
    /// How requests reach the device.
    fn way(&self) -> Way;

    /// Writes all of it.
    ///
    /// # Errors
    /// As [`crate::Tier::write`]; a part of it may be written then.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), TierError>;

    /// Fills the buffer with the bytes written there before.
    ///
    /// # Errors
    /// As [`crate::Tier::read`], and where there is less.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError>;

    /// Returns once everything that was written is on the device for good.
    ///
    /// # Errors
    /// As [`crate::Tier::sync`].
    fn flush(&self) -> Result<(), TierError>;

    /// Drops the bytes that were read and written from the memory of this machine, as far as that can be asked for.
    ///
    /// # Errors
    /// As [`Ground::flush`].
    fn forget(&self) -> Result<(), TierError>;

    /// Whether memory of this machine would answer a read there, as far as that is known.
    fn is_in_memory(&self, _offset: u64) -> bool {
        false
    }

    /// Bytes allocated to the file; `None` where they are unknown.
    fn allocated_bytes(&self) -> Option<u64>;

    /// So many threads begin to make requests. A simulated device lets time pass only while all of them wait.
    fn lanes_begin(&self, _lanes: u16) {}

    /// One of them makes no further request.
    fn lane_ends(&self) {}
}
