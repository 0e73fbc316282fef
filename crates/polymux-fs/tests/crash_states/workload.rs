//! Operations of a workload, and carrying them out.
//!
//! Invariants: a workload is a list of operations on paths; where a name is missing the operation does nothing. Once a sync was made to fail,
//! operations may fail; effects that did not happen are removed from the history. Every write has unique content: each byte identifies the write
//! and its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polymux_fs::{
    AllocateKind, Caller, FileSystem, HandleId, OpenOptions, Progress, SeekTarget, SetAttributes, SyncKind, WriteOrigin,
};
use polymux_sim::crash_states::Random;
use polymux_sim::recording::{Journal, Pause};
use polymux_sim::recording_file_system::Record;
use polymux_types::Ino;
use polymux_types::sync::Mutex;

use super::history::{History, Mark};
use super::scene::{Mounted, Shape, TIERS};
use super::store_device::Backing;
use crate::common::{close, read_write};

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Offset(usize),
    End,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Create(&'static str),
    /// Through the first or the second descriptor of the file.
    Write {
        name: &'static str,
        at: At,
        length: usize,
        descriptor: usize,
    },
    Truncate {
        name: &'static str,
        size: usize,
    },
    Punch {
        name: &'static str,
        offset: usize,
        length: usize,
    },
    /// Reserved space from the end of the file on, by which it grows.
    Reserve {
        name: &'static str,
        length: usize,
    },
    Rename {
        from: &'static str,
        to: &'static str,
    },
    Link {
        from: &'static str,
        to: &'static str,
    },
    Unlink(&'static str),
    Fsync(&'static str),
    Fdatasync(&'static str),
    /// By its path; the root is the empty one.
    SyncDirectory(&'static str),
    MakeDirectory(&'static str),
    RemoveDirectory(&'static str),
    /// Permissions and the time of modification.
    SetAttributes(&'static str),
    /// An extended attribute comes or goes.
    SetXattr(&'static str),
    SyncVolume,
    /// Opened and emptied, written anew, closed.
    Replace {
        name: &'static str,
        length: usize,
    },
    /// Closes all descriptors of the file.
    Close(&'static str),
    /// A move to the tier at a place, carried out.
    Migrate {
        name: &'static str,
        place: usize,
    },
    /// A move to the tier at a place, with other operations in the middle of it.
    Beside {
        name: &'static str,
        place: usize,
        pause: Pause,
        index: usize,
        others: Vec<Operation>,
    },
    Drain(usize),
    AddSpare,
    RemoveSpare,
    /// Syncs of the tier at a place fail from now on.
    FailSyncs(usize),
    /// No syncs fail any more.
    HealSyncs,
    Background,
    /// The store writes tables, and brings its second copy up to date. Nothing where it is a model.
    Checkpoint,
    /// The second copy is brought up to date.
    Ship,
    /// The log of a real store is flushed, as any thread may at any time. A model may keep committed data anyway.
    FlushLog,
}

/// A workload on a volume of some shape.
#[derive(Clone, Debug)]
pub struct Workload {
    pub shape: Shape,
    pub operations: Vec<Operation>,
}

/// The result.
pub struct Recorded {
    pub journal: Vec<polymux_sim::recording::Event>,
    pub history: History,
    /// Files of the store before anything happened, where it has files.
    pub beginning: Option<Record>,
    /// Crash points are looked at from here on: the volume and its first files are durable.
    pub first_point: usize,
}

/// Bytes that tell the file, the write and the place. Never zero.
fn content(ino: Ino, write: usize, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let position = offset + bytes.len();
        let block = (position / 4096) as u64;
        let stamp = Random::new(ino.0 << 48 ^ (write as u64) << 24 ^ block).next_u64();
        let end = (position / 4096 + 1) * 4096;
        for at in position..end.min(offset + length) {
            let turn = u32::try_from(at / 8 % 64).expect("below 64");
            bytes.push(stamp.rotate_left(turn).to_le_bytes()[at % 8] | 1);
        }
    }
    bytes
}

pub struct State {
    pub history: History,
    pub handles: BTreeMap<Ino, Vec<HandleId>>,
    pub directories: BTreeSet<Ino>,
    /// The last sync of these files failed. A sync of the volume tells of that once, as `syncfs` does.
    broken: BTreeSet<Ino>,
    writes: usize,
}

/// An operation that waits for the mover to come to a place.
struct Armed {
    pause: Pause,
    countdown: usize,
    operations: Vec<Operation>,
}

pub struct Runner {
    mounted: Mounted,
    pub journal: Arc<Journal>,
    pub state: Mutex<State>,
}

pub fn root() -> Caller {
    Caller::root()
}

impl Runner {
    pub fn fs(&self) -> &FileSystem {
        &self.mounted.fs
    }

    pub fn ino(&self, name: &str) -> Option<Ino> {
        self.state.lock().history.names_now().get(name).copied()
    }

    fn handle(&self, ino: Ino, descriptor: usize) -> HandleId {
        let known = self.state.lock().handles.get(&ino).map_or(0, Vec::len);
        for _ in known..=descriptor {
            let handle = self.fs().open(&root(), ino, read_write()).expect("it opens");
            self.state.lock().handles.entry(ino).or_default().push(handle);
        }
        self.state.lock().handles[&ino][descriptor]
    }

    /// A sync, or a write limited to operations allowed on the thread of the mover: a write that needs space may have to wait for the end of
    /// the move.
    fn without_waiting(&self, operation: &Operation) -> Option<Operation> {
        let (name, offset, length, descriptor) = match *operation {
            Operation::Write { name, at: At::Offset(offset), length, descriptor } => (name, offset, length, descriptor),
            Operation::Fsync(name) => return Some(Operation::Fsync(name)),
            _ => return None,
        };
        let ino = self.ino(name)?;
        let size = self.state.lock().history.content_now(ino).len();
        let length = length.min(size.saturating_sub(offset));
        let handle = self.handle(ino, descriptor);
        let seek = |target| self.fs().seek(&root(), handle, offset as u64, target).ok();
        let is_data = seek(SeekTarget::Data) == Some(offset as u64)
            && seek(SeekTarget::Hole).is_some_and(|hole| hole >= (offset + length) as u64);
        (length > 0 && is_data).then_some(Operation::Write { name, at: At::Offset(offset), length, descriptor })
    }

    /// Whether an operation succeeded, which it has to as long as no sync was made to fail.
    fn succeeds<T>(&self, outcome: polymux_fs::Result<T>) -> bool {
        let may_fail = self.state.lock().history.has_failed_syncs;
        match outcome {
            Ok(_) => true,
            Err(_) if may_fail => false,
            Err(error) => panic!("it fails: {error}"),
        }
    }

    /// The last change of a content failed: it may have happened in part, and the file continues from the previous content.
    fn take_back(&self, ino: Ino, before: &[u8], step: usize) {
        self.state.lock().history.set_content(step, ino, before.to_vec(), None);
    }

    /// Carries an operation out as a step of its own.
    fn step(&self, operation: &Operation, armed: &Mutex<Option<Armed>>) {
        let start = self.journal.position();
        let step = {
            let mut state = self.state.lock();
            state.history.marks.push(Mark { start, end: usize::MAX, text: format!("{operation:?}") });
            state.history.marks.len() - 1
        };
        self.apply(operation, step, armed);
        let end = self.journal.position();
        self.state.lock().history.marks[step].end = end;
    }

    fn apply(&self, operation: &Operation, step: usize, armed: &Mutex<Option<Armed>>) {
        match operation {
            Operation::Create(name) if self.ino(name).is_none() => self.create(name, step),
            Operation::Write { name, at, length, descriptor } => {
                if let Some(ino) = self.ino(name) {
                    let handle = self.handle(ino, *descriptor);
                    self.write(ino, handle, *at, *length, step, None);
                }
            }
            Operation::Truncate { name, size } => self.truncate(name, *size, step),
            Operation::Punch { name, offset, length } => self.punch(name, *offset, *length, step),
            Operation::Reserve { name, length } => self.reserve(name, *length, step),
            Operation::Rename { from, to } => self.rename(from, to, step),
            Operation::Link { from, to } => self.link(from, to, step),
            Operation::Unlink(name) => self.unlink(name, step),
            Operation::Fsync(name) => self.sync(name, SyncKind::All),
            Operation::Fdatasync(name) => self.sync(name, SyncKind::Data),
            Operation::SyncDirectory(path) => self.sync_directory(path),
            Operation::MakeDirectory(path) => self.make_directory(path, step),
            Operation::RemoveDirectory(path) => self.remove_directory(path, step),
            Operation::SetAttributes(path) => self.set_attributes(path, step),
            Operation::SetXattr(path) => self.set_xattr(path, step),
            Operation::SyncVolume => {
                let succeeds = self.succeeds(self.fs().sync_volume());
                let (position, mut state) = (self.journal.position(), self.state.lock());
                if succeeds {
                    let State { history, broken, .. } = &mut *state;
                    history.promise_all(position, broken);
                } else {
                    state.broken = state.history.files.keys().copied().collect();
                }
            }
            Operation::Replace { name, length } => self.replace(name, *length, step),
            Operation::Close(name) => self.close(name),
            Operation::Migrate { name, place } => self.migrate(name, *place),
            Operation::Beside { name, place, pause, index, others } => {
                *armed.lock() = Some(Armed { pause: *pause, countdown: *index, operations: others.clone() });
                self.migrate(name, *place);
                *armed.lock() = None;
            }
            Operation::Drain(place) => {
                if self.fs().start_drain(TIERS[*place]).is_ok() {
                    self.move_all();
                }
            }
            Operation::AddSpare => drop(self.mounted.add_spare()),
            // It may hold something.
            Operation::RemoveSpare => drop(self.mounted.remove_spare()),
            Operation::FailSyncs(place) => {
                self.state.lock().history.has_failed_syncs = true;
                self.mounted.fail_syncs(*place);
            }
            Operation::HealSyncs => self.mounted.heal_syncs(),
            Operation::Background => drop(self.mounted.step()),
            Operation::Checkpoint => self.note_shipped(self.mounted.store.checkpoint()),
            Operation::FlushLog => self.mounted.store.flush_log().expect("the store works"),
            Operation::Ship => self.note_shipped(self.mounted.store.ship()),
            Operation::Create(_) => {}
        }
    }

    fn note_shipped(&self, done: Result<(), String>) {
        done.expect("the store works");
        self.state.lock().history.note_shipped(self.journal.position());
    }

    fn write(&self, ino: Ino, handle: HandleId, at: At, length: usize, step: usize, cut: Option<usize>) {
        let (mut now, number) = {
            let mut state = self.state.lock();
            state.writes += 1;
            (state.history.content_now(ino).to_vec(), state.writes)
        };
        let offset = match at {
            At::Offset(offset) => offset,
            At::End => now.len(),
        };
        let data = content(ino, number, offset, length);
        let before = now.clone();
        // A version of its own before the write: a state in the middle of it may survive.
        if now.len() < offset + length {
            now.resize(offset + length, 0);
        }
        now[offset..offset + length].copy_from_slice(&data);
        {
            let mut state = self.state.lock();
            state.history.set_content(step, ino, now, cut);
            state.history.set_written_to(ino, offset + length);
        }
        let written = self.fs().write(&root(), handle, offset as u64, &data, WriteOrigin::Call);
        if let Ok(count) = written {
            let may_be_short = self.state.lock().history.has_failed_syncs;
            assert!(
                count == length || may_be_short,
                "there is room for everything, and {count} of {length} are written"
            );
            if count < length {
                let mut before = before.clone();
                before.resize(before.len().max(offset + count), 0);
                before[offset..offset + count].copy_from_slice(&data[..count]);
                self.take_back(ino, &before, step);
            }
        }
        if !self.succeeds(written) {
            self.take_back(ino, &before, step);
        }
    }

    fn truncate(&self, name: &str, size: usize, step: usize) {
        let Some(ino) = self.ino(name) else { return };
        let mut now = self.state.lock().history.content_now(ino).to_vec();
        let before = now.clone();
        let cut = (size < now.len()).then_some(size);
        now.resize(size, 0);
        self.state.lock().history.set_content(step, ino, now, cut);
        let change = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        if !self.succeeds(self.fs().set_attributes(&root(), ino, &change)) {
            self.take_back(ino, &before, step);
        }
    }

    fn punch(&self, name: &str, offset: usize, length: usize, step: usize) {
        let Some(ino) = self.ino(name) else { return };
        let handle = self.handle(ino, 0);
        let mut now = self.state.lock().history.content_now(ino).to_vec();
        let end = now.len().min(offset + length);
        now[offset.min(end)..end].fill(0);
        self.state.lock().history.set_content(step, ino, now, None);
        let (offset, length) = (offset as u64, length as u64);
        self.fs().allocate(&root(), handle, offset, length, AllocateKind::PunchHole).expect("punched");
    }

    fn reserve(&self, name: &str, length: usize, step: usize) {
        let Some(ino) = self.ino(name) else { return };
        let handle = self.handle(ino, 0);
        let mut now = self.state.lock().history.content_now(ino).to_vec();
        let (before, offset) = (now.clone(), now.len());
        now.resize(offset + length, 0);
        {
            let mut state = self.state.lock();
            state.history.set_content(step, ino, now, None);
            state.history.set_written_to(ino, offset + length);
        }
        let reserved = self.fs().allocate(&root(), handle, offset as u64, length as u64, AllocateKind::Extend);
        if !self.succeeds(reserved) {
            self.take_back(ino, &before, step);
        }
    }

    fn sync(&self, name: &str, kind: SyncKind) {
        let Some(ino) = self.ino(name) else { return };
        let handle = self.handle(ino, 0);
        if !self.succeeds(self.fs().sync(&root(), handle, kind)) {
            self.state.lock().broken.insert(ino);
            return;
        }
        let position = self.journal.position();
        let mut state = self.state.lock();
        state.broken.remove(&ino);
        state.history.promise_file(position, ino);
        if kind == SyncKind::All {
            state.history.promise_facts(position, ino);
        }
    }

    fn replace(&self, name: &str, length: usize, step: usize) {
        let Some(ino) = self.ino(name) else { return };
        let was_empty = self.state.lock().history.content_now(ino).is_empty();
        let emptied = {
            let mut state = self.state.lock();
            state.history.set_content(step, ino, Vec::new(), Some(0));
            state.history.files[&ino].len() - 1
        };
        let options = OpenOptions { truncate: true, ..read_write() };
        let handle = self.fs().open(&root(), ino, options).expect("opened");
        self.write(ino, handle, At::Offset(0), length, step, Some(0));
        close(self.fs(), handle).expect("closed");
        let is_inline = self.fs().locate(ino).expect("located").bytes_inline > 0;
        let position = self.journal.position();
        if was_empty {
            // There was no content that could be lost on the way to the new one, so its close waits for nothing.
            return;
        }
        let mut state = self.state.lock();
        state.history.set_gone(ino, emptied, position);
        if !is_inline {
            // The bytes of a small file are logged when it is closed, and not waited for.
            state.history.promise_file(position, ino);
        }
    }

    fn close(&self, name: &str) {
        let Some(ino) = self.ino(name) else { return };
        let handles = self.state.lock().handles.remove(&ino).unwrap_or_default();
        for handle in handles {
            self.succeeds(close(self.fs(), handle));
        }
    }

    fn migrate(&self, name: &str, place: usize) {
        let Some(ino) = self.ino(name) else { return };
        // A refusal is an answer like any other: an inline file, a tier that is not there.
        if self.fs().migrate(ino, TIERS[place], None).is_ok() {
            self.move_all();
        }
    }

    fn move_all(&self) {
        let done = (0..200).any(|_| self.fs().move_step() == Progress::Idle);
        assert!(done, "the mover does not end: {:?}", self.fs().moves());
    }
}

/// The files that a workload finds: `a` of three blocks and a half, `b` in the metadata store.
fn base() -> Vec<Operation> {
    vec![
        Operation::Create("a"),
        Operation::Write { name: "a", at: At::End, length: 14_000, descriptor: 0 },
        Operation::Create("b"),
        Operation::Write { name: "b", at: At::End, length: 1000, descriptor: 0 },
        Operation::SyncVolume,
        Operation::Ship,
    ]
}

/// Carries a workload out.
pub fn run(workload: &Workload, backing: Backing) -> Recorded {
    let journal = Arc::new(Journal::new());
    let armed: Arc<Mutex<Option<Armed>>> = Arc::default();
    let runner: Arc<Mutex<Option<Arc<Runner>>>> = Arc::default();
    let pause = {
        let (armed, runner) = (Arc::clone(&armed), Arc::clone(&runner));
        let mover = std::thread::current().id();
        move |_: usize, pause: Pause| {
            if std::thread::current().id() != mover {
                return;
            }
            let due = {
                let mut waiting = armed.lock();
                match waiting.as_mut() {
                    Some(one) if one.pause == pause && one.countdown == 0 => waiting.take(),
                    Some(one) if one.pause == pause => {
                        one.countdown -= 1;
                        None
                    }
                    _ => None,
                }
            };
            let runner = runner.lock().clone();
            let (Some(due), Some(runner)) = (due, runner) else { return };
            for operation in due.operations.iter().filter_map(|operation| runner.without_waiting(operation)) {
                runner.step(&operation, &armed);
            }
        }
    };
    let mounted = Mounted::new(&workload.shape, backing, &journal, Some(Arc::new(pause)));
    let mut history = History::of_volume(workload.shape.spreading());
    let end = journal.position();
    history.marks.push(Mark { start: 0, end, text: "make the volume".to_owned() });
    history.names.push((0, BTreeMap::new()));
    let state = Mutex::new(State {
        history,
        handles: BTreeMap::new(),
        directories: BTreeSet::new(),
        broken: BTreeSet::new(),
        writes: 0,
    });
    let running = Arc::new(Runner { mounted, journal: Arc::clone(&journal), state });
    *runner.lock() = Some(Arc::clone(&running));
    base().iter().for_each(|operation| running.step(operation, &armed));
    let first_point = journal.position();
    workload.operations.iter().for_each(|operation| running.step(operation, &armed));
    *runner.lock() = None;
    let history = running.state.lock().history.clone();
    let beginning = running.mounted.store.beginning().cloned();
    Recorded { journal: journal.events(), history, beginning, first_point }
}
