//! Conversions between values of the kernel's protocol and those of `polymux-fs`. Everything here is pure.

use std::time::Duration;

use crate::write_back::WriteBack;
use polymux_fs::{
    AllocateKind, Attributes, FileKind, NodeKind, OpenOptions, RenameMode, SeekTarget, SetTime, VolumeSpace,
    WriteOrigin, XattrMode,
};
use polymux_transport::wire::{Attr, Space, WriteFlags};
use polymux_types::limits::{BLOCK_SIZE, NAME_LENGTH_MAX};
use polymux_types::{Errno, Ino, Timestamp};

/// The flag by which the kernel says that a file is opened to be executed (`__FMODE_EXEC`).
const OPENED_TO_EXECUTE: i32 = 0x20;

/// Permission bits of a mode, set-id and sticky bits included.
pub(crate) const PERMISSION_BITS: u32 = 0o7777;

/// The generation of an inode. Constant, because inode numbers are never reused; the kernel insists on 0 for the root.
pub(crate) fn generation_of(ino: u64) -> u64 {
    u64::from(ino != Ino::ROOT.get())
}

/// The kernel's encoding of a device number (`new_encode_dev`) for a device number of the C library.
pub(crate) fn encode_device(device: u64) -> u32 {
    let (major, minor) = (libc::major(device), libc::minor(device));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// The device number of the C library for the kernel's encoding (`new_decode_dev`).
pub(crate) fn decode_device(encoded: u32) -> u64 {
    let major = (encoded & 0xf_ff00) >> 8;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00);
    libc::makedev(major, minor)
}

/// The time that the kernel sent; none is the present moment.
pub(crate) fn set_time(time: Option<Timestamp>) -> SetTime {
    time.map_or(SetTime::Now, SetTime::To)
}

fn block_size() -> u32 {
    u32::try_from(BLOCK_SIZE).expect("a block is small")
}

pub(crate) fn attr(attributes: &Attributes) -> Attr {
    Attr {
        ino: attributes.ino.get(),
        size: attributes.size,
        blocks: attributes.blocks,
        accessed: attributes.accessed,
        modified: attributes.modified,
        changed: attributes.changed,
        born: attributes.born,
        mode: attributes.kind.type_bits() | (attributes.permissions & PERMISSION_BITS),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: encode_device(attributes.device),
        block_size: block_size(),
    }
}

pub(crate) fn space(space: &VolumeSpace) -> Space {
    Space {
        blocks: [space.total / BLOCK_SIZE, space.free / BLOCK_SIZE, space.available / BLOCK_SIZE],
        files: [space.files_total, space.files_free],
        block_size: block_size(),
        name_length_max: u32::try_from(NAME_LENGTH_MAX).expect("a name is short"),
    }
}

/// The node that `mknod(2)` asks for. Directories and links have calls of their own.
pub(crate) fn node_kind(mode: u32, rdev: u32) -> Result<NodeKind, Errno> {
    match FileKind::from_type_bits(mode) {
        Some(FileKind::Regular) => Ok(NodeKind::Regular),
        Some(FileKind::Fifo) => Ok(NodeKind::Fifo),
        Some(FileKind::Socket) => Ok(NodeKind::Socket),
        Some(FileKind::CharacterDevice) => Ok(NodeKind::CharacterDevice(decode_device(rdev))),
        Some(FileKind::BlockDevice) => Ok(NodeKind::BlockDevice(decode_device(rdev))),
        Some(FileKind::Directory | FileKind::Symlink) | None => Err(Errno::EINVAL),
    }
}

/// How a file is opened. `O_APPEND` is left out: the kernel computes the offset of each append while it holds the
/// inode, and write-back of mapped pages through the same handle must keep its own offsets.
pub(crate) fn open_options(flags: i32) -> OpenOptions {
    let access = flags & libc::O_ACCMODE;
    OpenOptions {
        read: access == libc::O_RDONLY || access == libc::O_RDWR,
        write: access == libc::O_WRONLY || access == libc::O_RDWR,
        append: false,
        positions_appends: flags & libc::O_APPEND != 0,
        truncate: flags & libc::O_TRUNC != 0,
        exclusive: flags & libc::O_EXCL != 0,
        synchronous: flags & libc::O_DSYNC != 0,
        execute: flags & OPENED_TO_EXECUTE != 0,
    }
}

/// Where written bytes come from, and whether they are to be durable at once. The status flags are those of the description
/// at the moment of the write, with the flags of the single write (`RWF_DSYNC`, `RWF_SYNC`) added: where the page cache is
/// not used, the kernel sends no `FSYNC` after such a write (`fuse_direct_write_iter` in fs/fuse/file.c).
pub(crate) fn write_origin(flags: WriteFlags, status_flags: i32, write_back: WriteBack) -> WriteOrigin {
    match (flags.is_from_cache(), write_back, status_flags & libc::O_DSYNC != 0) {
        (true, WriteBack::Off, _) => WriteOrigin::PageCache,
        (true, WriteBack::On, _) => WriteOrigin::WriteBack,
        (false, _, true) => WriteOrigin::DurableCall,
        (false, _, false) => WriteOrigin::Call,
    }
}

