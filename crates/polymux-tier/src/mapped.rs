//! Byte-addressable memory that survives a power failure, mapped from a file (A7, A8; DESIGN section 5).
//!
//! Invariants:
//! * A region is a regular file of fixed length, written full of zeros before its first use, mapped shared and locked for
//!   one process. Its words are atomic, so threads may touch it without a lock.
//! * A store is durable once [`MappedRegion::write_back`] of its bytes has returned, and perhaps earlier: a cache evicts
//!   lines when it likes, in any order, but never tears a word.
//! * [`RegionKind::Dax`] is believed only where the kernel maps the file with `MAP_SYNC`: no page cache is between the
//!   processor and the medium then, and no metadata of the file system is needed to find the bytes after a crash.
//! * [`RegionKind::TestDouble`] lives in memory (tmpfs, ramfs), survives the death of a process and nothing else, and has
//!   to be asked for by name. A file system on an ordinary disk is refused, whatever is asked for: there a line that
//!   left the processor's cache is in the page cache only.
//!
//! ```text
//!  store word ──► cache of the processor ──write_back (clwb, sfence)──► the medium
//! ```

#[cfg(not(shuttle))]
mod surviving;
mod write_back;

#[cfg(not(shuttle))]
pub use surviving::SharedMemory;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fstatfs};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use self::write_back::{LINE, WriteBack};
use crate::lockable_file::{LockOutcome, LockableFile};

/// Regions are whole pages of this many bytes.
pub const REGION_PAGE: u64 = 4096;

const WORD: usize = size_of::<AtomicU64>();

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Zeros written at once while a region is being made.
const ZEROS_LENGTH: usize = 1024 * 1024;

/// The kind of storage of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Persistent memory behind a file system with DAX.
    Dax,
    /// Ordinary memory in its place, for tests and measurements: nothing survives a power failure.
    TestDouble,
}

/// Why a file is not taken as a region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The file system keeps its bytes behind a page cache.
    #[error("{path}: not byte-addressable: {reason}")]
    NotByteAddressable {
        /// The file.
        path: String,
        /// The reason why it is refused.
        reason: &'static str,
    },
    /// It is not as long as it has to be.
    #[error("{path}: {found} bytes long, {expected} expected")]
    Length {
        /// The file.
        path: String,
        /// Its length in bytes.
        found: u64,
        /// The length asked for in bytes.
        expected: u64,
    },
    /// Another process has it.
    #[error("{0}: in use by another process")]
    InUse(String),
    /// A system call failed.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// Error of the system call.
        error: io::Error,
    },
}

/// Result of a [`probe`] of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// Files can be mapped without a page cache: a region may be kept there.
    Dax,
    /// Memory: good for a test double.
    Memory,
    /// Blocks behind a page cache.
    Blocks,
}

/// A mapped region.
pub struct MappedRegion {
    start: NonNull<AtomicU64>,
    length: usize,
    kind: RegionKind,
    write_back: WriteBack,
    delay_per_line: Duration,
    /// Keeps the lock.
    _file: LockableFile,
}

