//! Calls that make, remove and rename names.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{dev_t, size_t, ssize_t};
use polymux_embed::{Errno, NodeKind, RenameMode, Result, Volume};

use crate::arguments::{self, MODE};
use crate::errors::{count, status};
use crate::volume::{VolumeHandle, handle};

/// Runs a call on one path.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
unsafe fn on_path(
    volume: *const VolumeHandle,
    path: *const c_char,
    call: impl FnOnce(&Volume, &Path) -> Result<()>,
) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        call(handle.volume(), unsafe { arguments::path(path) }?)
    }))
}

/// Runs a call on two paths.
///
/// # Safety
/// `volume` as [`handle`], the paths as [`arguments::path`].
unsafe fn on_paths(
    volume: *const VolumeHandle,
    (first, second): (*const c_char, *const c_char),
    call: impl FnOnce(&Volume, &Path, &Path) -> Result<()>,
) -> c_int {
    // SAFETY: promised by the caller.
    let second = unsafe { arguments::path(second) };
    // SAFETY: promised by the caller.
    unsafe { on_path(volume, first, |volume, first| call(volume, first, second?)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_mkdir(volume: *const VolumeHandle, path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { on_path(volume, path, |volume, path| volume.make_directory(path, mode & MODE).map(drop)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_rmdir(volume: *const VolumeHandle, path: *const c_char) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { on_path(volume, path, |volume, path| volume.remove_directory(path)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_unlink(volume: *const VolumeHandle, path: *const c_char) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { on_path(volume, path, |volume, path| volume.unlink(path)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_mknod(
    volume: *const VolumeHandle,
    path: *const c_char,
    mode: c_uint,
    device: dev_t,
) -> c_int {
    let kind = match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(NodeKind::Regular),
        libc::S_IFIFO => Ok(NodeKind::Fifo),
        libc::S_IFSOCK => Ok(NodeKind::Socket),
        libc::S_IFCHR => Ok(NodeKind::CharacterDevice(device)),
        libc::S_IFBLK => Ok(NodeKind::BlockDevice(device)),
        _ => Err(Errno::EINVAL),
    };
    // SAFETY: promised by the caller.
    unsafe { on_path(volume, path, |volume, path| volume.make_node(path, kind?, mode & MODE).map(drop)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], the paths as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_rename(
    volume: *const VolumeHandle,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let mode = match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    };
    // SAFETY: promised by the caller.
    unsafe { on_paths(volume, (from, to), |volume, from, to| volume.rename(from, to, mode?)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], the paths as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_link(
    volume: *const VolumeHandle,
    existing: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { on_paths(volume, (existing, path), |volume, existing, path| volume.link(existing, path).map(drop)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], the paths as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_symlink(
    volume: *const VolumeHandle,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { on_paths(volume, (target, path), |volume, target, path| volume.make_symlink(target, path).map(drop)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`], `target` as [`arguments::buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_readlink(
    volume: *const VolumeHandle,
    path: *const c_char,
    target: *mut c_char,
    length: size_t,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let read = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let path = unsafe { arguments::path(path) }?;
        // SAFETY: promised by the caller.
        let buffer = unsafe { arguments::buffer(target.cast::<c_void>().cast(), length) }?;
        if buffer.is_empty() {
            return Err(Errno::EINVAL.into());
        }
        let found = handle.volume().read_symlink(path)?;
        let found = found.as_os_str().as_bytes();
        let length = found.len().min(buffer.len());
        buffer[..length].copy_from_slice(&found[..length]);
        Ok(length)
    });
    count(read)
}
