//! Ballast: room on the store's own file system that is kept for bad days (DESIGN section 5).
//!
//! What is true here:
//! * A file of allocated blocks holds the room. It is given back piece by piece where tables have to be written and the
//!   file system has nothing else, and taken again as soon as there is room.
//! * Operations that make metadata grow are refused while any of it is missing or nothing else is free
//!   ([`Room::Ballast`]); those that free room go on, because what they log has its place in the log already, and what
//!   they write to tables comes out of the ballast.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::error::StoreError;
use crate::store::Room;
use polymux_types::root_reserve::ext4_root_reserve;
use polymux_types::sync::{AtomicBool, Mutex, Ordering};

/// Room in bytes that has to be free beside the ballast before anything may grow,
const FREE_MIN: u64 = 4 * 1024 * 1024;
/// and on a small file system this part of it: less than what files leave free there, so that they never come to it by themselves.
const FREE_MIN_DIVISOR: u64 = 128;

/// What `statfs` calls ext4.
const EXT4_MAGIC: rustix::fs::FsWord = 0xef53;

/// The ballast is given back in pieces of this many bytes.
const PIECE: u64 = 1024 * 1024;

/// The reserved room of a store.
pub(crate) struct Ballast {
    directory: PathBuf,
    file: File,
    /// Bytes that it should hold.
    bytes: u64,
    /// Bytes that have to be free beside it before anything may grow.
    free_min: u64,
    /// Bytes that it holds.
    held: Mutex<u64>,
    short: AtomicBool,
    stuck: AtomicBool,
}

impl Ballast {
    /// Opens the ballast of a store, or makes it.
    pub(crate) fn open(path: &Path, bytes: u64) -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| StoreError::Io(format!("{}: {error}", path.display()));
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).mode(0o600).truncate(false).open(path).map_err(failed)?;
        let held = file.metadata().map_err(failed)?.len();
        let directory = path.parent().expect("the ballast lies in the directory of its store").to_owned();
        let space = rustix::fs::statvfs(&directory).map_err(|error| failed(error.into()))?;
        let free_min = FREE_MIN.min(space.f_blocks * space.f_frsize / FREE_MIN_DIVISOR);
        let ballast = Self {
            directory,
            file,
            bytes,
            free_min,
            held: Mutex::new(held),
            short: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
        };
        ballast.look()?;
        Ok(ballast)
    }

    /// Whether metadata may grow.
    pub(crate) fn room(&self) -> Room {
        if self.short.load(Ordering::Acquire) { Room::Ballast } else { Room::Plenty }
    }

    /// Whether the last attempt to write tables found no room at all.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    /// Bytes held, and bytes that should be.
    pub(crate) fn fill(&self) -> (u64, u64) {
        (*self.held.lock(), self.bytes)
    }

    /// Tables could not be written.
    pub(crate) fn note_full(&self) {
        self.stuck.store(true, Ordering::Release);
        self.short.store(true, Ordering::Release);
    }

    /// Looks at the file system: takes back what is missing where it can, and notes whether there is room.
    pub(crate) fn look(&self) -> Result<(), StoreError> {
        let file = &self.file;
        let mut held = self.held.lock();
        let free = self.free()?;
        let wanted = self.bytes.saturating_sub(*held);
        if wanted > 0 && free >= wanted + self.free_min {
            match grow(file, *held, self.bytes) {
                Ok(()) => *held = self.bytes,
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        let short = *held < self.bytes || free < self.free_min;
        if short && !self.short.swap(true, Ordering::AcqRel) {
            log::warn!("{}: no room for metadata beside the ballast; nothing may grow", self.directory.display());
        }
        if !short {
            self.short.store(false, Ordering::Release);
            self.stuck.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Sees to it that so many bytes are free, out of the ballast where need be. Returns whether they are.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<bool, StoreError> {
        let file = &self.file;
        let mut held = self.held.lock();
        let free = self.free()?;
        if free >= bytes {
            return Ok(true);
        }
        let given = (bytes - free).next_multiple_of(PIECE).min(*held);
        if given > 0 {
            self.short.store(true, Ordering::Release);
            log::warn!("{}: {given} bytes of the ballast are given up to write metadata", self.directory.display());
            file.set_len(*held - given).map_err(|error| self.failed(&error))?;
            *held -= given;
        }
        Ok(free + given >= bytes)
    }

    /// Bytes free for us on the file system: for root, what ext4 keeps for root as well, which programs cannot fill through files
    /// that are passed through (docs/design/0026).
    pub(crate) fn free(&self) -> Result<u64, StoreError> {
        let space = rustix::fs::statvfs(&self.directory).map_err(|error| self.failed(&error.into()))?;
        let available = space.f_bavail * space.f_frsize;
        if !rustix::process::geteuid().is_root() {
            return Ok(available);
        }
        let kind = rustix::fs::statfs(&self.directory).map_err(|error| self.failed(&error.into()))?.f_type;
        if kind != EXT4_MAGIC {
            return Ok(available);
        }
        let (total, free) = (space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize);
        Ok(available + ext4_root_reserve(total, free, available))
    }

    fn failed(&self, error: &std::io::Error) -> StoreError {
        StoreError::Io(format!("{}: the ballast: {error}", self.directory.display()))
    }
}

/// Allocates the blocks from `from` to `to`; with zeros where the file system cannot reserve.
fn grow(file: &File, from: u64, to: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), from, to - from) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        Err(error) => {
            let error = std::io::Error::from(error);
            file.set_len(from)?;
            return Err(error);
        }
    }
    let zeros = vec![0; usize::try_from(PIECE).expect("a piece fits into memory")];
    let mut at = from;
    while at < to {
        let length = usize::try_from((to - at).min(PIECE)).expect("a piece fits into memory");
        if let Err(error) = file.write_all_at(&zeros[..length], at) {
            file.set_len(from)?;
            return Err(error);
        }
        at += length as u64;
    }
    Ok(())
}
