//! Capabilities of the file system below: its name from `statfs`, everything else by trying it on a scratch file.
//!
//! A full file system takes no scratch file, and a volume must mount all the same. The facts that hold for all file systems of its
//! name are assumed then, until an object was made ([`PosixTier::probe_once_there_is_room`]); for other names nothing is assumed.

use std::io::{IoSlice, IoSliceMut};
use std::sync::OnceLock;

use parking_lot::Mutex;
use polymux_types::limits::{BLOCK_SIZE, FILE_SIZE_MAX};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::ReadWriteFlags;

use super::objects::seek_in;
use super::{OpenAccess, PosixTier, disks, io_error};
use crate::capabilities::{Capabilities, Guarantee, OverwriteStyle};
use crate::error::TierError;
use crate::object::SeekTarget;
use crate::tier::Tier;

const SCRATCH: &str = "probe";
/// Where the scratch file has its only data, far enough for a hole before it.
const FAR: u64 = 1024 * 1024;
/// [`BLOCK_SIZE`] as a length in memory.
#[allow(clippy::cast_possible_truncation, reason = "four KiB fit everywhere")]
const BLOCK: usize = BLOCK_SIZE as usize;

/// Magic numbers of `statfs(2)`, names, guarantees and overwrite styles.
const KNOWN: [(u64, &str, Guarantee, OverwriteStyle); 16] = [
    (0xef53, "ext4", Guarantee::Durable, OverwriteStyle::InPlace),
    (0x5846_5342, "xfs", Guarantee::Durable, OverwriteStyle::InPlace),
    (0x9123_683e, "btrfs", Guarantee::Durable, OverwriteStyle::CopyOnWrite),
    (0xf2f5_2010, "f2fs", Guarantee::Durable, OverwriteStyle::CopyOnWrite),
    (0x2fc1_2fc1, "zfs", Guarantee::Durable, OverwriteStyle::CopyOnWrite),
    (0xca45_1a4e, "bcachefs", Guarantee::Durable, OverwriteStyle::CopyOnWrite),
    (0x0102_1994, "tmpfs", Guarantee::Volatile, OverwriteStyle::InPlace),
    (0x8584_58f6, "ramfs", Guarantee::Volatile, OverwriteStyle::InPlace),
    (0x6969, "nfs", Guarantee::Remote, OverwriteStyle::Unknown),
    (0xff53_4d42, "cifs", Guarantee::Remote, OverwriteStyle::Unknown),
    (0xfe53_4d42, "smb2", Guarantee::Remote, OverwriteStyle::Unknown),
    (0x6573_5546, "fuse", Guarantee::Remote, OverwriteStyle::Unknown),
    (0x794c_7630, "overlayfs", Guarantee::Durable, OverwriteStyle::Unknown),
    (0x4d44, "vfat", Guarantee::Durable, OverwriteStyle::InPlace),
    (0x2011_bab0, "exfat", Guarantee::Durable, OverwriteStyle::InPlace),
    (0x5346_544e, "ntfs", Guarantee::Durable, OverwriteStyle::Unknown),
];

/// Probes the file system of a directory; leaves nothing behind.
pub(super) fn probe(directory: &OwnedFd, access: OpenAccess) -> Result<Capabilities, TierError> {
    let fs = rustix::fs::fstatfs(directory).map_err(io_error("asking what file system the tier is on"))?;
    let stat = rustix::fs::fstat(directory).map_err(io_error("looking at the tier's directory"))?;
    let magic = u64::try_from(fs.f_type).unwrap_or(0) & 0xffff_ffff;
    let known = KNOWN.iter().find(|(of, ..)| *of == magic);
    let (name, guarantee, overwrite) = match known {
        Some((_, name, guarantee, overwrite)) => ((*name).to_owned(), *guarantee, *overwrite),
        None => (format!("unknown ({magic:#x})"), Guarantee::Remote, OverwriteStyle::Unknown),
    };
    let allocates_ahead = name == "xfs";
    let mut capabilities = Capabilities {
        file_system: name,
        guarantee,
        sparse: true,
        punch_hole: true,
        preallocate: true,
        allocates_ahead,
        seek_data: true,
        extended_attributes: true,
        nowait_read: false,
        uncached_read: false,
        nowait_write: false,
        file_size_max: FILE_SIZE_MAX,
        block_size: u32::try_from(stat.st_blksize).unwrap_or(4096),
        timestamp_granularity_ns: 1,
        overwrite,
        is_limited: false,
        is_assumed: false,
        rotation: disks::rotation_of(stat.st_dev),
        device: stat.st_dev,
    };
    if access == OpenAccess::ReadWrite {
        match Scratch::make(directory).and_then(|scratch| scratch.probe(&mut capabilities)) {
            Ok(()) => {}
            Err(error) if error.is_out_of_room() => assume(&mut capabilities, error)?,
            Err(error) => return Err(error),
        }
    }
    Ok(capabilities)
}

