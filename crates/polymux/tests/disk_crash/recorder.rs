//! Disks as files of a small FUSE file system, and the record of the writes to them.
//!
//! Invariants:
//! * One thread serves all requests, in the order of the record: a write that came before a flush was answered before the
//!   flush was requested or beside it, so the writes that the record puts before a flush are those the flush covers, or more than the
//!   kernel counts on, never less.
//! * Files are opened for direct I/O: writes of the loop driver arrive at once, and its flushes arrive as fsync.
//! * Discarded ranges and ranges to be zeroed are writes of zeros.
//! * The serving thread takes one lock, which no thread holds while it waits for anything.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use polymux_transport::wire::written;
use polymux_transport::{FlatDirectory, FlatFiles, Reply, Served, Wishes};

use super::disk::Disk;
use super::image::{Record, Recording};
use crate::mounted::native::{is_mounted, text};
use crate::mounted::run;
use crate::promises::history::Position;

/// The disks and the operations on them since the recording began.
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
        let server = FlatDirectory(Server { state: Arc::clone(&state), names: names.clone() });
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

    /// The present content of the disks is durable; later operations are recorded.
    pub fn start_recording(&self) {
        let mut state = self.state.lock().expect("the server does not panic");
        state.recording = Some(Recording { base: state.disks.clone(), records: Vec::new() });
    }

    /// The place of the next operation in the record.
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
}

impl FlatFiles for Server {
    fn names(&self) -> &[&'static str] {
        &self.names
    }

    fn length(&self, file: usize) -> u64 {
        self.with(|state| state.disks[file].length())
    }

    fn read(&self, file: usize, offset: u64, length: usize, reply: Reply) {
        reply.body(&self.with(|state| state.disks[file].read(offset, length)));
    }

    fn write(&self, file: usize, offset: u64, data: &[u8], reply: Reply) {
        self.with(|state| state.write(file, offset, data));
        reply.body(&written(u32::try_from(data.len()).expect("a request is short")));
    }

    fn zero(&self, file: usize, offset: u64, length: u64, reply: Reply) {
        let zeros = vec![0; usize::try_from(length).expect("a disk fits into memory")];
        self.with(|state| state.write(file, offset, &zeros));
        reply.ok();
    }

    fn sync(&self, file: usize, reply: Reply) {
        self.with(|state| state.flush(file));
        reply.ok();
    }
}
