//! A file with a `flock` that ends with the value that took it.
//!
//! Invariants:
//! * The lock is released explicitly when the file is dropped. Closing the descriptor alone is not enough: a program that
//!   another thread is starting shares every open file of the process until its `exec`, and a shared open file keeps its
//!   lock. The next open of the file would be refused for that long.

use std::fs::File;
use std::ops::Deref;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Result of asking for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LockOutcome {
    /// The lock is held until the file is dropped.
    Locked,
    /// Another open file has a lock that excludes this one.
    InUse,
}

/// An open file that can be locked against other openers, and releases its lock when it is dropped.
#[derive(Debug)]
pub struct LockableFile(File);

impl LockableFile {
    /// Takes ownership of an open file, which must not be shared with another process on purpose: dropping it releases
    /// the lock for all.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self(file)
    }

    /// Asks for a lock that excludes every other, without waiting.
    ///
    /// # Errors
    ///
    /// The errno of `flock`: where the file system has no locks, or, on NFS, where the file is not open for writing.
    pub fn lock_exclusive(&self) -> Result<LockOutcome, Errno> {
        self.lock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Asks for a lock that excludes only exclusive ones, without waiting.
    ///
    /// # Errors
    ///
    /// The errno of `flock`, where the file system has no locks.
    pub fn lock_shared(&self) -> Result<LockOutcome, Errno> {
        self.lock(FlockOperation::NonBlockingLockShared)
    }

    fn lock(&self, operation: FlockOperation) -> Result<LockOutcome, Errno> {
        match flock(&self.0, operation) {
            Ok(()) => Ok(LockOutcome::Locked),
            Err(Errno::WOULDBLOCK) => Ok(LockOutcome::InUse),
            Err(errno) => Err(errno),
        }
    }
}

impl Deref for LockableFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockableFile {
    fn drop(&mut self) {
        // Where that fails, closing the file releases the lock, only later.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_with_its_file_even_where_a_starting_program_shares_the_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let open = || {
            LockableFile::new(File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap())
        };
        let first = open();
        // A duplicate is the same open file, as the one that a fork inherits.
        let inherited = first.try_clone().unwrap();
        assert_eq!(first.lock_exclusive(), Ok(LockOutcome::Locked));
        let second = open();
        assert_eq!(second.lock_exclusive(), Ok(LockOutcome::InUse));
        assert_eq!(second.lock_shared(), Ok(LockOutcome::InUse));
        drop(first);
        assert_eq!(second.lock_exclusive(), Ok(LockOutcome::Locked));
        drop((second, inherited));
        let (reader, other_reader) = (open(), open());
        assert_eq!(reader.lock_shared(), Ok(LockOutcome::Locked));
        assert_eq!(other_reader.lock_shared(), Ok(LockOutcome::Locked));
        assert_eq!(open().lock_exclusive(), Ok(LockOutcome::InUse));
    }
}
