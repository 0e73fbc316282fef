//! A log in a file of any file system.
//!
//! Invariants:
//! * The file was written full of zeros and synced once, before its first use. Its blocks are allocated and marked as
//!   written, so that overwriting them changes no metadata of the file system below: one write is one flush of the
//!   device (measured by `make bench-flush`; blocks that were only preallocated cost a journal commit each).
//! * Two descriptors: `durable` writes with `O_DSYNC`, `plain` without. Both bypass the page cache where the file system
//!   can; where it cannot (an old tmpfs), they do not, and a durable write is a write and an `fdatasync`.
//! * On a copy-on-write file system (btrfs) the file is made with its copying switched off, where that is possible;
//!   elsewhere a flush costs more, and nothing else changes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use polymux_tier::{LockOutcome, LockableFile};
use rustix::fs::{FallocateFlags, IFlags, OFlags, ioctl_getflags, ioctl_setflags};

use super::medium::{BLOCK, BlockBuffer, LogMedium};

/// Zeros written at once while a file is being made.
const ZEROS_LENGTH: usize = 1024 * 1024;

/// Whether a file's writes bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caching {
    Direct,
    Buffered,
}

/// A [`LogMedium`] over a file.
pub(crate) struct BlockFile {
    plain: LockableFile,
    durable: File,
    length: u64,
    caching: Caching,
}

impl BlockFile {
    /// Makes a file of `length` bytes, whole blocks, all zero and durable. The directory entry becomes
    /// durable with the next sync of the directory, which is the caller's.
    pub(crate) fn create(path: &Path, length: u64) -> io::Result<Self> {
        assert!(length > 0 && length.is_multiple_of(BLOCK), "a log is whole blocks long");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        switch_copying_off(&file);
        // Reserved first, so that the blocks lie together; file systems that cannot reserve allocate as it is written.
        let _ = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length);
        let zeros = vec![0; ZEROS_LENGTH];
        let mut offset = 0;
        while offset < length {
            let piece = usize::try_from(length - offset).map_or(ZEROS_LENGTH, |rest| rest.min(ZEROS_LENGTH));
            file.write_all_at(&zeros[..piece], offset)?;
            offset += piece as u64;
        }
        file.sync_all()?;
        drop(file);
        Self::open(path)
    }

    /// Opens one for writing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        match Self::open_as(path, Caching::Direct) {
            Ok(file) if file.takes_writes_of_blocks() => Ok(file),
            _ => Self::open_as(path, Caching::Buffered),
        }
    }

    fn open_as(path: &Path, caching: Caching) -> io::Result<Self> {
        let direct = if caching == Caching::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let open = |flags: OFlags| -> io::Result<File> {
            let flags = i32::try_from(flags.bits()).expect("open flags fit");
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
        };
        let plain = LockableFile::new(open(direct)?);
        let durable = open(direct | OFlags::DSYNC)?;
        let length = plain.metadata()?.len();
        Ok(Self { plain, durable, length, caching })
    }

    /// Locks the file for this process; fails with `WouldBlock` where another one has it.
    pub(crate) fn lock(&self) -> io::Result<()> {
        match self.plain.lock_exclusive()? {
            LockOutcome::Locked => Ok(()),
            LockOutcome::InUse => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether direct I/O with our blocks works here; some file systems accept the flag and refuse the I/O.
    fn takes_writes_of_blocks(&self) -> bool {
        let mut block = BlockBuffer::new(4096);
        self.plain.read_exact_at(block.as_mut_slice(), 0).is_ok()
    }
}

impl LogMedium for BlockFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let block = 4096;
        let end = (offset + bytes.len() as u64).next_multiple_of(block).min(self.length);
        let start = offset - offset % block;
        let length = usize::try_from(end - start).map_err(io::Error::other)?;
        let mut buffer = BlockBuffer::new(length.next_multiple_of(4096));
        self.plain.read_exact_at(&mut buffer.as_mut_slice()[..length], start)?;
        let skipped = usize::try_from(offset - start).map_err(io::Error::other)?;
        bytes.copy_from_slice(&buffer.as_slice()[skipped..skipped + bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        self.plain.write_all_at(blocks, offset)
    }

    fn write_durable(&self, offset: u64, blocks: &[u8]) -> io::Result<()> {
        self.durable.write_all_at(blocks, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.plain.sync_data()
    }

    fn description(&self) -> String {
        match self.caching {
            Caching::Direct => "block device, direct".to_owned(),
            Caching::Buffered => "block device, through the page cache".to_owned(),
        }
    }
}

/// Asks a copy-on-write file system to overwrite this file in place. It has to be done while the file is empty; file
/// systems that do not know the flag refuse it, and then there is nothing to switch off.
fn switch_copying_off(file: &File) {
    if let Ok(flags) = ioctl_getflags(file) {
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_comes_back_from_any_offset() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let file = BlockFile::create(&path, 1024 * 1024).unwrap();
        let mut blocks = BlockBuffer::new(8192);
        blocks.as_mut_slice()[4000..4200].fill(7);
        file.write_durable(4096, blocks.as_slice()).unwrap();
        file.write(1024 * 1024 - 8192, blocks.as_slice()).unwrap();
        file.flush().unwrap();
        let file = BlockFile::open(&path).unwrap();
        assert_eq!(file.length(), 1024 * 1024);
        for offset in [4096 + 3999, 1024 * 1024 - 8192 + 3999] {
            let mut bytes = [0; 202];
            file.read(offset, &mut bytes).unwrap();
            assert_eq!((bytes[0], bytes[1], bytes[200], bytes[201]), (0, 7, 7, 0));
        }
    }

    #[test]
    fn a_file_that_is_there_already_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, b"mine").unwrap();
        assert!(BlockFile::create(&path, 1024 * 1024).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
