//! Operations of a workload, and carrying them out.
//!
//! What is true here: a workload is a list of operations on names in the root directory; where a name is missing the
//! operation does nothing. Every write has content of its own: each byte tells the write and its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use polymux_fs::{
    AllocateKind, Caller, FileSystem, HandleId, OpenOptions, Progress, RenameMode, SeekTarget, SetAttributes, SyncKind,
    WriteOrigin,
};
use polymux_sim::crash_states::Random;
use polymux_sim::recording::{Journal, Pause};
use polymux_types::Ino;
use polymux_types::sync::Mutex;

use super::history::{History, Mark};
use super::scene::{Mounted, Shape, TIERS};
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
    SyncDirectory,
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
    /// The same, and other operations in the middle of it.
    Beside {
        name: &'static str,
        place: usize,
        pause: Pause,
        index: usize,
        others: Vec<Operation>,
    },
    Drain(usize),
    AddSpare,
    Background,
}

/// A workload on a volume of some shape.
#[derive(Clone, Debug)]
pub struct Workload {
    pub shape: Shape,
    pub operations: Vec<Operation>,
}

/// What came of it.
pub struct Recorded {
    pub journal: Vec<polymux_sim::recording::Event>,
    pub history: History,
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

struct State {
    history: History,
    handles: BTreeMap<Ino, Vec<HandleId>>,
    writes: usize,
}

/// An operation that waits for the mover to come to a place.
struct Armed {
    pause: Pause,
    countdown: usize,
    operations: Vec<Operation>,
}

struct Runner {
    mounted: Mounted,
    journal: Arc<Journal>,
    state: Mutex<State>,
}

fn root() -> Caller {
    Caller::root()
}

impl Runner {
    fn fs(&self) -> &FileSystem {
        &self.mounted.fs
    }

    fn ino(&self, name: &str) -> Option<Ino> {
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

    /// A sync, or a write cut to what can be done on the thread of the mover: a write that needs room may have to wait for the end of
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
            Operation::Rename { from, to } => self.rename(from, to, step),
            Operation::Link { from, to } => self.link(from, to, step),
            Operation::Unlink(name) => self.unlink(name, step),
            Operation::Fsync(name) => self.sync(name, SyncKind::All),
            Operation::Fdatasync(name) => self.sync(name, SyncKind::Data),
            Operation::SyncDirectory => {
                self.fs().sync_directory(&root(), Ino::ROOT).expect("synced");
                self.state.lock().history.promise_names(self.journal.position());
            }
            Operation::SyncVolume => {
                self.fs().sync_volume().expect("synced");
                self.state.lock().history.promise_all(self.journal.position());
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
            Operation::Background => drop(self.mounted.step()),
            Operation::Create(_) => {}
        }
    }

    fn create(&self, name: &str, step: usize) {
        let made = self.fs().create(&root(), Ino::ROOT, name.as_bytes(), 0o644, read_write()).expect("made");
        let mut state = self.state.lock();
        let ino = made.0.ino;
        state.handles.entry(ino).or_default().push(made.1);
        let mut names = state.history.names_now().clone();
        names.insert(name.to_owned(), ino);
        state.history.set_content(step, ino, Vec::new(), None);
        state.history.set_names(step, names, &[ino]);
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
        // A version of its own before the write: what is in the middle of it may survive.
        if now.len() < offset + length {
            now.resize(offset + length, 0);
        }
        now[offset..offset + length].copy_from_slice(&data);
        {
            let mut state = self.state.lock();
            state.history.set_content(step, ino, now, cut);
            state.history.set_written_to(ino, offset + length);
        }
        let count = self.fs().write(&root(), handle, offset as u64, &data, WriteOrigin::Call).expect("written");
        assert_eq!(count, length, "there is room for everything");
    }

    fn truncate(&self, name: &str, size: usize, step: usize) {
        let Some(ino) = self.ino(name) else { return };
        let mut now = self.state.lock().history.content_now(ino).to_vec();
        let cut = (size < now.len()).then_some(size);
        now.resize(size, 0);
        self.state.lock().history.set_content(step, ino, now, cut);
        let change = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        self.fs().set_attributes(&root(), ino, &change).expect("the size is set");
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

    fn rename(&self, from: &str, to: &str, step: usize) {
        let Some(ino) = self.ino(from) else { return };
        let replaced = self.ino(to);
        if replaced == Some(ino) {
            return;
        }
        {
            let mut state = self.state.lock();
            let mut names = state.history.names_now().clone();
            names.remove(from);
            names.insert(to.to_owned(), ino);
            let concerned: Vec<Ino> = [Some(ino), replaced].into_iter().flatten().collect();
            state.history.set_names(step, names, &concerned);
            if replaced.is_some() {
                state.history.promise_replaced(0, ino);
            }
        }
        let (from, to) = (from.as_bytes(), to.as_bytes());
        self.fs().rename(&root(), Ino::ROOT, from, Ino::ROOT, to, RenameMode::Replace).expect("renamed");
    }

    fn link(&self, from: &str, to: &str, step: usize) {
        let (Some(ino), None) = (self.ino(from), self.ino(to)) else { return };
        let mut names = self.state.lock().history.names_now().clone();
        names.insert(to.to_owned(), ino);
        self.state.lock().history.set_names(step, names, &[ino]);
        self.fs().link(&root(), ino, Ino::ROOT, to.as_bytes()).expect("linked");
    }

    fn unlink(&self, name: &str, step: usize) {
        let Some(ino) = self.ino(name) else { return };
        let mut names = self.state.lock().history.names_now().clone();
        names.remove(name);
        self.state.lock().history.set_names(step, names, &[ino]);
        self.fs().unlink(&root(), Ino::ROOT, name.as_bytes()).expect("unlinked");
    }

    fn sync(&self, name: &str, kind: SyncKind) {
        let Some(ino) = self.ino(name) else { return };
        let handle = self.handle(ino, 0);
        self.fs().sync(&root(), handle, kind).expect("synced");
        self.state.lock().history.promise_file(self.journal.position(), ino);
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
            close(self.fs(), handle).expect("closed");
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
    ]
}

/// Carries a workload out.
pub fn run(workload: &Workload) -> Recorded {
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
    let mounted = Mounted::new(&workload.shape, &journal, Some(Arc::new(pause)));
    let mut history = History::default();
    let end = journal.position();
    history.marks.push(Mark { start: 0, end, text: "make the volume".to_owned() });
    history.names.push((0, BTreeMap::new()));
    let state = Mutex::new(State { history, handles: BTreeMap::new(), writes: 0 });
    let running = Arc::new(Runner { mounted, journal: Arc::clone(&journal), state });
    *runner.lock() = Some(Arc::clone(&running));
    base().iter().for_each(|operation| running.step(operation, &armed));
    let first_point = journal.position();
    workload.operations.iter().for_each(|operation| running.step(operation, &armed));
    *runner.lock() = None;
    let history = running.state.lock().history.clone();
    Recorded { journal: journal.events(), history, first_point }
}
