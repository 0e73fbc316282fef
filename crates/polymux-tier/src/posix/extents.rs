//! Which blocks of an object have space on the device, whether they were written or only reserved (`FS_IOC_FIEMAP`,
//! Documentation/filesystems/fiemap.rst of the kernel).
//!
//! Invariants: a block counts only where a write needs no other one. So blocks that the object shares with another file, which a write
//! would replace, do not count; blocks with delayed allocation do. On a file system that does not report extents, such as tmpfs, no
//! block counts.

use std::ops::Range;

use rustix::fd::{AsRawFd, OwnedFd};

use super::PosixTier;
use crate::error::TierError;
use crate::object::ObjectRef;
use crate::tier::Tier;

/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: u64 = 0xc020_660b;

/// `XFS_IOC_FREE_EOFBLOCKS`: `_IOR('X', 58, struct xfs_fs_eofblocks)`.
const XFS_IOC_FREE_EOFBLOCKS: u64 = 0x8080_583a;

/// Of `eof_flags` (`XFS_EOF_FLAGS_SYNC`): also of objects whose last bytes are not on the device yet.
const WAITS: u32 = 1;

/// `struct xfs_fs_eofblocks` of the kernel (fs/xfs/libxfs/xfs_fs.h).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FreeBehindEnds {
    version: u32,
    flags: u32,
    user: u32,
    group: u32,
    project: u32,
    padding: u32,
    size_min: u64,
    reserved: [u64; 12],
}

/// Of `fe_flags`: blocks that another file has, too.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

/// Extents that are asked for at once.
const EXTENTS: usize = 32;

/// `struct fiemap_extent` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved_64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` of the kernel, with its array of extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

/// Extents from `start` on, in order; `None` where the file system does not tell.
fn extents_from(descriptor: &OwnedFd, start: u64, length: u64) -> Option<Vec<FiemapExtent>> {
    let extent_count = u32::try_from(EXTENTS).ok()?;
    let extents = [FiemapExtent::default(); EXTENTS];
    let mut map = Fiemap { start, length, flags: 0, mapped_extents: 0, extent_count, reserved: 0, extents };
    // SAFETY: the struct has the layout that the kernel reads and writes, with space for as many extents as it says, and outlives the
    // call; the descriptor is open for as long as the reference lives.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), FS_IOC_FIEMAP as _, std::ptr::from_mut(&mut map)) };
    let found = usize::try_from(map.mapped_extents).ok()?.min(EXTENTS);
    (result == 0).then(|| map.extents[..found].to_vec())
}

/// The first contiguous blocks of a range that have space on the device.
fn allocated(descriptor: &OwnedFd, start: u64, end: u64) -> Option<Range<u64>> {
    let mut found: Option<Range<u64>> = None;
    let mut position = start;
    while position < end {
        let extents = extents_from(descriptor, position, end - position)?;
        let Some(last) = extents.last() else { break };
        position = last.logical.saturating_add(last.length).max(position + 1);
        for extent in extents {
            let blocks = extent.logical.max(start)..extent.logical.saturating_add(extent.length).min(end);
            let is_own = extent.flags & FIEMAP_EXTENT_SHARED == 0 && !blocks.is_empty();
            match &mut found {
                Some(found) if !is_own || blocks.start > found.end => return Some(found.clone()),
                Some(found) => found.end = found.end.max(blocks.end),
                None if is_own => found = Some(blocks),
                None => {}
            }
        }
        // Nothing follows in the range, and the next look would say so.
        if found.as_ref().is_some_and(|found| found.end < position.min(end)) {
            break;
        }
    }
    found
}

impl PosixTier {
    /// See [`crate::Tier::give_back_room_ahead`]. XFS frees these blocks by itself minutes after the last write, and before it refuses a write; its
    /// free space does not count them.
    pub(super) fn free_blocks_behind_ends(&self, directory: &impl AsRawFd) {
        if !self.capabilities().allocates_ahead {
            return;
        }
        let mut wish = FreeBehindEnds { version: 1, flags: WAITS, ..FreeBehindEnds::default() };
        // SAFETY: the struct has the layout and the length that the command reads, and outlives the call; the descriptor is open for as
        // long as the reference lives.
        let result =
            unsafe { libc::ioctl(directory.as_raw_fd(), XFS_IOC_FREE_EOFBLOCKS as _, std::ptr::from_mut(&mut wish)) };
        if result != 0 {
            // Without root it may not be asked for.
            log::debug!("room that XFS took ahead stays: {}", std::io::Error::last_os_error());
        }
    }

    /// See [`crate::Tier::allocated`].
    pub(super) fn allocated_blocks(
        &self,
        object: ObjectRef,
        start: u64,
        end: u64,
    ) -> Result<Option<Range<u64>>, TierError> {
        Ok(allocated(&self.object(object)?.descriptor, start, end))
    }
}
