//! Operations on open files. A file handle of the kernel is a [`HandleId`].
//!
//! Pages stay in the kernel's cache over close and open (`FOPEN_KEEP_CACHE`): contents never change behind the kernel.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{FileAttr, FileHandle, FopenFlags, INodeNo, OpenFlags, Request, WriteFlags};
use polymux_fs::{HandleId, OpenOptions, SyncKind, WriteOrigin};
use polymux_types::Errno;

use crate::adapter::{Adapter, caller, caller_with_umask, ino};
use crate::convert;
use crate::names::{ModeAndMask, Reply};
use crate::set_id::{take_set_id, takes_set_id};

/// How every regular file is opened.
pub(crate) const OPENED: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE;

/// Most bytes that one copy takes on. Callers repeat a short copy, and a thread of the transport is not held for long.
const COPY_LENGTH_MAX: u64 = 256 * 1024 * 1024;

thread_local! {
    /// What the last read of this thread needed; grows to the largest request and is reused.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A place in an open file.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) ino: INodeNo,
    pub(crate) handle: FileHandle,
    pub(crate) offset: u64,
}

impl Place {
    fn handle(self) -> HandleId {
        HandleId(self.handle.0)
    }
}

impl Adapter {
    pub(crate) fn open_file(&self, request: &Request, number: INodeNo, flags: OpenFlags) -> Reply<FileHandle> {
        self.run("open", number.0, |fs| {
            // Emptying follows as a request of its own, because `ATOMIC_O_TRUNC` is not agreed on.
            let options = OpenOptions { truncate: false, exclusive: false, ..convert::open_options(flags.0) };
            fs.open(&caller(request), ino(number), options).map(|handle| FileHandle(handle.0))
        })
    }

    pub(crate) fn create_file(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: ModeAndMask,
        flags: i32,
    ) -> Reply<(FileAttr, FileHandle)> {
        self.run("create", parent.0, |fs| {
            let caller = caller_with_umask(request, mode.umask);
            let options = convert::open_options(flags);
            let (made, handle) = fs.create(&caller, ino(parent), name.as_bytes(), mode.permissions(), options)?;
            Ok((Self::entry(fs, &made), FileHandle(handle.0)))
        })
    }

    /// Reads and hands the bytes to `answer` while they are in the buffer of this thread.
    pub(crate) fn read_file(&self, request: &Request, place: Place, length: u32, answer: impl FnOnce(Reply<&[u8]>)) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let length = usize::try_from(length).expect("a request is far smaller than memory");
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            let target = &mut buffer[..length];
            let read =
                self.run("read", place.ino.0, |fs| fs.read(&caller(request), place.handle(), place.offset, target));
            answer(read.map(|count| &buffer[..count]));
        });
    }

    pub(crate) fn write_file(&self, request: &Request, place: Place, data: &[u8], flags: WriteFlags) -> Reply<u32> {
        let origin =
            if flags.contains(WriteFlags::FUSE_WRITE_CACHE) { WriteOrigin::PageCache } else { WriteOrigin::Call };
        self.run("write", place.ino.0, |fs| {
            let caller = caller(request);
            if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                take_set_id(fs, &caller, ino(place.ino))?;
            }
            let written = fs.write(&caller, place.handle(), place.offset, data, origin)?;
            Ok(u32::try_from(written).expect("no more is written than the request holds"))
        })
    }

    pub(crate) fn flush_file(&self, request: &Request, number: INodeNo, handle: FileHandle) -> Reply<()> {
        self.run("flush", number.0, |fs| fs.flush(&caller(request), HandleId(handle.0)))
    }

    pub(crate) fn release_file(&self, number: INodeNo, handle: FileHandle) -> Reply<()> {
        self.run("release", number.0, |fs| fs.release(HandleId(handle.0)))
    }

    pub(crate) fn sync_file(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        kind: SyncKind,
    ) -> Reply<()> {
        self.run("fsync", number.0, |fs| fs.sync(&caller(request), HandleId(handle.0), kind))
    }

    pub(crate) fn allocate_range(&self, request: &Request, place: Place, length: u64, mode: i32) -> Reply<()> {
        self.run("fallocate", place.ino.0, |fs| {
            let kind = convert::allocate_kind(mode)?;
            let caller = caller(request);
            if takes_set_id(request) {
                take_set_id(fs, &caller, ino(place.ino))?;
            }
            fs.allocate(&caller, place.handle(), place.offset, length, kind)
        })
    }

    pub(crate) fn seek_file(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
    ) -> Reply<i64> {
        self.run("lseek", number.0, |fs| {
            let target = convert::seek_target(whence)?;
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            let found = fs.seek(&caller(request), HandleId(handle.0), offset, target)?;
            Ok(i64::try_from(found).map_err(|_| Errno::EOVERFLOW)?)
        })
    }

    pub(crate) fn copy_range(&self, request: &Request, source: Place, target: Place, length: u64) -> Reply<u32> {
        self.run("copy_file_range", source.ino.0, |fs| {
            let length = length.min(COPY_LENGTH_MAX);
            let caller = caller(request);
            if takes_set_id(request) {
                take_set_id(fs, &caller, ino(target.ino))?;
            }
            let copied =
                fs.copy_range(&caller, source.handle(), source.offset, target.handle(), target.offset, length)?;
            Ok(u32::try_from(copied).expect("no more is copied than was asked for"))
        })
    }
}
