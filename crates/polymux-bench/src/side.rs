//! The two sides of every comparison: native system calls and an embedded file system, behind one pair of traits.
//!
//! Invariants:
//! * A [`PrivateDirectory`] is used by one thread; the two sides do the same calls in the same order.
//! * `Durability::Synced` means on both sides: the new file is fsynced after a create, and the directory after anything
//!   else.

use anyhow::Result;
use polymux_meta::LogCounters;

/// Bytes that each writing operation writes.
pub const WRITE_SIZE: usize = 4096;

/// Whether an operation is durable before the next one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When the file system sees fit.
    Later,
    /// By an fsync that belongs to the operation.
    Synced,
}

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Make an empty file, exclusively, and close it.
    Create,
    /// Give a file another name in its directory.
    Rename,
    /// Take the name of an empty file away.
    Unlink,
    /// Make a directory.
    MakeDirectory,
    /// Remove an empty directory.
    RemoveDirectory,
    /// Make a file, write 4 KiB and close it.
    CreateWritten,
    /// Take the name of a file of 4 KiB away.
    UnlinkWritten,
    /// Append 4 KiB to a file that exists, with fdatasync.
    Append,
}

impl Operation {
    /// The five kinds that the geometric mean is made of, in an order in which each finds the files it needs, and in which
    /// nothing is created where something was just deleted.
    pub const METADATA: [Self; 5] =
        [Self::Create, Self::Rename, Self::MakeDirectory, Self::Unlink, Self::RemoveDirectory];

    /// Name in tables and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::MakeDirectory => "mkdir",
            Self::RemoveDirectory => "rmdir",
            Self::CreateWritten => "create + 4 KiB",
            Self::UnlinkWritten => "unlink of 4 KiB",
            Self::Append => "append 4 KiB",
        }
    }

    /// Whether it belongs to the geometric mean.
    #[must_use]
    pub fn is_metadata(self) -> bool {
        Self::METADATA.contains(&self)
    }
}

/// One file system under measurement.
pub trait Side: Sync {
    /// Name in tables.
    fn name(&self) -> &'static str;

    /// Makes a directory for one thread. `stream` tells threads apart.
    ///
    /// # Errors
    /// Whatever the file system reports.
    fn private_directory(&self, name: &str, stream: u64) -> Result<Box<dyn PrivateDirectory>>;

    /// Completes all background work that earlier calls deferred.
    ///
    /// # Errors
    /// Where work is left over.
    fn drain(&self) -> Result<()>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// Whatever the file system reports.
    fn sync(&self) -> Result<()>;

    /// Counters of the metadata log so far, where the side has a log that counts.
    fn log_counters(&self) -> Option<LogCounters>;
}

/// A directory that one thread works in.
pub trait PrivateDirectory: Send {
    /// Makes an empty file, exclusively, and closes it.
    ///
    /// # Errors
    /// Whatever the file system reports; the same holds below.
    fn create(&self, name: &str, durability: Durability) -> Result<()>;

    /// Makes a file, writes `data` to it, and closes it.
    ///
    /// # Errors
    /// As above.
    fn create_written(&self, name: &str, data: &[u8], durability: Durability) -> Result<()>;

    /// Renames within the directory.
    ///
    /// # Errors
    /// As above.
    fn rename(&self, from: &str, to: &str, durability: Durability) -> Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As above.
    fn unlink(&self, name: &str, durability: Durability) -> Result<()>;

    /// Makes a directory.
    ///
    /// # Errors
    /// As above.
    fn make_directory(&self, name: &str, durability: Durability) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As above.
    fn remove_directory(&self, name: &str, durability: Durability) -> Result<()>;

    /// Makes a file of `size` bytes, durable, and opens it for appending.
    ///
    /// # Errors
    /// As above.
    fn appender(&self, name: &str, size: usize) -> Result<Box<dyn Appender>>;
}

/// An open file that grows.
pub trait Appender: Send {
    /// Writes at the end, and makes it durable as fdatasync does.
    ///
    /// # Errors
    /// Whatever the file system reports.
    fn append(&mut self, data: &[u8]) -> Result<()>;
}
