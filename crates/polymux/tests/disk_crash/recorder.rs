//! Disks as files of a small FUSE file system, and the record of what is written to them.
//!
//! What is true here:
//! * One thread serves all requests, in the order of the record: a write that came before a flush was answered before the
//!   flush was asked for or beside it, so what the record puts before a flush is what the flush covers, or more than the
//!   kernel counts on, never less.
//! * Files are opened for direct I/O: what the loop driver writes arrives at once, and its flushes arrive as fsync.
//! * Discarded ranges and ranges to be zeroed are writes of zeros.
//! * The serving thread takes one lock, which nobody holds while waiting for anything.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, WriteFlags,
};

use super::disk::Disk;
use super::image::{Record, Recording};
use crate::mounted::native::{is_mounted, text};
use crate::mounted::run;
use crate::promises::history::Position;

/// How long the kernel may keep names and attributes, which never change.
const KEEP: Duration = Duration::from_secs(3600);
const REQUEST_LENGTH_MAX: u32 = 1 << 20;
/// Inode numbers of the files follow that of the root.
const FIRST_FILE: u64 = 2;

/// The disks and what was done to them since the recording began.
struct State {
    disks: Vec<Disk>,
    recording: Option<Recording>,
}

impl State {
    fn write(&mut self, disk: usize, offset: u64, bytes: &[u8]) {
        self.disks[disk].write(offset, bytes);
        if let Some(recording) = &mut self.recording {
            recording.records.push(Record::Write { disk, offset, bytes: bytes.into() });
        }
    }

    fn flush(&mut self, disk: usize) {
        if let Some(recording) = &mut self.recording {
            recording.records.push(Record::Flush { disk });
        }
    }
}

/// A mounted file system with a file for each disk; unmounted when dropped.
pub struct RecordedDisks {
    state: Arc<Mutex<State>>,
    names: Vec<&'static str>,
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl RecordedDisks {
    /// Mounts at a directory, which must be there.
    pub fn mount(path: &Path, disks: Vec<(&'static str, Disk)>) -> io::Result<Self> {
        let (names, disks): (Vec<_>, Vec<_>) = disks.into_iter().unzip();
        let state = Arc::new(Mutex::new(State { disks, recording: None }));
        let server = Server { state: Arc::clone(&state), names: names.clone() };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("polymux-disks".to_owned()), MountOption::RW];
        config.n_threads = Some(1);
        let place = path.to_owned();
        // The serving thread inherits the mark: memory that it needs is never got by writing to the file systems that wait
        // for it.
        let spawned = std::thread::spawn(move || {
            let _ = rustix::process::configure_io_flusher_behavior(true);
            fuser::spawn_mount(server, &place, &config)
        });
        let session = spawned.join().expect("mounting does not panic")?;
        Ok(Self { state, names, path: path.to_owned(), session: Some(session) })
    }

    /// The file of a disk.
    pub fn file(&self, disk: usize) -> PathBuf {
        self.path.join(self.names[disk])
    }

    /// What is on the disks now is durable; what follows is recorded.
    pub fn start_recording(&self) {
        let mut state = self.state.lock().expect("the server does not panic");
        state.recording = Some(Recording { base: state.disks.clone(), records: Vec::new() });
    }

    /// The place in the record of what comes next.
    pub fn position(&self) -> Position {
        let state = self.state.lock().expect("the server does not panic");
        Position(state.recording.as_ref().map_or(0, |recording| recording.records.len()))
    }

    /// Ends the recording.
    pub fn stop_recording(&self) -> Recording {
        let mut state = self.state.lock().expect("the server does not panic");
        state.recording.take().expect("it was begun")
    }
}

impl Drop for RecordedDisks {
    fn drop(&mut self) {
        let ended = self.session.take().map(BackgroundSession::umount_and_join);
        if let Some(Err(error)) = ended {
            eprintln!("{}: {error}", self.path.display());
        }
        if is_mounted(&self.path) {
            run(std::process::Command::new("umount").arg("-l").arg(text(&self.path)));
        }
    }
}

struct Server {
    state: Arc<Mutex<State>>,
    names: Vec<&'static str>,
}

impl Server {
    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.state.lock().expect("nobody panics with the lock held"))
    }

    fn disk(&self, ino: INodeNo) -> Result<usize, Errno> {
        let index = ino.0.checked_sub(FIRST_FILE).and_then(|index| usize::try_from(index).ok());
        index.filter(|index| *index < self.names.len()).ok_or(Errno::ENOENT)
    }

    fn attr(&self, ino: INodeNo) -> Result<FileAttr, Errno> {
        let (kind, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0),
            ino => {
                let disk = self.disk(ino)?;
                (FileType::RegularFile, self.with(|state| state.disks[disk].length()))
            }
        };
        Ok(FileAttr {
            ino,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn zero(&self, disk: usize, offset: u64, length: u64) {
        self.with(|state| {
            let end = offset.saturating_add(length).min(state.disks[disk].length());
            let count = usize::try_from(end.saturating_sub(offset)).expect("a disk fits into memory");
            state.write(disk, offset, &vec![0; count]);
        });
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let set = config.set_max_write(REQUEST_LENGTH_MAX).map(drop);
        set.map_err(|nearest| io::Error::other(format!("requests have at most {nearest} bytes")))
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let index = self.names.iter().position(|known| OsStr::new(known) == name).ok_or(Errno::ENOENT);
        match index.and_then(|index| self.attr(INodeNo(FIRST_FILE + index as u64))) {
            Ok(attr) => reply.entry(&KEEP, &attr, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino) {
            Ok(attr) => reply.attr(&KEEP, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = usize::try_from(size).expect("a request fits into memory");
        match self.disk(ino) {
            Ok(disk) => reply.data(&self.with(|state| state.disks[disk].read(offset, length))),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let fits = |disk: &usize| self.with(|state| offset + data.len() as u64 <= state.disks[*disk].length());
        match self.disk(ino).and_then(|disk| Some(disk).filter(fits).ok_or(Errno::ENOSPC)) {
            Ok(disk) => {
                self.with(|state| state.write(disk, offset, data));
                reply.written(u32::try_from(data.len()).expect("a request is short"));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.disk(ino) {
            Ok(disk) => {
                self.with(|state| state.flush(disk));
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    /// Not wanted: the kernel asks once and never again.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, length: u64, _: i32, reply: ReplyEmpty) {
        // Of a disk, which has its length and its room, only discards and zeroing are asked.
        match self.disk(ino) {
            Ok(disk) => {
                self.zero(disk, offset, length);
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }
}
