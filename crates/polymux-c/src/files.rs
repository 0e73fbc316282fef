//! Calls on open files.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::SeekFrom;
use std::sync::Arc;

use libc::{off_t, size_t, ssize_t};
use polymux_embed::{AllocateKind, Errno, FileOptions, LastLink, Result, SeekTarget, Volume};

use crate::arguments::{self, MODE, offset};
use crate::errors::{count, number, status};
use crate::volume::{Item, VolumeHandle, close, handle};

/// How open(2) spells options: those that mean something here. `O_CLOEXEC`, `O_NOCTTY`, `O_NONBLOCK`, `O_NOATIME` and `O_DIRECT` change nothing.
fn file_options(flags: c_int, mode: c_uint) -> Result<FileOptions> {
    let mut options = FileOptions::new();
    options = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => options.read(),
        libc::O_WRONLY => options.write(),
        libc::O_RDWR => options.read().write(),
        _ => return Err(Errno::EINVAL.into()),
    };
    if flags & libc::O_PATH != 0 {
        return Err(Errno::EINVAL.into());
    }
    let is_new = flags & libc::O_CREAT != 0 && flags & libc::O_EXCL != 0;
    if is_new {
        options = options.create_new(mode & MODE);
    } else if flags & libc::O_CREAT != 0 {
        options = options.create(mode & MODE);
    }
    let apply_if = |options: FileOptions, flag: c_int, apply: fn(FileOptions) -> FileOptions| {
        if flags & flag != 0 { apply(options) } else { options }
    };
    options = apply_if(options, libc::O_APPEND, FileOptions::append);
    options = apply_if(options, libc::O_TRUNC, FileOptions::truncate);
    options = apply_if(options, libc::O_DSYNC, FileOptions::synchronous);
    Ok(apply_if(options, libc::O_NOFOLLOW, FileOptions::no_follow))
}

