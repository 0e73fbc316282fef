//! Operations on open files. A file handle of the kernel is a [`HandleId`].
//!
//! How a description does its I/O is decided by the file system (`passthrough`). Of one that goes through the daemon pages stay in
//! the kernel's cache over close and open: contents never change behind the kernel but while it passes the file through.

use std::cell::RefCell;

use polymux_fs::{Caller, FileSystem, HandleId, OpenOptions, PageChange, SyncKind, Wait, WriteOrigin};
use polymux_transport::wire::{Attr, Header, OpenReply, OpenRequestFlags, PageUse, WriteFlags};
use polymux_types::{Errno, Ino, StreamId};

use crate::adapter::{Adapter, Outcome, caller, caller_with_umask, ino};
use crate::convert;
use crate::names::{ModeAndMask, NewName};
use crate::open_files::OpenFile;
use crate::passthrough;
use crate::write_back::WriteBack;

/// Most bytes that one copy takes on. Callers repeat a short copy, and a thread of the transport is not held for long.
const COPY_LENGTH_MAX: u64 = 256 * 1024 * 1024;

thread_local! {
    /// Buffer of the last read of this thread; grows to the largest request and is reused.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A place in an open file.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) ino: Ino,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
}

/// Bytes that are to be read.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) size: u32,
    pub(crate) pages: PageUse,
}

impl Place {
    fn handle(self) -> HandleId {
        HandleId(self.handle)
    }
}

impl Adapter {
    pub(crate) fn open_file(
        &self,
        header: &Header,
        flags: i32,
        further: OpenRequestFlags,
        wait: Wait,
    ) -> Outcome<OpenReply> {
        let caller = Caller { wait, ..caller(header) };
        self.take_back_of_earlier(header);
        self.run("open", ino(header), |fs| {
            // It is emptied here, so that the new data may go to any tier with free space.
            let options = OpenOptions { exclusive: false, ..convert::open_options(flags) };
            if options.truncate && further.kills_set_id() {
                self.take_set_id_unheard(fs, header, ino(header))?;
            }
            let open = passthrough::describe(fs, fs.open(&caller, ino(header), options)?)?;
            self.put_on_record(header, ino(header), flags, &open)?;
            if options.write && self.room.is_short() {
                // The kernel's attributes of it may be older than the shortage.
                self.device.expire_attributes(header.node);
            }
            if options.execute
                && let Err(errno) = self.programs.begin(ino(header), open.handle, header.pid)
            {
                self.take_file_back(open.handle);
                return Err(errno.into());
            }
            Ok(open)
        })
    }

    pub(crate) fn create_file(&self, header: &Header, new: NewName<'_>, flags: i32) -> Outcome<(Attr, OpenReply)> {
        self.take_back_of_earlier(header);
        self.run("create", ino(header), |fs| {
            let caller = caller_with_umask(header, new.mode.umask);
            let options = convert::open_options(flags);
            let (made, handle) = match Self::made_before(fs, header, new.name)? {
                Some(made) => {
                    let options = OpenOptions { exclusive: false, truncate: false, ..options };
                    let handle = fs.open(&caller, made.ino, options)?;
                    (made, handle)
                }
                None => fs.create(&caller, ino(header), new.name, new.mode.permissions(), options)?,
            };
            let open = passthrough::describe(fs, handle)?;
            self.put_on_record(header, made.ino, flags, &open)?;
            Ok((Self::entry(fs, &made), open))
        })
    }

    /// A file without a name (`O_TMPFILE`); a link may give it one.
    pub(crate) fn create_unnamed(&self, header: &Header, mode: ModeAndMask, flags: i32) -> Outcome<(Attr, OpenReply)> {
        self.take_back_of_earlier(header);
        self.run("tmpfile", ino(header), |fs| {
            let caller = caller_with_umask(header, mode.umask);
            let options = OpenOptions { exclusive: false, ..convert::open_options(flags) };
            let (made, handle) = fs.create_unnamed(&caller, ino(header), mode.permissions(), options)?;
            let open = passthrough::describe(fs, handle)?;
            self.put_on_record(header, made.ino, flags, &open)?;
            Ok((Self::entry(fs, &made), open))
        })
    }

