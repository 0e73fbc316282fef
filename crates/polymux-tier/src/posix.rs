//! The backend over a directory of a mounted file system.
//!
//! Invariants:
//! * A tier is locked exclusively while its [`PosixTier`] lives, whichever program opens it: daemon, fsck or rebuild.
//! * Every object has one shared descriptor at the most. One with unsynced bytes is never closed before an fdatasync
//!   through it, and a failed sync stays recorded for its object until a sync of that object reports it.
//! * A write marks its object unsynced before it is submitted; a sync clears the mark only if no write began since.
//! * With a capacity limit `used` is the sum of the space of the objects, as their file system counts it.
//! * No I/O on objects happens under a lock of the descriptor cache. Lock order: shard of the cache, then nothing.

mod cached;
mod capacity;
mod descriptors;
mod directory;
mod disks;
mod early;
mod extents;
mod for_programs;
mod holder;
mod holders;
mod labels;
mod loan;
mod measuring;
mod objects;
mod offload;
mod probe;
mod read_ahead;
mod stamp_format;
mod try_out;

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use polymux_types::ByteSize;
use rustix::fd::OwnedFd;
use rustix::io::ReadWriteFlags;

use crate::capabilities::Capabilities;
use crate::counters::Counters;
use crate::error::TierError;
use descriptors::DescriptorCache;
use for_programs::ForPrograms;
use holder::TierLock;
use loan::Loans;
use probe::ProbedCapabilities;

pub use disks::disks_of;
pub(crate) use stamp_format::on_disk_format as stamp_on_disk_format;

/// `RWF_DONTCACHE` of Linux 6.14 (include/uapi/linux/fs.h), which rustix has no name for: pages that a read brings into memory go with
/// it; those that were there stay.
const UNCACHED: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Name of Polymux's own directory on a tier.
pub const OWN_DIRECTORY: &str = ".polymux";

/// Whether a tier is opened to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAccess {
    /// Reads and writes.
    ReadWrite,
    /// Reads only: nothing on the tier changes.
    ReadOnly,
}

/// Source of the number of bytes that objects take when the tier is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesUsed {
    /// From the clean stamp of the label.
    FromLabel,
    /// By looking at every object.
    Scan,
}

/// Choices for opening a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PosixTierOptions {
    /// Name of the tier in messages.
    pub name: String,
    /// Most bytes that objects of the volume may take.
    pub capacity: Option<ByteSize>,
    /// Most descriptors of objects held open.
    pub descriptors_max: usize,
    /// Whether the tier may be changed.
    pub access: OpenAccess,
    /// How the used space is determined, where a capacity limit is set.
    pub bytes_used: BytesUsed,
}

impl PosixTierOptions {
    /// The defaults for a tier of this name: no limit, 4,096 descriptors, reads and writes, used space from the label.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            capacity: None,
            descriptors_max: 4096,
            access: OpenAccess::ReadWrite,
            bytes_used: BytesUsed::FromLabel,
        }
    }
}

/// A tier in a directory.
pub struct PosixTier {
    path: PathBuf,
    options: PosixTierOptions,
    /// `TIER/.polymux`.
    own_directory: OwnedFd,
    /// `TIER/.polymux/objects`.
    objects: OwnedFd,
    probed: ProbedCapabilities,
    descriptors: DescriptorCache,
    counters: Counters,
    /// Bytes that objects take; meaningful with a capacity limit only.
    bytes_used: AtomicU64,
    /// Bytes written since the tier as a whole was last synced, checked by a write that must not wait.
    bytes_unsynced: AtomicU64,
    /// One sync of the tier at a time: the kernel reports a failure to one caller only, which must have recorded it
    /// before another caller may believe that all is well.
    sync_all_turn: Mutex<()>,
    loans: Loans,
    for_programs: ForPrograms,
    /// Bytes that are read ahead by one request.
    read_ahead_piece: NonZeroU64,
    lock: TierLock,
}

impl PosixTier {
    /// Makes the directories of a tier that is to join a volume, locks it and probes its file system. It has no label
    /// yet: [`crate::Tier::write_label`] gives it one.
    ///
    /// # Errors
    /// Where the directory is a tier already, is in use, or cannot be written.
    pub fn prepare(path: &Path, options: PosixTierOptions) -> Result<Self, TierError> {
        directory::refuse_labelled(path)?;
        directory::make(path)?;
        Self::open_directory(path, options)
    }

