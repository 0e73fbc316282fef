//! Ballast: space reserved on the store's own file system for when it runs full (DESIGN section 5).
//!
//! Invariants:
//! * A file of allocated blocks holds the space. It is released piece by piece when tables have to be written and the
//!   file system has no other free space, and reserved again as soon as there is free space.
//! * Operations that make metadata grow are refused while any of it is missing or nothing else is free
//!   ([`Room::Ballast`]); those that free space continue, because their log entries already have reserved space, and the tables
//!   that they cause are written out of the ballast.
//! * Where the file system counts its inodes, empty files (`spare.N`) hold some of them in the same way: each table is a file
//!   of its own. Metadata may grow while at least half of them are held, so that files are made on other tiers although this
//!   file system has no inode left. Where inodes alone are missing, tables are merged as always: that gives them back.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::error::StoreError;
use crate::store::Room;
use polymux_types::FileSystemSpace;
use polymux_types::file_system_space::inodes_left;
use polymux_types::sync::{AtomicBool, Mutex, Ordering};

/// Bytes that have to be free beside the ballast before metadata may grow, on a large file system.
const FREE_MIN: u64 = 4 * 1024 * 1024;
/// On a small file system, that minimum is its size divided by this: below the space that files leave free, so files alone never reach it.
const FREE_MIN_DIVISOR: u64 = 128;

/// The `statfs` magic of ext4.
const EXT4_MAGIC: rustix::fs::FsWord = 0xef53;

/// Files that hold an inode each.
pub(crate) const SPARES: u32 = 64;
/// Spare files that are kept for tables that removals cause.
const SPARES_KEPT: u32 = SPARES / 2;
/// Of the files kept for removals, the number that a merge of tables must leave to them.
const SPARES_KEPT_FROM_MERGES: u32 = SPARES_KEPT / 2;
/// Files that may be made while a memtable is written or tables are merged: some in each partition.
const INODES_PER_WRITE: u64 = 16;

/// The ballast is given back in pieces of this many bytes.
const PIECE: u64 = 1024 * 1024;

/// Inodes that are held, by the numbers of their files.
#[derive(Debug, Default)]
struct Spares {
    held: BTreeSet<u32>,
    wanted: u32,
}

/// The reserved space of a store.
pub(crate) struct Ballast {
    directory: PathBuf,
    file: File,
    /// Bytes that it should hold.
    bytes: u64,
    /// Bytes that have to be free beside it before anything may grow.
    free_min: u64,
    /// Bytes that it holds.
    held: Mutex<u64>,
    /// Names of files that hold an inode each; empty where the file system does not count its inodes.
    spares: Mutex<Spares>,
    /// Bytes are missing: of the ballast, or beside it.
    short_of_bytes: AtomicBool,
    /// Fewer spare inodes are held than [`SPARES_KEPT`].
    short_of_inodes: AtomicBool,
    stuck: AtomicBool,
    /// The merge of tables that is under way, or the last one that failed.
    merge: Mutex<Merge>,
}

/// The state known of merges of tables.
#[derive(Debug, Default)]
struct Merge {
    is_under_way: bool,
    /// Inodes that were given up for it and come back when it ends.
    inodes_given: u32,
    /// Bytes and inodes that there were when one failed for want of them, and looks since.
    failed_with: Option<(Available, u32)>,
}

/// Bytes that are free, and inodes that are free or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Available {
    bytes: u64,
    inodes: u64,
}

/// Looks at the file system, about one in a second, after which a merge is tried again although no more is available.
const LOOKS_UNTIL_NEXT_MERGE: u32 = 60;

/// Marks a merge of tables as running while it lives: space released for the merge is not reserved again.
pub(crate) struct Merging<'a>(&'a Ballast);

impl Merging<'_> {
    /// Whether spare inodes were given up for the merge.
    pub(crate) fn has_given_inodes(&self) -> bool {
        self.0.merge.lock().inodes_given > 0
    }
}

