//! Disks as files of a small FUSE file system, and the record of what is written to them.
//!
//! What is true here:
//! * One thread serves all requests, in the order of the record: a write that came before a flush was answered before the
//!   flush was asked for or beside it, so what the record puts before a flush is what the flush covers, or more than the
//!   kernel counts on, never less.
//! * Files are opened for direct I/O: what the loop driver writes arrives at once, and its flushes arrive as fsync.
//! * Discarded ranges and ranges to be zeroed are writes of zeros.
//! * The serving thread takes one lock, which nobody holds while waiting for anything.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polymux_transport::wire::{Attr, AttrReply, EntryReply, OpenFlags, OpenReply, Operation, Request, written};
use polymux_transport::{Patience, Reply, Served, Service, Wishes};
use polymux_types::Errno;

use super::disk::Disk;
use super::image::{Record, Recording};
use crate::mounted::native::{is_mounted, text};
use crate::mounted::run;
use crate::promises::history::Position;

/// How long the kernel may keep names and attributes, which never change.
const KEEP: Duration = Duration::from_secs(3600);
/// Inode number of the root.
const ROOT: u64 = 1;
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
    session: Option<Served>,
}

impl RecordedDisks {
    /// Mounts at a directory, which must be there.
    pub fn mount(path: &Path, disks: Vec<(&'static str, Disk)>) -> io::Result<Self> {
        let (names, disks): (Vec<_>, Vec<_>) = disks.into_iter().unzip();
        let state = Arc::new(Mutex::new(State { disks, recording: None }));
        let server = Server { state: Arc::clone(&state), names: names.clone() };
        let place = path.to_owned();
        // The serving thread inherits the mark: memory that it needs is never got by writing to the file systems that wait
        // for it.
        let spawned = std::thread::spawn(move || {
            let _ = rustix::process::configure_io_flusher_behavior(true);
            Served::mount(server, &place, "polymux-disks", Wishes::default(), 1)
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
        let ended = self.session.take().map(Served::unmount);
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

    fn disk(&self, ino: u64) -> Result<usize, Errno> {
        let index = ino.checked_sub(FIRST_FILE).and_then(|index| usize::try_from(index).ok());
        index.filter(|index| *index < self.names.len()).ok_or(Errno::ENOENT)
    }

    fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let (kind, size) = match ino {
            ROOT => (libc::S_IFDIR, 0),
            ino => {
                let disk = self.disk(ino)?;
                (libc::S_IFREG, self.with(|state| state.disks[disk].length()))
            }
        };
        let blocks = size.div_ceil(512);
        Ok(Attr { ino, size, blocks, mode: kind | 0o700, links: 1, block_size: 4096, ..Attr::default() })
    }

    fn lookup(&self, name: &[u8]) -> Result<EntryReply, Errno> {
        let index = self.names.iter().position(|known| known.as_bytes() == name).ok_or(Errno::ENOENT)?;
        let attr = self.attr(FIRST_FILE + index as u64)?;
        Ok(EntryReply { generation: 0, keep_name: KEEP, keep_attr: KEEP, attr })
    }

    fn read(&self, ino: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let length = usize::try_from(size).expect("a request fits into memory");
        let disk = self.disk(ino)?;
        Ok(self.with(|state| state.disks[disk].read(offset, length)))
    }

    fn write(&self, ino: u64, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let disk = self.disk(ino)?;
        self.with(|state| {
            if offset + data.len() as u64 > state.disks[disk].length() {
                return Err(Errno::ENOSPC);
            }
            state.write(disk, offset, data);
            Ok(u32::try_from(data.len()).expect("a request is short"))
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

fn answer<T>(reply: Reply, outcome: Result<T, Errno>, body: impl FnOnce(Reply, T)) {
    match outcome {
        Ok(value) => body(reply, value),
        Err(errno) => reply.error(errno),
    }
}

impl Service for Server {
    fn serve(&self, request: &Request<'_>, reply: Reply, _: Patience) -> Option<Reply> {
        let ino = request.header.node;
        match request.operation {
            Operation::Lookup { name } => {
                answer(reply, self.lookup(name), |reply, entry| reply.body(&entry.encode()));
            }
            Operation::GetAttr => answer(reply, self.attr(ino), |reply, attr| {
                reply.body(&AttrReply { keep_attr: KEEP, attr }.encode());
            }),
            Operation::Open { .. } => reply.body(&OpenReply::new(0, OpenFlags::DIRECT_IO).encode()),
            Operation::Read { offset, size, .. } => {
                answer(reply, self.read(ino, offset, size), |reply, bytes| reply.body(&bytes));
            }
            Operation::Write { offset, data, .. } => {
                answer(reply, self.write(ino, offset, data), |reply, count| reply.body(&written(count)));
            }
            Operation::Sync { .. } => {
                reply.outcome(self.disk(ino).map(|disk| self.with(|state| state.flush(disk))));
            }
            // Of a disk, which has its length and its room, only discards and zeroing are asked.
            Operation::Allocate { offset, length, .. } => {
                reply.outcome(self.disk(ino).map(|disk| self.zero(disk, offset, length)));
            }
            Operation::Release { .. } | Operation::ReleaseDirectory => reply.ok(),
            Operation::OpenDirectory => reply.body(&OpenReply::new(0, OpenFlags::default()).encode()),
            // Flushing at close is among them: the kernel asks once and never again.
            _ => reply.error(Errno::ENOSYS),
        }
        None
    }

    fn forget(&self, _: u64, _: u64) {}
}