// SAFETY: the mapping belongs to the region and not to a thread, and is only handed out as atomic words.
unsafe impl Send for MappedRegion {}
// SAFETY: as above; every access of a word is atomic.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Makes the file of a region, `length` bytes of zeros, durable but for its directory entry, and opens it. A file that
    /// is there already is not touched.
    ///
    /// # Errors
    ///
    /// As [`MappedRegion::open`]; nothing is left behind then.
    pub fn create(path: &Path, length: u64, kind: RegionKind) -> Result<Self, RegionError> {
        assert!(length > 0 && length.is_multiple_of(REGION_PAGE), "a region is whole pages long");
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| failed(path, error))?;
        let made = write_zeros(&file, length).map_err(|error| failed(path, error));
        let region = made.and_then(|()| Self::open(path, length, kind));
        if region.is_err() {
            // It was made a moment ago, by us.
            let _ = std::fs::remove_file(path);
        }
        region
    }

    /// Maps the file of a region, which is `length` bytes long.
    ///
    /// # Errors
    ///
    /// [`RegionError::NotByteAddressable`] where the file system is not of the `kind`; otherwise as the names of
    /// [`RegionError`] say.
    pub fn open(path: &Path, length: u64, kind: RegionKind) -> Result<Self, RegionError> {
        assert!(length > 0 && length.is_multiple_of(REGION_PAGE), "a region is whole pages long");
        let file = OpenOptions::new().read(true).write(true).custom_flags(no_follow()).open(path);
        let file = file.map_err(|error| failed(path, error))?;
        Self::take(file, path, length, kind)
    }

    /// As [`Self::open`], for a file that is open for reading and writing.
    fn take(file: File, path: &Path, length: u64, kind: RegionKind) -> Result<Self, RegionError> {
        let file = LockableFile::new(file);
        let metadata = file.metadata().map_err(|error| failed(path, error))?;
        if !metadata.is_file() {
            return Err(refused(path, "not a regular file"));
        }
        match file.lock_exclusive().map_err(|errno| failed(path, errno.into()))? {
            LockOutcome::Locked => {}
            LockOutcome::InUse => return Err(RegionError::InUse(path.display().to_string())),
        }
        if metadata.len() != length {
            let path = path.display().to_string();
            return Err(RegionError::Length { path, found: metadata.len(), expected: length });
        }
        let in_memory = is_memory(&file).map_err(|error| failed(path, error))?;
        match (kind, in_memory) {
            (RegionKind::Dax, true) => {
                return Err(refused(path, "a file system in memory, which is taken only as a test double"));
            }
            (RegionKind::TestDouble, false) => return Err(refused(path, "a test double is kept in memory (tmpfs)")),
            (RegionKind::Dax, false) | (RegionKind::TestDouble, true) => {}
        }
        let length = usize::try_from(length).map_err(|_| failed(path, Errno::FBIG.into()))?;
        let start = map(&file, length, kind).map_err(|errno| match errno {
            Errno::OPNOTSUPP | Errno::INVAL if kind == RegionKind::Dax => refused(path, "its file system has no DAX"),
            errno => failed(path, errno.into()),
        })?;
        let write_back = match kind {
            RegionKind::Dax => WriteBack::detect(),
            RegionKind::TestDouble => WriteBack::Nothing,
        };
        Ok(Self { start, length, kind, write_back, delay_per_line: Duration::ZERO, _file: file })
    }

    /// Adds so much time for each line of 64 bytes written back: how a slower medium behaves (A15).
    #[must_use]
    pub fn with_delay_per_line(mut self, delay: Duration) -> Self {
        self.delay_per_line = delay;
        self
    }

    /// Its words, each eight bytes in the order of the processor.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is the beginning of a mapping of `length` bytes that lives as long as `self`; pages are aligned
        // for words, any bytes are a valid word, and no code makes references other than to atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length / WORD) }
    }

    /// Makes the stores to a range of bytes durable, with all lines that the range touches. Later stores are not
    /// written back before it.
    ///
    /// # Errors
    ///
    /// Where the system refuses; which bytes are durable is not known then.
    ///
    /// # Panics
    ///
    /// Where the range is not within the region.
    pub fn write_back(&self, bytes: Range<usize>) -> io::Result<()> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.length, "only the region itself is written back");
        if bytes.is_empty() {
            return Ok(());
        }
        let first = bytes.start - bytes.start % LINE;
        let lines = (bytes.end - first).div_ceil(LINE);
        // SAFETY: the lines from `first` on begin within the mapping and, because it is whole pages long, end within it.
        unsafe { self.write_back.lines(self.start.as_ptr().cast::<u8>().add(first), lines)? };
        if !self.delay_per_line.is_zero() {
            let delay = self.delay_per_line * u32::try_from(lines).unwrap_or(u32::MAX);
            let begun = Instant::now();
            // The processor would stall for that long too, and sleep nowhere.
            while begun.elapsed() < delay {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// The kind of storage of the region.
    #[must_use]
    pub fn kind(&self) -> RegionKind {
        self.kind
    }

    /// The kind of storage of the region, for people.
    #[must_use]
    pub fn description(&self) -> String {
        match self.kind {
            RegionKind::Dax => format!("byte-addressable, DAX, {}", self.write_back.name()),
            RegionKind::TestDouble => {
                "byte-addressable, TEST DOUBLE on tmpfs: nothing survives a power failure".to_owned()
            }
        }
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made by `map`, and no reference into it outlives `self`.
        let outcome = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        if let Err(error) = outcome {
            log::error!("a region could not be unmapped: {error}");
        }
    }
}

/// How files in a directory can be addressed. Makes a file without a name there for a moment.
///
/// # Errors
///
/// Where no file can be made in it.
pub fn probe(directory: &Path) -> io::Result<Addressing> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(temporary()).mode(0o600).open(directory)?;
    if is_memory(&file)? {
        return Ok(Addressing::Memory);
    }
    write_zeros(&file, REGION_PAGE)?;
    let length = usize::try_from(REGION_PAGE).map_err(io::Error::other)?;
    match map(&file, length, RegionKind::Dax) {
        Ok(start) => {
            // SAFETY: no other code knows of this mapping.
            unsafe { munmap(start.as_ptr().cast(), length)? };
            Ok(Addressing::Dax)
        }
        Err(_) => Ok(Addressing::Blocks),
    }
}

fn map(file: &File, length: usize, kind: RegionKind) -> Result<NonNull<AtomicU64>, Errno> {
    let flags = match kind {
        RegionKind::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
        RegionKind::TestDouble => MapFlags::SHARED,
    };
    // SAFETY: a new mapping at an address that the kernel chooses; it replaces nothing.
    let start = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0)? };
    NonNull::new(start.cast()).ok_or(Errno::NOMEM)
}

fn is_memory(file: &File) -> io::Result<bool> {
    // The type of the field differs between architectures; the numbers have 32 bits everywhere.
    let found = u64::try_from(fstatfs(file)?.f_type).unwrap_or_default() & u64::from(u32::MAX);
    Ok(matches!(found, TMPFS_MAGIC | RAMFS_MAGIC))
}

/// Zeros are written, not only reserved: nothing has to be allocated later, when a store would do it.
fn write_zeros(file: &File, length: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_LENGTH];
    let mut offset = 0;
    while offset < length {
        let piece = usize::try_from(length - offset).map_or(ZEROS_LENGTH, |rest| rest.min(ZEROS_LENGTH));
        file.write_all_at(&zeros[..piece], offset)?;
        offset += piece as u64;
    }
    file.sync_all()
}

fn no_follow() -> i32 {
    i32::try_from((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits()).expect("open flags fit")
}

fn temporary() -> i32 {
    i32::try_from((OFlags::TMPFILE | OFlags::CLOEXEC).bits()).expect("open flags fit")
}

fn refused(path: &Path, reason: &'static str) -> RegionError {
    RegionError::NotByteAddressable { path: path.display().to_string(), reason }
}

fn failed(path: &Path, error: io::Error) -> RegionError {
    RegionError::Io { path: path.display().to_string(), error }
}

#[cfg(test)]
mod tests;
