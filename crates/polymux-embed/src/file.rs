//! Open regular files.
//!
//! Invariants:
//! * A [`File`] is an open file description of POSIX: its position is shared by everything that uses it, and a read or write that
//!   uses the position moves it by the bytes that were read or written, as one step.
//! * It is closed once, by [`File::close`] or when it is dropped.

use std::io::{self, SeekFrom};
use std::sync::Arc;

use polymux_fs::{
    AllocateKind, Attributes, Error, FileSystem, HandleId, OpenOptions, Result, SeekTarget, SetAttributes, SyncKind,
    WriteOrigin,
};
use polymux_types::sync::Mutex;
use polymux_types::{Errno, Ino};

use crate::opened::Opened;
use crate::resolution::LastLink;

/// Largest offset in a file, as `off_t` has it.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// How a file is opened. At least one of [`FileOptions::read`] and [`FileOptions::write`] is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    pub(crate) open: OpenOptions,
    /// Permissions of the file where it is made; `None`: it has to exist.
    pub(crate) made_with: Option<u32>,
    keeps_last_link: bool,
}

impl FileOptions {
    /// Neither reading nor writing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For reading (`O_RDONLY`; with [`FileOptions::write`] `O_RDWR`).
    #[must_use]
    pub fn read(mut self) -> Self {
        self.open.read = true;
        self
    }

    /// For writing (`O_WRONLY`).
    #[must_use]
    pub fn write(mut self) -> Self {
        self.open.write = true;
        self
    }

    /// Every write goes to the end of the file, atomically (`O_APPEND`).
    #[must_use]
    pub fn append(mut self) -> Self {
        self.open.append = true;
        self
    }

    /// The file is emptied (`O_TRUNC`).
    #[must_use]
    pub fn truncate(mut self) -> Self {
        self.open.truncate = true;
        self
    }

    /// The file is made where it does not exist, with these permissions less the umask (`O_CREAT`).
    #[must_use]
    pub fn create(mut self, permissions: u32) -> Self {
        self.made_with = Some(permissions);
        self
    }

    /// The file is made, and opening fails with `EEXIST` where it exists (`O_CREAT | O_EXCL`).
    #[must_use]
    pub fn create_new(mut self, permissions: u32) -> Self {
        self.made_with = Some(permissions);
        self.open.exclusive = true;
        self
    }

    /// Each write is durable before it returns (`O_DSYNC`).
    #[must_use]
    pub fn synchronous(mut self) -> Self {
        self.open.synchronous = true;
        self
    }

    /// Fails with `ELOOP` where the last name is a symbolic link (`O_NOFOLLOW`).
    #[must_use]
    pub fn no_follow(mut self) -> Self {
        self.keeps_last_link = true;
        self
    }

    /// The options of the description: appending means something for writers only.
    pub(crate) fn effective(self) -> OpenOptions {
        OpenOptions { append: self.open.append && self.open.write, ..self.open }
    }

    pub(crate) fn last_link(self) -> LastLink {
        let is_new = self.made_with.is_some() && self.open.exclusive;
        if self.keeps_last_link || is_new { LastLink::Keep } else { LastLink::Follow }
    }
}

/// An open regular file.
pub struct File {
    opened: Arc<Opened>,
    handle: HandleId,
    ino: Ino,
    options: OpenOptions,
    position: Mutex<u64>,
    is_closed: bool,
}

impl File {
    pub(crate) fn new(opened: Arc<Opened>, (handle, ino): (HandleId, Ino), options: OpenOptions) -> Self {
        Self { opened, handle, ino, options, position: Mutex::new(0), is_closed: false }
    }

    fn file_system(&self) -> Result<&FileSystem> {
        self.opened.file_system()
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// Its inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Reads at an offset and leaves the position (`pread`). Returns the number of bytes, which is less than asked for only at the end
    /// of the file.
    ///
    /// # Errors
    /// `EBADF`: not open for reading; `EIO`: a tier is missing, or its bytes are lost.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        check_offset(offset)?;
        self.file_system()?.read(self.opened.caller(), self.handle, offset, buffer)
    }

