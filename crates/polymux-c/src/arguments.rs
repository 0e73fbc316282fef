//! Arguments that come from C, checked as far as they can be.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use polymux_embed::{Errno, Error, LastLink, Result};

/// Bytes that one call reads or writes at most, as on Linux.
const COUNT_MAX: usize = 0x7fff_f000;

/// Permission bits of a mode.
pub const MODE: c_uint = 0o7777;

/// The error of a null pointer.
pub fn null_pointer() -> Error {
    Errno::from_raw(libc::EFAULT).into()
}

/// A path.
///
/// # Errors
/// `EFAULT`: a null pointer.
///
/// # Safety
/// `path` is null, or a string with a zero at its end that nothing changes during the call.
pub unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller's promise is the same one.
    unsafe { bytes(path) }.map(|bytes| Path::new(OsStr::from_bytes(bytes)))
}

/// The bytes of a string.
///
/// # Errors
/// `EFAULT`: a null pointer.
///
/// # Safety
/// As [`path`].
pub unsafe fn bytes<'a>(text: *const c_char) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(null_pointer());
    }
    // SAFETY: it is not null, and the caller promises a zero at its end.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A buffer to fill.
///
/// # Errors
/// `EFAULT`: a null pointer.
///
/// # Safety
/// `buffer` is null, or `count` bytes at it may be written and are used by nothing else during the call.
pub unsafe fn buffer<'a>(buffer: *mut u8, count: usize) -> Result<&'a mut [u8]> {
    match (buffer.is_null(), count.min(COUNT_MAX)) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null_pointer()),
        // SAFETY: the caller promises that so many bytes are there and that nothing else uses them; a program that passes bytes it never
        // wrote gets them written, not read.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts_mut(buffer, count) }),
    }
}

/// Bytes to write.
///
/// # Errors
/// `EFAULT`: a null pointer.
///
/// # Safety
/// `data` is null, or `count` bytes at it may be read and are changed by nothing during the call.
pub unsafe fn data<'a>(data: *const u8, count: usize) -> Result<&'a [u8]> {
    match (data.is_null(), count.min(COUNT_MAX)) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null_pointer()),
        // SAFETY: the caller promises that so many bytes are there and stay as they are.
        (false, count) => Ok(unsafe { std::slice::from_raw_parts(data, count) }),
    }
}

/// An offset.
///
/// # Errors
/// `EINVAL`: it is negative.
pub fn offset(offset: libc::off_t) -> Result<u64> {
    u64::try_from(offset).map_err(|_| Errno::EINVAL.into())
}

/// Whether the flags of a call have `AT_SYMLINK_NOFOLLOW`.
///
/// # Errors
/// `EINVAL`: there are other flags.
pub fn last_link(flags: c_int) -> Result<LastLink> {
    match flags {
        0 => Ok(LastLink::Follow),
        libc::AT_SYMLINK_NOFOLLOW => Ok(LastLink::Keep),
        _ => Err(Errno::EINVAL.into()),
    }
}