/// # Safety
/// As [`arguments::path`].
unsafe fn open(volume: &Volume, path: *const c_char, flags: c_int, mode: c_uint) -> Result<Item> {
    // SAFETY: promised by the caller.
    let path = unsafe { arguments::path(path) }?;
    let options = file_options(flags, mode)?;
    let makes = flags & libc::O_CREAT != 0;
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        if makes {
            return Err(Errno::EINVAL.into());
        }
        return volume.open_unnamed(path, mode & MODE, &options).map(|file| Item::File(Arc::new(file)));
    }
    let wants_directory = flags & libc::O_DIRECTORY != 0;
    if wants_directory && makes {
        return Err(Errno::EINVAL.into());
    }
    let may_be_directory = flags & libc::O_ACCMODE == libc::O_RDONLY && !makes && flags & libc::O_TRUNC == 0;
    if !wants_directory {
        match volume.open_file(path, &options) {
            Err(error) if may_be_directory && error.errno() == Errno::EISDIR => {}
            opened => return opened.map(|file| Item::File(Arc::new(file))),
        }
    }
    let last = if flags & libc::O_NOFOLLOW != 0 { LastLink::Keep } else { LastLink::Follow };
    let directory = volume.open_directory(path, last)?;
    if may_be_directory { Ok(Item::Directory(Arc::new(directory))) } else { Err(Errno::EISDIR.into()) }
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_open(
    volume: *const VolumeHandle,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: promised by the caller.
    let opened = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let item = unsafe { open(handle.volume(), path, flags, mode) }?;
        handle.insert(item)
    });
    number(opened)
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_close(volume: *const VolumeHandle, descriptor: c_int) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| close(handle.take(descriptor)?)))
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_dup(volume: *const VolumeHandle, descriptor: c_int) -> c_int {
    // SAFETY: promised by the caller.
    number(unsafe { handle(volume) }.and_then(|handle| handle.insert(handle.item(descriptor)?)))
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `data` as [`arguments::buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_read(
    volume: *const VolumeHandle,
    descriptor: c_int,
    data: *mut c_void,
    length: size_t,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let read = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let buffer = unsafe { arguments::buffer(data.cast(), length) }?;
        handle.file(descriptor)?.read(buffer)
    });
    count(read)
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `data` as [`arguments::buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_pread(
    volume: *const VolumeHandle,
    descriptor: c_int,
    data: *mut c_void,
    length: size_t,
    at: off_t,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let read = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let buffer = unsafe { arguments::buffer(data.cast(), length) }?;
        handle.file(descriptor)?.read_at(buffer, offset(at)?)
    });
    count(read)
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `data` as [`arguments::data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_write(
    volume: *const VolumeHandle,
    descriptor: c_int,
    data: *const c_void,
    length: size_t,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let written = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let data = unsafe { arguments::data(data.cast(), length) }?;
        handle.file(descriptor)?.write(data)
    });
    count(written)
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `data` as [`arguments::data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_pwrite(
    volume: *const VolumeHandle,
    descriptor: c_int,
    data: *const c_void,
    length: size_t,
    at: off_t,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let written = unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let data = unsafe { arguments::data(data.cast(), length) }?;
        handle.file(descriptor)?.write_at(data, offset(at)?)
    });
    count(written)
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_lseek(
    volume: *const VolumeHandle,
    descriptor: c_int,
    at: off_t,
    whence: c_int,
) -> off_t {
    // SAFETY: promised by the caller.
    let moved = unsafe { handle(volume) }.and_then(|handle| {
        let file = handle.file(descriptor)?;
        let moved = match whence {
            libc::SEEK_SET => file.seek(SeekFrom::Start(offset(at)?)),
            libc::SEEK_CUR => file.seek(SeekFrom::Current(at)),
            libc::SEEK_END => file.seek(SeekFrom::End(at)),
            // A negative offset is beyond nothing.
            libc::SEEK_DATA => file.seek_to(SeekTarget::Data, u64::try_from(at).map_err(|_| Errno::ENXIO)?),
            libc::SEEK_HOLE => file.seek_to(SeekTarget::Hole, u64::try_from(at).map_err(|_| Errno::ENXIO)?),
            _ => Err(Errno::EINVAL.into()),
        }?;
        off_t::try_from(moved).map_err(|_| Errno::EOVERFLOW.into())
    });
    number(moved)
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_fsync(volume: *const VolumeHandle, descriptor: c_int) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| match handle.item(descriptor)? {
        Item::File(file) => file.sync_all(),
        Item::Directory(directory) => directory.sync(),
    }))
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_fdatasync(volume: *const VolumeHandle, descriptor: c_int) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| match handle.item(descriptor)? {
        Item::File(file) => file.sync_data(),
        Item::Directory(directory) => directory.sync(),
    }))
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_ftruncate(volume: *const VolumeHandle, descriptor: c_int, size: off_t) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| handle.file(descriptor)?.set_size(offset(size)?)))
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_fallocate(
    volume: *const VolumeHandle,
    descriptor: c_int,
    mode: c_int,
    at: off_t,
    length: off_t,
) -> c_int {
    const PUNCH: c_int = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: c_int = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        let kind = match mode {
            0 => AllocateKind::Extend,
            libc::FALLOC_FL_KEEP_SIZE => AllocateKind::KeepSize,
            PUNCH => AllocateKind::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => AllocateKind::ZeroRange,
            ZERO_KEEP => AllocateKind::ZeroRangeKeepSize,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        handle.file(descriptor)?.allocate(kind, offset(at)?, offset(length)?)
    }))
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_copy_file_range(
    volume: *const VolumeHandle,
    from: c_int,
    from_at: off_t,
    to: c_int,
    to_at: off_t,
    length: size_t,
) -> ssize_t {
    // SAFETY: promised by the caller.
    let copied = unsafe { handle(volume) }.and_then(|handle| {
        let (source, target) = (handle.file(from)?, handle.file(to)?);
        let length = u64::try_from(length.min(isize::MAX.unsigned_abs())).map_err(|_| Errno::EINVAL)?;
        let copied = source.copy_range(offset(from_at)?, &target, offset(to_at)?, length)?;
        usize::try_from(copied).map_err(|_| Errno::EOVERFLOW.into())
    });
    count(copied)
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`], `path` as [`arguments::path`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_link_file(
    volume: *const VolumeHandle,
    descriptor: c_int,
    path: *const c_char,
) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        // SAFETY: promised by the caller.
        let path = unsafe { arguments::path(path) }?;
        let file = handle.file(descriptor)?;
        handle.volume().link_file(&file, path).map(drop)
    }))
}