    /// Reads and hands the bytes to `answer` while they are in the buffer of this thread.
    pub(crate) fn read_file<T>(
        &self,
        header: &Header,
        place: Place,
        wanted: Wanted,
        wait: Wait,
        answer: impl FnOnce(Outcome<&[u8]>) -> T,
    ) -> T {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let length = usize::try_from(wanted.size).expect("a request is far smaller than memory");
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            let target = &mut buffer[..length];
            let caller = Caller { wait, ..caller(header) };
            let read = self.run("read", place.ino, |fs| {
                if wanted.pages == PageUse::Kept {
                    fs.begin_page_use(&caller, place.handle(), place.offset, PageChange::Read)?;
                }
                fs.read(&caller, place.handle(), place.offset, target)
            });
            answer(read.map(|count| &buffer[..count]))
        })
    }

    pub(crate) fn write_file(
        &self,
        header: &Header,
        place: Place,
        data: &[u8],
        flags: WriteFlags,
        status_flags: i32,
        wait: Wait,
    ) -> Outcome<u32> {
        let origin = convert::write_origin(flags, status_flags, self.write_back);
        self.run("write", place.ino, |fs| {
            let caller = match origin {
                // Of those who wrote it nothing is known: the file stands for them.
                WriteOrigin::WriteBack => Caller { stream: StreamId(place.ino.get()), ..caller(header) },
                _ => caller(header),
            };
            if flags.kills_set_id() {
                self.take_set_id_unheard(fs, header, place.ino)?;
            }
            let caller = Caller { wait, ..caller };
            if flags.page_use() == PageUse::Kept {
                let change = if origin.is_from_cache() { PageChange::WrittenBack } else { PageChange::Written };
                fs.begin_page_use(&caller, place.handle(), place.offset, change)?;
            }
            // A count that is short ends a write past the page cache with EIO (`fuse_get_res_by_io` in fs/fuse/file.c), so it is answered with
            // the error that ended it.
            let written = if convert::is_direct(status_flags) && !origin.is_from_cache() {
                fs.write_whole(&caller, place.handle(), place.offset, data, origin)
            } else {
                fs.write(&caller, place.handle(), place.offset, data, origin)
            };
            let written = match written {
                Err(error) if error.errno() == Errno::EPERM && self.was_appended(fs, header, place, data.len())? => {
                    data.len()
                }
                outcome => outcome?,
            };
            self.note_written(written as u64);
            Ok(u32::try_from(written).expect("no more is written than the request holds"))
        })
    }

    /// Whether an earlier daemon wrote these bytes to the end of a file that takes appends alone, so that they are no append any more.
    fn was_appended(&self, fs: &FileSystem, header: &Header, place: Place, length: usize) -> polymux_fs::Result<bool> {
        let is_there = |size: u64| size >= place.offset.saturating_add(length as u64);
        Ok(header.is_resent() && is_there(fs.attributes(&caller(header), place.ino)?.size))
    }

    pub(crate) fn flush_file(&self, header: &Header, handle: u64, wait: Wait) -> Outcome<()> {
        let caller = Caller { wait, ..caller(header) };
        self.run("flush", ino(header), |fs| fs.flush(&caller, HandleId(handle)))
    }

    /// Puts an open description on record before it is answered. Where that fails it is closed again: a later daemon would not know it.
    fn put_on_record(&self, header: &Header, opened: Ino, flags: i32, open: &OpenReply) -> polymux_fs::Result<()> {
        let handle = HandleId(open.handle);
        let noted = self.open_files.note(OpenFile { handle, ino: opened, request: header.number(), flags });
        noted.map_err(|error| {
            log::error!("inode {}: an open file cannot be put on record: {error}", opened.get());
            self.take_file_back(open.handle);
            Errno::ENOMEM.into()
        })
    }

    /// An earlier daemon may have opened a file for a request that comes again; it is opened anew, and that is never answered.
    fn take_back_of_earlier(&self, header: &Header) {
        if header.is_resent()
            && let Some(handle) = self.open_files.opened_by(header.number())
        {
            self.take_file_back(handle.0);
        }
    }

    /// Undoes an open whose handle the kernel has not received.
    pub(crate) fn take_file_back(&self, handle: u64) {
        self.programs.end(handle);
        let _ = self.fs.take_back(HandleId(handle));
        self.open_files.forget(HandleId(handle));
    }

    pub(crate) fn release_file(&self, number: Ino, handle: u64, wait: Wait) -> Outcome<()> {
        self.programs.end(handle);
        let outcome = self.run("release", number, |fs| match wait {
            Wait::Allowed => fs.release(HandleId(handle)),
            Wait::Never => fs.release_at_once(HandleId(handle)),
        });
        // A release that would have waited is retried later; the kernel does not repeat any other one.
        if outcome != Err(Errno::EAGAIN) {
            self.open_files.forget(HandleId(handle));
        }
        outcome
    }

    pub(crate) fn sync_file(&self, header: &Header, handle: u64, kind: SyncKind) -> Outcome<()> {
        self.run("fsync", ino(header), |fs| fs.sync(&caller(header), HandleId(handle), kind))
    }

    /// Everything of the volume, whichever inode was named.
    pub(crate) fn sync_volume(&self, header: &Header) -> Outcome<()> {
        self.run("syncfs", ino(header), polymux_fs::FileSystem::sync_volume)
    }

    pub(crate) fn allocate_range(&self, header: &Header, place: Place, length: u64, mode: i32) -> Outcome<()> {
        self.run("fallocate", place.ino, |fs| {
            let kind = convert::allocate_kind(mode)?;
            let caller = caller(header);
            self.take_set_id_unless_capable(fs, header, place.ino)?;
            let allocated = fs.allocate(&caller, place.handle(), place.offset, length, kind);
            self.note_written(length);
            allocated
        })
    }

    pub(crate) fn seek_file(&self, header: &Header, handle: u64, offset: i64, whence: i32) -> Outcome<u64> {
        self.run("lseek", ino(header), |fs| {
            let target = convert::seek_target(whence)?;
            // A hole here may be data that the kernel has collected, and the file may be longer. EINVAL makes programs read all of it.
            if self.write_back == WriteBack::On && fs.is_open_for_changes(ino(header)) {
                return Err(Errno::EINVAL.into());
            }
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            fs.seek(&caller(header), HandleId(handle), offset, target)
        })
    }

    pub(crate) fn copy_range(&self, header: &Header, source: Place, target: Place, length: u64) -> Outcome<u32> {
        self.run("copy_file_range", source.ino, |fs| {
            let length = length.min(COPY_LENGTH_MAX);
            let caller = caller(header);
            self.take_set_id_unless_capable(fs, header, target.ino)?;
            let copied =
                fs.copy_range(&caller, source.handle(), source.offset, target.handle(), target.offset, length)?;
            self.note_written(copied);
            Ok(u32::try_from(copied).expect("no more is copied than was asked for"))
        })
    }
}