impl Drop for Merging<'_> {
    fn drop(&mut self) {
        let mut merge = self.0.merge.lock();
        (merge.is_under_way, merge.inodes_given) = (false, 0);
    }
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
        let free_min = FREE_MIN.min(FileSystemSpace::from(&space).total / FREE_MIN_DIVISOR);
        let wanted = if bytes > 0 && space.f_files > 0 { SPARES } else { 0 };
        let held_spares = (0..wanted).filter(|number| spare_path(&directory, *number).exists()).collect();
        let ballast = Self {
            spares: Mutex::new(Spares { held: held_spares, wanted }),
            directory,
            file,
            bytes,
            free_min,
            held: Mutex::new(held),
            short_of_bytes: AtomicBool::new(false),
            short_of_inodes: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            merge: Mutex::default(),
        };
        ballast.look()?;
        Ok(ballast)
    }

    /// Whether metadata may grow.
    pub(crate) fn room(&self) -> Room {
        let short = self.is_short_of_bytes() || self.short_of_inodes.load(Ordering::Acquire);
        if short { Room::Ballast } else { Room::Plenty }
    }

    /// Whether bytes are missing, of the ballast or beside it. Where inodes alone are missing, merging tables gives them back.
    pub(crate) fn is_short_of_bytes(&self) -> bool {
        self.short_of_bytes.load(Ordering::Acquire)
    }

    /// Whether anything is waiting for space: log entries, tables, or a merge.
    pub(crate) fn is_short(&self) -> bool {
        self.room() == Room::Ballast || self.is_stuck() || self.merge.lock().failed_with.is_some()
    }

    /// Whether the last attempt to write tables found no free space at all.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    /// Bytes held, and bytes that should be.
    pub(crate) fn fill(&self) -> (u64, u64) {
        (*self.held.lock(), self.bytes)
    }

    /// Tables could not be written, although all of the ballast was given up.
    pub(crate) fn note_full(&self) {
        self.stuck.store(true, Ordering::Release);
        self.short_of_bytes.store(true, Ordering::Release);
    }

    /// Tables were written.
    pub(crate) fn note_written(&self) {
        self.stuck.store(false, Ordering::Release);
    }

    /// Tables are merged from now on. By one thread at a time.
    pub(crate) fn begin_merging(&self) -> Merging<'_> {
        self.merge.lock().is_under_way = true;
        Merging(self)
    }

    /// A merge failed for lack of space: none is tried until there is more, or for about a minute.
    pub(crate) fn note_merge_failed(&self) -> Result<(), StoreError> {
        let available = self.available()?;
        self.merge.lock().failed_with = Some((available, 0));
        self.look()
    }

    /// Whether a merge may find space that the last one lacked.
    pub(crate) fn may_merge(&self) -> Result<bool, StoreError> {
        let Some((before, looks)) = self.merge.lock().failed_with else { return Ok(true) };
        let now = self.available()?;
        let is_due = looks >= LOOKS_UNTIL_NEXT_MERGE || now.bytes > before.bytes || now.inodes > before.inodes;
        if is_due {
            self.merge.lock().failed_with = None;
        }
        Ok(is_due)
    }

    fn available(&self) -> Result<Available, StoreError> {
        let space = rustix::fs::statvfs(&self.directory).map_err(|error| self.failed(&error.into()))?;
        Ok(Available {
            bytes: self.free()?,
            inodes: inodes_free(&space).saturating_add(u64::from(self.spare_inodes().0)),
        })
    }

    /// Inodes held, and how many should be.
    pub(crate) fn spare_inodes(&self) -> (u32, u32) {
        let spares = self.spares.lock();
        (u32::try_from(spares.held.len()).unwrap_or(u32::MAX), spares.wanted)
    }

    /// Looks at the file system: takes back missing bytes and inodes where it can, and notes whether there is free space.
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
        let short_of_bytes = *held < self.bytes || free < self.free_min;
        let short_of_inodes = self.look_at_inodes()?;
        let were_short = [
            self.short_of_bytes.swap(short_of_bytes, Ordering::AcqRel),
            self.short_of_inodes.swap(short_of_inodes, Ordering::AcqRel),
        ];
        if !short_of_bytes && !short_of_inodes {
            self.stuck.store(false, Ordering::Release);
        } else if were_short == [false, false] {
            log::warn!("{}: no room for metadata beside the ballast; nothing may grow", self.directory.display());
        }
        Ok(())
    }

    /// Takes back missing spare inodes while the file system has any. Returns whether too few are held. Inodes that were given
    /// to a merge are taken back, and count as missing, only after it.
    fn look_at_inodes(&self) -> Result<bool, StoreError> {
        let given = {
            let mut merge = self.merge.lock();
            if let Some((_, looks)) = &mut merge.failed_with {
                *looks = looks.saturating_add(1);
            }
            merge.is_under_way.then_some(merge.inodes_given)
        };
        if let Some(given) = given {
            let (held, wanted) = self.spare_inodes();
            return Ok(held.saturating_add(given) < SPARES_KEPT.min(wanted));
        }
        let mut spares = self.spares.lock();
        let missing: Vec<u32> = (0..spares.wanted).filter(|number| !spares.held.contains(number)).collect();
        for number in missing {
            match OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.spare(number)) {
                Ok(_) => spares.held.insert(number),
                Err(error) if is_full(&error) => break,
                Err(error) => return Err(self.failed(&error)),
            };
        }
        Ok((spares.held.len() as u64) < u64::from(SPARES_KEPT.min(spares.wanted)))
    }

    /// Ensures enough free inodes for a table and its accompanying files, releasing spare ones if necessary.
    pub(crate) fn make_inodes(&self) -> Result<(), StoreError> {
        self.make_inodes_beside(0).map(drop)
    }

    /// As [`make_inodes`](Self::make_inodes) for a merge of tables, which gives inodes back in the end, but must leave enough
    /// of the spare ones for tables that removals write meanwhile.
    pub(crate) fn make_inodes_for_merge(&self) -> Result<(), StoreError> {
        let given = self.make_inodes_beside(SPARES_KEPT_FROM_MERGES)?;
        self.merge.lock().inodes_given += given;
        Ok(())
    }

    /// Gives up spare inodes down to `kept` of them. Returns how many.
    fn make_inodes_beside(&self, kept: u32) -> Result<u32, StoreError> {
        let (held, wanted) = self.spare_inodes();
        if wanted == 0 {
            return Ok(0);
        }
        let space = rustix::fs::statvfs(&self.directory).map_err(|error| self.failed(&error.into()))?;
        let missing = INODES_PER_WRITE.saturating_sub(inodes_free(&space));
        let given = self.give_up_inodes(missing.min(u64::from(held.saturating_sub(kept))))?;
        Ok(u32::try_from(given).unwrap_or(u32::MAX))
    }

    fn spare(&self, number: u32) -> PathBuf {
        spare_path(&self.directory, number)
    }

    /// Sees to it that so many bytes are free, out of the ballast where need be. Returns whether they are.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<bool, StoreError> {
        self.make_inodes()?;
        let free = self.free()?;
        let given = if free < bytes { self.give_up_bytes(bytes - free)? } else { 0 };
        Ok(free + given >= bytes)
    }

    /// Gives up so many bytes, and inodes for a table, whatever is free: another program took the free space. Returns whether
    /// anything was left to give.
    pub(crate) fn give_up(&self, bytes: u64) -> Result<bool, StoreError> {
        let inodes = self.give_up_inodes(INODES_PER_WRITE)?;
        Ok(self.give_up_bytes(bytes)? > 0 || inodes > 0)
    }

    fn give_up_bytes(&self, bytes: u64) -> Result<u64, StoreError> {
        let mut held = self.held.lock();
        let given = bytes.next_multiple_of(PIECE).min(*held);
        if given > 0 {
            self.short_of_bytes.store(true, Ordering::Release);
            log::warn!("{}: {given} bytes of the ballast are given up to write metadata", self.directory.display());
            self.file.set_len(*held - given).map_err(|error| self.failed(&error))?;
            *held -= given;
        }
        Ok(given)
    }

    fn give_up_inodes(&self, count: u64) -> Result<u64, StoreError> {
        let mut spares = self.spares.lock();
        for given in 0..count {
            let Some(number) = spares.held.pop_last() else { return Ok(given) };
            std::fs::remove_file(self.spare(number)).map_err(|error| self.failed(&error))?;
        }
        Ok(count)
    }

    /// Bytes free for us on the file system: for root, including ext4's root reserve, which programs cannot fill through files
    /// that are passed through (docs/design/0026).
    pub(crate) fn free(&self) -> Result<u64, StoreError> {
        let space = rustix::fs::statvfs(&self.directory).map_err(|error| self.failed(&error.into()))?;
        let space = FileSystemSpace::from(&space);
        if !rustix::process::geteuid().is_root() {
            return Ok(space.available);
        }
        let kind = rustix::fs::statfs(&self.directory).map_err(|error| self.failed(&error.into()))?.f_type;
        if kind != EXT4_MAGIC {
            return Ok(space.available);
        }
        Ok(space.available + space.ext4_root_reserve())
    }

    fn failed(&self, error: &std::io::Error) -> StoreError {
        StoreError::of_write(&format!("{}: the ballast", self.directory.display()), error)
    }
}

/// Inodes that can still be made; `u64::MAX` where the file system does not count them.
fn inodes_free(stat: &rustix::fs::StatVfs) -> u64 {
    inodes_left(stat.f_ffree, stat.f_files)
}

fn spare_path(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("spare.{number}"))
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
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
