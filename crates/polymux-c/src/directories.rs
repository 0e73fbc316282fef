//! Listings of directories.

use std::ffi::c_int;

use libc::off_t;
use polymux_embed::{Directory, DirectoryEntry, Errno, FileKind, Result};

use crate::arguments::null_pointer;
use crate::errors::{number, status};
use crate::volume::{VolumeHandle, handle};

/// Bytes of a name with the zero at its end.
const NAME_BYTES: usize = 256;

/// `struct polymux_dirent` of the header.
#[repr(C)]
pub struct ListedEntry {
    /// Inode number.
    ino: u64,
    /// Position behind the entry, for `polymux_seekdir`.
    position: off_t,
    /// `DT_REG`, `DT_DIR` and so on.
    kind: u8,
    /// The name, with a zero at its end.
    name: [u8; NAME_BYTES],
}

fn type_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => libc::DT_REG,
        FileKind::Directory => libc::DT_DIR,
        FileKind::Symlink => libc::DT_LNK,
        FileKind::Fifo => libc::DT_FIFO,
        FileKind::Socket => libc::DT_SOCK,
        FileKind::CharacterDevice => libc::DT_CHR,
        FileKind::BlockDevice => libc::DT_BLK,
    }
}

fn listed(entry: &DirectoryEntry) -> Result<ListedEntry> {
    let mut name = [0; NAME_BYTES];
    assert!(entry.name.len() < NAME_BYTES, "names have at most 255 bytes");
    name[..entry.name.len()].copy_from_slice(&entry.name);
    let position = off_t::try_from(entry.cookie).map_err(|_| Errno::EOVERFLOW)?;
    Ok(ListedEntry { ino: entry.ino.get(), position, kind: type_of(entry.kind), name })
}

fn next(directory: &Directory) -> Result<Option<ListedEntry>> {
    directory.next_entry()?.as_ref().map(listed).transpose()
}

/// See the header.
///
/// # Safety
/// `volume` as [`handle`]; `entry` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_readdir(
    volume: *const VolumeHandle,
    descriptor: c_int,
    entry: *mut ListedEntry,
) -> c_int {
    // SAFETY: promised by the caller.
    let read = unsafe { handle(volume) }.and_then(|handle| {
        if entry.is_null() {
            return Err(null_pointer());
        }
        let directory = handle.directory(descriptor)?;
        let Some(found) = next(&directory)? else { return Ok(0) };
        // SAFETY: it is not null, and the caller promises that it may be written.
        unsafe { entry.write(found) };
        Ok(1)
    });
    number(read)
}

/// See the header.
///
/// # Safety
/// As [`handle`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polymux_seekdir(volume: *const VolumeHandle, descriptor: c_int, position: off_t) -> c_int {
    // SAFETY: promised by the caller.
    status(unsafe { handle(volume) }.and_then(|handle| {
        let after = u64::try_from(position).map_err(|_| Errno::EINVAL)?;
        handle.directory(descriptor)?.seek(after)
    }))
}
