//! Times of files.

use std::ffi::{c_char, c_int};

use libc::timespec;
use polymux_embed::{Errno, Result, SetAttributes, SetTime, Timestamp};

use crate::attributes::{change_at, change_of};
use crate::volume::VolumeHandle;

/// A time of utimensat(2); `None`: it stays.
fn time(given: &timespec) -> Result<Option<SetTime>> {
    match given.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanoseconds => match u32::try_from(nanoseconds) {
            Ok(nanoseconds) if nanoseconds < 1_000_000_000 => {
                Ok(Some(SetTime::To(Timestamp::new(given.tv_sec, nanoseconds))))
            }
            _ => Err(Errno::EINVAL.into()),
        },
    }
}

/// Access and modification time; null: now for both.
///
/// # Safety
/// `times` is null, or two times can be read there.
unsafe fn change(times: *const timespec) -> Result<SetAttributes> {
    if times.is_null() {
        let now = Some(SetTime::Now);
        return Ok(SetAttributes { accessed: now, modified: now, ..SetAttributes::default() });
    }
    // SAFETY: the caller promises two times there.
    let [accessed, modified] = unsafe { times.cast::<[timespec; 2]>().read() };
    let (accessed, modified) = (time(&accessed)?, time(&modified)?);
    Ok(SetAttributes { accessed, modified, ..SetAttributes::default() })
}

/// See the header.
///
/// # Safety
/// `volume` as [`crate::volume::handle`], `path` as [`crate::arguments::path`]; `times` is null, or two times can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_utimens(
    volume: *const VolumeHandle,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { change_at(volume, path, flags, change(times)) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`crate::volume::handle`]; `times` is null, or two times can be read there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_futimens(
    volume: *const VolumeHandle,
    descriptor: c_int,
    times: *const timespec,
) -> c_int {
    // SAFETY: promised by the caller.
    unsafe { change_of(volume, descriptor, change(times)) }
}