/// Sets the facts that hold for a file system by its name, where there is no space to try it.
///
/// # Errors
/// Why it could not be tried, where the name does not tell enough.
fn assume(capabilities: &mut Capabilities, why: TierError) -> Result<(), TierError> {
    let file_size_max = match capabilities.file_system.as_str() {
        // Block numbers within a file have 32 bits.
        "ext4" => u64::from(u32::MAX) * u64::from(capabilities.block_size.min(4096)),
        // 923 indirect blocks and three levels of them, with blocks of 4 KiB.
        "f2fs" => 3 << 40,
        "xfs" | "btrfs" | "bcachefs" | "tmpfs" => FILE_SIZE_MAX,
        _ => return Err(why),
    };
    *capabilities = Capabilities {
        sparse: true,
        punch_hole: true,
        preallocate: true,
        seek_data: true,
        // A tmpfs has them as its kernel was built.
        extended_attributes: capabilities.file_system != "tmpfs",
        nowait_read: false,
        uncached_read: false,
        nowait_write: false,
        file_size_max: file_size_max.min(FILE_SIZE_MAX),
        // Inodes of 128 bytes keep seconds.
        timestamp_granularity_ns: if capabilities.file_system == "ext4" { 1_000_000_000 } else { 1 },
        is_assumed: true,
        ..capabilities.clone()
    };
    Ok(())
}

/// Capabilities of a file system, as probing found them.
pub(super) struct ProbedCapabilities {
    at_open: Capabilities,
    /// Found since, where they had to be assumed when the tier was opened.
    later: OnceLock<Capabilities>,
    /// One thread probes at a time; a second one would find the answer, or the file of the first.
    turn: Mutex<()>,
}

impl ProbedCapabilities {
    pub(super) fn at_open(found: Capabilities) -> Self {
        Self { at_open: found, later: OnceLock::new(), turn: Mutex::new(()) }
    }

    /// The last ones found.
    pub(super) fn current(&self) -> &Capabilities {
        self.later.get().unwrap_or(&self.at_open)
    }
}

impl PosixTier {
    /// Tries a file system of which only the name is known, when a file could be created just now.
    pub(super) fn probe_once_there_is_room(&self) {
        if !self.capabilities().is_assumed {
            return;
        }
        let Some(_turn) = self.probed.turn.try_lock() else { return };
        match probe(&self.own_directory, self.options.access) {
            Ok(probed) if !probed.is_assumed => {
                let probed = Capabilities { is_limited: self.options.capacity.is_some(), ..probed };
                log::warn!("tier `{}`: its file system has room again and was tried out", self.options.name);
                // Only the holder of the turn sets it, once.
                let _ = self.probed.later.set(probed);
            }
            Ok(_) => {}
            Err(error) => log::debug!("tier `{}` cannot be tried out yet: {error}", self.options.name),
        }
    }
}

/// Whether the file system is known to be on a device of this host.
pub(super) fn is_local(directory: &OwnedFd) -> bool {
    let magic = rustix::fs::fstatfs(directory).map_or(0, |fs| u64::try_from(fs.f_type).unwrap_or(0) & 0xffff_ffff);
    KNOWN.iter().any(|(of, _, guarantee, _)| *of == magic && *guarantee != Guarantee::Remote)
}