/// Whether a write goes past the page cache (`O_DIRECT`), by the status flags of its description at that moment.
pub(crate) fn is_direct(status_flags: i32) -> bool {
    status_flags & libc::O_DIRECT != 0
}

pub(crate) fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    const WHITEOUT_NOREPLACE: u32 = libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE;
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(RenameMode::Whiteout),
        WHITEOUT_NOREPLACE => Ok(RenameMode::WhiteoutNoReplace),
        _ => Err(Errno::EINVAL),
    }
}

pub(crate) fn xattr_mode(flags: i32) -> Result<XattrMode, Errno> {
    match flags {
        0 => Ok(XattrMode::CreateOrReplace),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::EINVAL),
    }
}

/// The form of `fallocate(2)`. Collapsing, inserting and unsharing ranges is not offered: an offset of a file is the
/// same on every tier (M7), so that shifting bytes would mean copying all that follows.
pub(crate) fn allocate_kind(mode: i32) -> Result<AllocateKind, Errno> {
    const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE;
    const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_RANGE_KEEP_SIZE: i32 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 => Ok(AllocateKind::Extend),
        KEEP_SIZE => Ok(AllocateKind::KeepSize),
        PUNCH_HOLE => Ok(AllocateKind::PunchHole),
        ZERO_RANGE => Ok(AllocateKind::ZeroRange),
        ZERO_RANGE_KEEP_SIZE => Ok(AllocateKind::ZeroRangeKeepSize),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

pub(crate) fn seek_target(whence: i32) -> Result<SeekTarget, Errno> {
    match whence {
        libc::SEEK_DATA => Ok(SeekTarget::Data),
        libc::SEEK_HOLE => Ok(SeekTarget::Hole),
        _ => Err(Errno::EINVAL),
    }
}

/// How long the kernel may keep names and attributes: every change passes through this
/// mount, so only memory pressure needs to end it. Long, because once it has passed the kernel asks for each file by itself, although it keeps the
/// listing of their directory.
pub(crate) const KEEP: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long it may keep the fact that there is no such name. A program that is killed while a daemon takes the mount over may have made it without the
/// kernel's knowledge.
pub(crate) const KEEP_MISSING: Duration = Duration::from_secs(3600);
/// How long it may keep attributes that give rights, which the daemon may take away without a message of the kernel (docs/design/0024).
pub(crate) const KEEP_RIGHTS: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_both_ways_also_beyond_eight_bits() {
        for (major, minor) in [(0, 0), (8, 1), (259, 3), (255, 255), (4095, 1_048_575), (1, 256), (300, 70_000)] {
            let device = libc::makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device, "{major}:{minor}");
        }
        assert_eq!(encode_device(libc::makedev(8, 1)), 0x801);
    }

    #[test]
    fn only_the_forms_of_fallocate_that_need_no_shifting_are_offered() {
        assert_eq!(allocate_kind(0), Ok(AllocateKind::Extend));
        assert_eq!(allocate_kind(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE), Ok(AllocateKind::PunchHole));
        for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE] {
            assert_eq!(allocate_kind(mode), Err(Errno::EOPNOTSUPP));
        }
        assert_eq!(allocate_kind(libc::FALLOC_FL_PUNCH_HOLE), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn open_flags_keep_their_meaning_and_appending_stays_with_the_kernel() {
        let options = open_options(libc::O_RDWR | libc::O_APPEND | libc::O_SYNC);
        assert!(options.read && options.write && options.synchronous && !options.append);
        let options = open_options(libc::O_WRONLY | libc::O_EXCL | libc::O_CREAT);
        assert!(!options.read && options.write && options.exclusive && !options.synchronous);
        assert!(open_options(libc::O_RDONLY | OPENED_TO_EXECUTE).execute);
    }

    #[test]
    fn flags_of_a_rename_that_contradict_each_other_are_refused() {
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT), Ok(RenameMode::Whiteout));
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT | libc::RENAME_NOREPLACE), Ok(RenameMode::WhiteoutNoReplace));
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE), Err(Errno::EINVAL));
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), Err(Errno::EINVAL));
        assert_eq!(rename_mode(1 << 3), Err(Errno::EINVAL));
        assert_eq!(rename_mode(0), Ok(RenameMode::Replace));
    }

    #[test]
    fn the_root_has_generation_zero_and_everything_else_one() {
        assert_eq!((generation_of(1), generation_of(2)), (0, 1));
    }
}