    /// Writes at an offset and leaves the position (`pwrite`); with [`FileOptions::append`] at the end of the file, as on Linux. Returns
    /// the number of bytes, which is less than given only where space ran out on the way.
    ///
    /// # Errors
    /// `EBADF`: not open for writing; `ENOSPC`, `EDQUOT`, `EFBIG`.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        check_offset(offset)?;
        self.file_system()?.write(self.opened.caller(), self.handle, offset, data, WriteOrigin::Call)
    }

    /// Reads at the position, and moves it on.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        self.file_system()?;
        let mut position = self.position.lock();
        let count = self.read_at(buffer, *position)?;
        *position += count as u64;
        Ok(count)
    }

    /// Writes at the position, and moves it on; with [`FileOptions::append`] to the end of the file.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write(&self, data: &[u8]) -> Result<usize> {
        let file_system = self.file_system()?;
        let mut position = self.position.lock();
        let (begin, count) = if self.options.append {
            file_system.append(self.opened.caller(), self.handle, data, WriteOrigin::Call)?
        } else {
            (*position, self.write_at(data, *position)?)
        };
        if count > 0 {
            *position = begin + count as u64;
        }
        Ok(count)
    }

    /// Moves the position; returns it.
    ///
    /// # Errors
    /// `EINVAL`: before the beginning of the file; `EOVERFLOW`: beyond the largest offset.
    pub fn seek(&self, to: SeekFrom) -> Result<u64> {
        self.file_system()?;
        let mut position = self.position.lock();
        let moved = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => position.checked_add_signed(by),
            SeekFrom::End(by) => self.attributes()?.size.checked_add_signed(by),
        };
        let moved = moved.ok_or(Errno::EINVAL)?;
        if moved > OFFSET_MAX {
            return Err(Errno::EOVERFLOW.into());
        }
        *position = moved;
        Ok(moved)
    }

    /// Moves the position to the next bytes that were written, or to the next hole, from an offset on (`SEEK_DATA`, `SEEK_HOLE`);
    /// returns it.
    ///
    /// # Errors
    /// `ENXIO`: at or beyond the end of the file, or there are no such bytes.
    pub fn seek_to(&self, target: SeekTarget, from: u64) -> Result<u64> {
        check_offset(from)?;
        let file_system = self.file_system()?;
        let mut position = self.position.lock();
        *position = file_system.seek(self.opened.caller(), self.handle, from, target)?;
        Ok(*position)
    }

    /// Makes the bytes durable, and the attributes that are needed to read them back (`fdatasync`).
    ///
    /// # Errors
    /// `EIO`: something could not be written; the error is reported once to each open description.
    pub fn sync_data(&self) -> Result<()> {
        self.sync(SyncKind::Data)
    }

    /// Makes bytes and attributes durable (`fsync`).
    ///
    /// # Errors
    /// As [`File::sync_data`].
    pub fn sync_all(&self) -> Result<()> {
        self.sync(SyncKind::All)
    }

    fn sync(&self, kind: SyncKind) -> Result<()> {
        self.file_system()?.sync(self.opened.caller(), self.handle, kind)
    }

    /// Cuts the file off, or makes it longer with a hole (`ftruncate`).
    ///
    /// # Errors
    /// `EINVAL`: not open for writing; `EFBIG`.
    pub fn set_size(&self, size: u64) -> Result<()> {
        if !self.options.write {
            return Err(Errno::EINVAL.into());
        }
        if size > OFFSET_MAX {
            return Err(Errno::EFBIG.into());
        }
        self.set_attributes(&SetAttributes { size: Some(size), ..SetAttributes::default() }).map(drop)
    }

    /// Reserves space, punches a hole or zeroes a range (`fallocate`).
    ///
    /// # Errors
    /// `EBADF`: not open for writing; `EINVAL`: an empty range; `ENOSPC`, `EFBIG`, `EOPNOTSUPP`.
    pub fn allocate(&self, kind: AllocateKind, offset: u64, length: u64) -> Result<()> {
        if length == 0 {
            return Err(Errno::EINVAL.into());
        }
        check_offset(offset)?;
        if offset.checked_add(length).is_none_or(|end| end > OFFSET_MAX) {
            return Err(Errno::EFBIG.into());
        }
        self.file_system()?.allocate(self.opened.caller(), self.handle, offset, length, kind)
    }

    /// Copies bytes to another file of the same volume (`copy_file_range`); returns their number, which may be less than asked for.
    ///
    /// # Errors
    /// `EXDEV`: the other file is on another volume; as [`File::read_at`] and [`File::write_at`].
    pub fn copy_range(&self, offset: u64, target: &Self, target_offset: u64, length: u64) -> Result<u64> {
        check_offset(offset)?;
        check_offset(target_offset)?;
        if !Arc::ptr_eq(&self.opened, &target.opened) {
            return Err(Errno::EXDEV.into());
        }
        let caller = self.opened.caller();
        self.file_system()?.copy_range(caller, self.handle, offset, target.handle, target_offset, length)
    }

    /// Its attributes (`fstat`).
    ///
    /// # Errors
    /// `EIO`: they cannot be read.
    pub fn attributes(&self) -> Result<Attributes> {
        self.file_system()?.attributes(self.opened.caller(), self.ino)
    }

    /// Changes attributes (`fchmod`, `fchown`, `futimens`, `ftruncate`); returns them all.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`: the caller may not.
    pub fn set_attributes(&self, change: &SetAttributes) -> Result<Attributes> {
        let through = SetAttributes { handle: change.size.map(|_| self.handle), ..*change };
        self.file_system()?.set_attributes(self.opened.caller(), self.ino, &through)
    }

    /// Closes it; reports an error of its writes that was not reported yet. It is closed in any case.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`: bytes that were accepted could not be written.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_closed, true) {
            return Ok(());
        }
        let file_system = self.opened.file_system()?;
        let flushed = file_system.flush(self.opened.caller(), self.handle);
        flushed.and(file_system.release(self.handle))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::debug!("volume `{}`: inode {} was closed with an error: {error}", self.opened.name, self.ino);
        }
    }
}

fn check_offset(offset: u64) -> Result<()> {
    if offset > OFFSET_MAX { Err(Errno::EINVAL.into()) } else { Ok(()) }
}

fn to_io_error(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno().raw())
}

impl io::Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        File::read(self, buffer).map_err(to_io_error)
    }
}

impl io::Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        File::write(self, data).map_err(to_io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        File::seek(self, to).map_err(to_io_error)
    }
}

impl io::Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &*self, buffer)
    }
}

impl io::Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut &*self, data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        io::Seek::seek(&mut &*self, to)
    }
}