/// A file that is removed when this goes.
struct Scratch<'a> {
    directory: &'a OwnedFd,
    file: OwnedFd,
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Err(errno) = rustix::fs::unlinkat(self.directory, SCRATCH, AtFlags::empty()) {
            log::warn!("the scratch file of the probe stays on the tier: {errno}");
        }
    }
}

impl<'a> Scratch<'a> {
    fn make(directory: &'a OwnedFd) -> Result<Self, TierError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(directory, SCRATCH, flags, Mode::RUSR | Mode::WUSR)
            .map_err(io_error("trying the tier's file system"))?;
        Ok(Self { directory, file })
    }

    fn allocated(&self) -> u64 {
        rustix::fs::fstat(&self.file).map_or(0, |stat| super::capacity::allocated_of(&stat))
    }

    fn probe(&self, capabilities: &mut Capabilities) -> Result<(), TierError> {
        let block = [0x5a_u8; BLOCK];
        rustix::io::pwrite(&self.file, &block, FAR).map_err(io_error("trying the tier's file system"))?;
        // Allocation may be delayed until the bytes are written out.
        rustix::fs::fsync(&self.file).map_err(io_error("trying the tier's file system"))?;
        capabilities.sparse = self.allocated() < FAR;
        capabilities.seek_data = matches!(seek_in(&self.file, 0, SeekTarget::Data), Ok(Some(data)) if data > 0);
        capabilities.nowait_read = self.can_read(ReadWriteFlags::NOWAIT);
        capabilities.uncached_read = self.can_read(super::UNCACHED);
        capabilities.nowait_write = self.try_nowait_write(&block);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        capabilities.punch_hole = rustix::fs::fallocate(&self.file, punch, FAR, BLOCK_SIZE).is_ok();
        capabilities.preallocate =
            rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, FAR, BLOCK_SIZE).is_ok();
        capabilities.allocates_ahead &= capabilities.preallocate;
        capabilities.extended_attributes =
            rustix::fs::fsetxattr(&self.file, "user.polymux", b"probe", XattrFlags::empty()).is_ok();
        capabilities.timestamp_granularity_ns = self.timestamp_granularity();
        capabilities.file_size_max = self.file_size_max();
        Ok(())
    }

    fn can_read(&self, flags: ReadWriteFlags) -> bool {
        let mut byte = [0_u8];
        let read = rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(&mut byte)], FAR, flags);
        matches!(read, Ok(_) | Err(rustix::io::Errno::AGAIN))
    }

    fn try_nowait_write(&self, block: &[u8]) -> bool {
        rustix::io::pwritev2(&self.file, &[IoSlice::new(block)], FAR, ReadWriteFlags::NOWAIT).is_ok()
    }

    fn timestamp_granularity(&self) -> u64 {
        let odd = Timespec { tv_sec: 1_000_000_001, tv_nsec: 123_456_789 };
        let set = rustix::fs::futimens(&self.file, &Timestamps { last_access: odd, last_modification: odd });
        let Ok(stat) = set.and_then(|()| rustix::fs::fstat(&self.file)) else { return 1_000_000_000 };
        if stat.st_mtime != odd.tv_sec {
            return 2_000_000_000;
        }
        let nanoseconds = stat.st_mtime_nsec;
        [1, 10, 100, 1_000, 1_000_000]
            .into_iter()
            .find(|unit| 123_456_789 / unit * unit == nanoseconds)
            .unwrap_or(1_000_000_000)
    }

    /// The largest size that a file can be given, to within a factor of two below the true limit.
    fn file_size_max(&self) -> u64 {
        if rustix::fs::ftruncate(&self.file, FILE_SIZE_MAX).is_ok() {
            return FILE_SIZE_MAX;
        }
        let (mut possible, mut refused) = (FAR, FILE_SIZE_MAX);
        while refused - possible > BLOCK_SIZE {
            let middle = possible + (refused - possible) / 2;
            if rustix::fs::ftruncate(&self.file, middle).is_ok() {
                possible = middle;
            } else {
                refused = middle;
            }
        }
        possible
    }
}