    /// Opens a tier that has a label. Never formats and makes no directory: a missing label may be a file system that
    /// is not mounted.
    ///
    /// # Errors
    /// [`TierError::Label`] where there is no valid label, [`TierError::InUse`] where the tier is locked already.
    pub fn open(path: &Path, options: PosixTierOptions) -> Result<Self, TierError> {
        labels::require(path)?;
        let tier = Self::open_directory(path, options)?;
        if tier.options.access == OpenAccess::ReadWrite {
            // Data of a holder that was killed is in the page cache only, and this process does not know of it: a sync
            // of one of its objects would otherwise find nothing to do and wrongly report it durable.
            tier.sync_file_system().map_err(io_error("syncing what the last holder left"))?;
        }
        tier.find_bytes_used()?;
        Ok(tier)
    }

    /// Makes everything on the file system durable. In `syncfs` XFS writes all of it, and lets the device flush only where its log has
    /// something to write as well (fs/xfs/xfs_super.c, Linux 6.18): bytes that were overwritten in place may be in the device's cache alone
    /// afterwards. The sync of a file flushes in any case.
    fn sync_file_system(&self) -> rustix::io::Result<()> {
        rustix::fs::syncfs(&self.objects)?;
        self.lock.sync()
    }

    fn open_directory(path: &Path, options: PosixTierOptions) -> Result<Self, TierError> {
        let own_directory = directory::open(&path.join(OWN_DIRECTORY))?;
        let lock = TierLock::take(path, &own_directory, options.access)?;
        if options.access == OpenAccess::ReadWrite {
            // No other process measures: the tier is locked.
            measuring::remove_leftover(&own_directory)?;
        }
        let objects = directory::open(&path.join(OWN_DIRECTORY).join("objects"))?;
        let mut capabilities = probe::probe(&own_directory, options.access)?;
        capabilities.is_limited = options.capacity.is_some();
        if capabilities.is_assumed {
            log::warn!(
                "tier `{}`: its file system has no room for a file, and was not tried out: what every {} can do is assumed",
                options.name,
                capabilities.file_system
            );
        }
        let read_ahead_piece = read_ahead::piece_bytes(&objects);
        let descriptors_max = directory::descriptors_allowed(options.descriptors_max);
        let descriptors = DescriptorCache::new(descriptors_max);
        Ok(Self {
            path: path.to_owned(),
            options,
            own_directory,
            objects,
            probed: ProbedCapabilities::at_open(capabilities),
            descriptors,
            counters: Counters::default(),
            bytes_used: AtomicU64::new(0),
            bytes_unsynced: AtomicU64::new(0),
            sync_all_turn: Mutex::new(()),
            loans: Loans::up_to(descriptors_max / 2),
            for_programs: ForPrograms::default(),
            read_ahead_piece,
            lock,
        })
    }

    /// The directory given to the volume.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn require_writable(&self) -> Result<(), TierError> {
        match self.options.access {
            OpenAccess::ReadWrite => Ok(()),
            OpenAccess::ReadOnly => Err(TierError::ReadOnly),
        }
    }

    /// Name of the tier in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.options.name
    }
}

/// Probes the file system of a directory that need not be a tier, without leaving anything behind.
///
/// # Errors
/// Where the directory cannot be opened or written.
pub fn probe_directory(path: &Path) -> Result<Capabilities, TierError> {
    probe::probe(&directory::open(path)?, OpenAccess::ReadWrite)
}

/// Reads the label of a tier without locking it.
///
/// # Errors
/// [`TierError::Label`] where there is no valid label.
pub fn read_label_at(path: &Path) -> Result<crate::label::Label, TierError> {
    labels::require(path)
}

fn io_error(operation: &'static str) -> impl Fn(rustix::io::Errno) -> TierError {
    move |errno| {
        let errno = polymux_types::Errno::from_raw(errno.raw_os_error());
        match errno {
            polymux_types::Errno::ENOSPC => TierError::NoSpace,
            polymux_types::Errno::EDQUOT => TierError::Quota,
            polymux_types::Errno::EROFS => TierError::ReadOnly,
            errno => TierError::Io { operation, errno },
        }
    }
}
