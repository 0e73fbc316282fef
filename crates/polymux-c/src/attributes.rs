//! Attributes of files.

use std::ffi::{c_char, c_int, c_uint};

use libc::{off_t, stat, statvfs};
use polymux_embed::{Attributes, Errno, Result, SetAttributes, VolumeSpace};

use crate::arguments::{self, MODE, last_link, null_pointer, offset};
use crate::errors::status;
use crate::volume::{Item, VolumeHandle, handle};

/// Unit of `st_blksize` and `f_frsize`.
const BLOCK_BYTES: u64 = 4096;

/// As `stat` has it. `st_dev` is 0: a volume in a program has no device.
fn stat_of(attributes: &Attributes) -> stat {
    // SAFETY: a structure of plain numbers, for which zeros are valid.
    let mut found: stat = unsafe { std::mem::zeroed() };
    found.st_ino = attributes.ino.get();
    found.st_mode = attributes.kind.type_bits() | attributes.permissions;
    found.st_nlink = attributes.links.into();
    found.st_uid = attributes.uid;
    found.st_gid = attributes.gid;
    found.st_rdev = attributes.device;
    found.st_size = off_t::try_from(attributes.size).unwrap_or(off_t::MAX);
    found.st_blksize = BLOCK_BYTES.try_into().expect("a block is small");
    found.st_blocks = attributes.blocks.try_into().unwrap_or(i64::MAX);
    (found.st_atime, found.st_atime_nsec) = (attributes.accessed.seconds, attributes.accessed.nanoseconds.into());
    (found.st_mtime, found.st_mtime_nsec) = (attributes.modified.seconds, attributes.modified.nanoseconds.into());
    (found.st_ctime, found.st_ctime_nsec) = (attributes.changed.seconds, attributes.changed.nanoseconds.into());
    found
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `target` is null, or may be written.
unsafe fn store<T>(target: *mut T, value: T) -> Result<()> {
    if target.is_null() {
        return Err(null_pointer());
    }
    // SAFETY: it is not null, and the caller promises that it may be written.
    unsafe { target.write(value) };
    Ok(())
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`]; `found` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_stat(
    volume: *const VolumeHandle,
    path: *const c_char,
    found: *mut stat,
    flags: c_int,
) -> c_int {
    // SAFETY: promised by the caller, as all that follows.
    status(unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let path = unsafe { arguments::path(path) }?;
        let attributes = handle.volume().attributes(path, last_link(flags)?)?;
        // SAFETY: promised by the caller.
        unsafe { store(found, stat_of(&attributes)) }
    }))
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`]; `found` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_fstat(volume: *const VolumeHandle, descriptor: c_int, found: *mut stat) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        let attributes = match handle.item(descriptor)? {
            Item::File(file) => file.attributes(),
            Item::Directory(directory) => directory.attributes(),
        }?;
        // SAFETY: promised by the caller.
        unsafe { store(found, stat_of(&attributes)) }
    }))
}

/// Changes attributes of the file at a path.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
pub unsafe fn change_at(
    volume: *const VolumeHandle,
    path: *const c_char,
    flags: c_int,
    change: Result<SetAttributes>,
) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let path = unsafe { arguments::path(path) }?;
        handle.volume().set_attributes(path, last_link(flags)?, &change?).map(drop)
    }))
}

/// Changes attributes of an open file or directory.
///
/// # Safety
/// As [`handle`].
pub unsafe fn change_of(volume: *const VolumeHandle, descriptor: c_int, change: Result<SetAttributes>) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        let change = change?;
        match handle.item(descriptor)? {
            Item::File(file) => file.set_attributes(&change).map(drop),
            Item::Directory(directory) => directory.set_attributes(&change).map(drop),
        }
    }))
}

fn mode(mode: c_uint) -> Result<SetAttributes> {
    Ok(SetAttributes { permissions: Some(mode & MODE), ..SetAttributes::default() })
}

/// The owner and group of chown(2); the largest number leaves one as it is.
fn owner(uid: libc::uid_t, gid: libc::gid_t) -> Result<SetAttributes> {
    let given = |id: u32| Some(id).filter(|id| *id != u32::MAX);
    Ok(SetAttributes { uid: given(uid), gid: given(gid), ..SetAttributes::default() })
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_chmod(volume: *const VolumeHandle, path: *const c_char, permissions: c_uint) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { change_at(volume, path, 0, mode(permissions)) }
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_fchmod(volume: *const VolumeHandle, descriptor: c_int, permissions: c_uint) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { change_of(volume, descriptor, mode(permissions)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_chown(
    volume: *const VolumeHandle,
    path: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
    flags: c_int,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { change_at(volume, path, flags, owner(uid, gid)) }
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_fchown(
    volume: *const VolumeHandle,
    descriptor: c_int,
    uid: libc::uid_t,
    gid: libc::gid_t,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { change_of(volume, descriptor, owner(uid, gid)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_truncate(volume: *const VolumeHandle, path: *const c_char, size: off_t) -> c_int {
    let change = offset(size).map(|size| SetAttributes { size: Some(size), ..SetAttributes::default() });
    // SAFETY: promised by the caller.
    unsafe { change_at(volume, path, 0, change) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_access(volume: *const VolumeHandle, path: *const c_char, mask: c_int) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let path = unsafe { arguments::path(path) }?;
        let mask = u32::try_from(mask).ok().filter(|mask| *mask <= 7).ok_or(Errno::EINVAL)?;
        handle.volume().check_access(path, mask)
    }))
}

fn statvfs_of(space: &VolumeSpace) -> statvfs {
    // SAFETY: a structure of plain numbers, for which zeros are valid.
    let mut found: statvfs = unsafe { std::mem::zeroed() };
    found.f_bsize = BLOCK_BYTES;
    found.f_frsize = BLOCK_BYTES;
    found.f_blocks = space.total / BLOCK_BYTES;
    found.f_bfree = space.free / BLOCK_BYTES;
    found.f_bavail = space.available / BLOCK_BYTES;
    found.f_files = space.files_total;
    (found.f_ffree, found.f_favail) = (space.files_free, space.files_free);
    found.f_namemax = 255;
    found
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`]; `found` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_statvfs(volume: *const VolumeHandle, found: *mut statvfs) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        let space = handle.volume().space()?;
        // SAFETY: promised by the caller.
        unsafe { store(found, statvfs_of(&space)) }
    }))
}
