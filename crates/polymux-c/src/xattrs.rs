//! Extended attributes.

use std::ffi::{c_char, c_int, c_void};

use libc::{size_t, ssize_t};
use polymux_embed::{Errno, Result, XattrMode};

use crate::arguments::{self, last_link};
use crate::errors::{count, status};
use crate::volume::{VolumeHandle, handle};

/// Copies an answer into the buffer of the caller; one without length asks only for that of the answer, as in getxattr(2).
///
/// # Safety
/// As [`arguments::buffer`].
unsafe fn answer(found: &[u8], buffer: *mut u8, length: size_t) -> Result<usize> {
    if length > 0 {
        // SAFETY: promised by the caller.
        let buffer = unsafe { arguments::buffer(buffer, length) }?;
        buffer.get_mut(..found.len()).ok_or(Errno::ERANGE)?.copy_from_slice(found);
    }
    Ok(found.len())
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` and `name` as [`arguments::path`], `value` as [`arguments::buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_getxattr(
    volume: *const VolumeHandle,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let read = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let (path, name) = unsafe { (arguments::path(path)?, arguments::bytes(name)?) };
        let found = handle.volume().xattr(path, last_link(flags)?, name)?;
        // SAFETY: promised by the caller.
        unsafe { answer(&found, value.cast(), length) }
    });
    count(read)
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`], `names` as [`arguments::buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_listxattr(
    volume: *const VolumeHandle,
    path: *const c_char,
    names: *mut c_char,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let read = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let path = unsafe { arguments::path(path) }?;
        let found = handle.volume().list_xattrs(path, last_link(flags)?)?;
        let joined: Vec<u8> = found.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
        // SAFETY: promised by the caller.
        unsafe { answer(&joined, names.cast::<c_void>().cast(), length) }
    });
    count(read)
}

/// See the header. `mode` is 0, `XATTR_CREATE` or `XATTR_REPLACE`.
///
/// # Safety
/// `volume` as [`handle`], `path` and `name` as [`arguments::path`], `value` as [`arguments::data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_setxattr(
    volume: *const VolumeHandle,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    length: size_t,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let (path, name) = unsafe { (arguments::path(path)?, arguments::bytes(name)?) };
        // SAFETY: promised by the caller.
        let value = unsafe { arguments::data(value.cast(), length) }?;
        let mode = match mode {
            0 => XattrMode::CreateOrReplace,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL.into()),
        };
        handle.volume().set_xattr(path, last_link(flags)?, (name, value), mode)
    }))
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` and `name` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_removexattr(
    volume: *const VolumeHandle,
    path: *const c_char,
    name: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let (path, name) = unsafe { (arguments::path(path)?, arguments::bytes(name)?) };
        handle.volume().remove_xattr(path, last_link(flags)?, name)
    }))
}
