//! Operations of a workload and the promises made to it.
//!
//! Invariants:
//! * Each writer has a directory and files of its own, and notes its operations in a ledger of its own: so the order within
//!   a ledger is the order of its operations.
//! * A change of a file is known by its number within the file, beginning with 1; a sector of the file that a change wrote
//!   is filled with a stamp of the file and that number. Number 0 stands for zeros that no change wrote.
//! * A promise is about everything that the file or the directory had seen before the sync began.

use std::collections::BTreeMap;
use std::ops::Range;

/// Unit that a disk writes whole or not at all.
pub const SECTOR: usize = 512;

/// A place in the order that the crash has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub usize);

/// Index of a file in its ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub usize);

/// A change of a file's bytes or size, in sectors.
#[derive(Clone, Debug)]
pub enum Change {
    Write(Range<u64>),
    /// Zeros, within the size of the file.
    Punch(Range<u64>),
    Resize(u64),
    /// All that there is, as it was found after a crash: the number that each sector shows.
    Found(Vec<u32>),
}

#[derive(Clone, Debug)]
pub struct Event {
    /// Before it began.
    pub begin: Position,
    pub change: Change,
    /// Size of the file after it, in sectors.
    pub size: u64,
}

/// From then on, so many changes are durable.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    pub end: Position,
    pub count: usize,
}

#[derive(Clone, Debug)]
pub struct FileHistory {
    /// Number of its inode, which no other file ever has; `None` while it is not known.
    pub inode: Option<u64>,
    /// Changes of earlier rounds, whose numbers are taken.
    pub earlier: u32,
    pub events: Vec<Event>,
    pub promises: Vec<Promise>,
    /// Where the names are as in this state or a later one, so many changes are durable (rename over another file).
    pub with_names: Vec<(usize, usize)>,
    /// The last state of the names in which this file got one.
    pub named: usize,
}

impl FileHistory {
    /// A file that is about to get its first name with this state of the names.
    pub fn new(named: usize) -> Self {
        Self { inode: None, earlier: 0, events: Vec::new(), promises: Vec::new(), with_names: Vec::new(), named }
    }

    /// The number of the change that comes next.
    pub fn next_number(&self) -> u32 {
        self.earlier + 1 + u32::try_from(self.events.len()).expect("there are few changes")
    }

    /// The changes with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &Event)> {
        (self.earlier + 1..).zip(&self.events)
    }

    pub fn size(&self) -> u64 {
        self.events.last().map_or(0, |event| event.size)
    }
}

/// Names of a directory after one of its changes.
#[derive(Clone, Debug)]
pub struct Names {
    pub begin: Position,
    pub names: BTreeMap<String, FileId>,
}

/// Operations of one writer in its directory.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub directory: String,
    /// Tells its stamps from those of other writers.
    pub writer: u32,
    pub files: Vec<FileHistory>,
    /// The first state is the empty directory, which is durable before the recording begins.
    pub states: Vec<Names>,
    pub promises: Vec<Promise>,
    /// Names that were given so far.
    pub given: u64,
}

impl Ledger {
    pub fn new(writer: u32) -> Self {
        let empty = Names { begin: Position(0), names: BTreeMap::new() };
        let directory = format!("writer-{writer}");
        Self { directory, writer, files: Vec::new(), states: vec![empty], promises: Vec::new(), given: 0 }
    }

    pub fn names(&self) -> &BTreeMap<String, FileId> {
        &self.states.last().expect("there is always a state").names
    }

    /// Notes a change of the names that is about to be made.
    pub fn note_names(&mut self, begin: Position, change: impl FnOnce(&mut BTreeMap<String, FileId>)) {
        let mut names = self.names().clone();
        change(&mut names);
        self.states.push(Names { begin, names });
    }

    /// Notes that the file has got a name with the newest state.
    pub fn note_named(&mut self, file: FileId) {
        self.files[file.0].named = self.states.len() - 1;
    }

    /// Notes a change that is about to be made; returns its number.
    pub fn note_change(&mut self, file: FileId, begin: Position, change: Change) -> u32 {
        let history = &mut self.files[file.0];
        let size = match &change {
            Change::Write(sectors) => history.size().max(sectors.end),
            Change::Punch(_) => history.size(),
            Change::Resize(size) => *size,
            Change::Found(numbers) => numbers.len() as u64,
        };
        let number = history.next_number();
        history.events.push(Event { begin, change, size });
        number
    }

    /// Notes that a sync of the file, begun after all its changes so far, has returned. It promises its names, too.
    pub fn note_file_synced(&mut self, file: FileId, end: Position) {
        let history = &mut self.files[file.0];
        let count = history.events.len();
        history.promises.push(Promise { end, count });
        self.promises.push(Promise { end, count: history.named });
    }

    /// Notes that a sync of the directory, begun after all changes of names so far, has returned.
    pub fn note_names_synced(&mut self, end: Position) {
        self.promises.push(Promise { end, count: self.states.len() - 1 });
    }
}

/// How much of the subject of a list of promises is durable.
pub fn promised(promises: &[Promise], position: Position) -> usize {
    promises.iter().filter(|promise| promise.end <= position).map(|promise| promise.count).max().unwrap_or(0)
}

const STAMP: usize = 32;

/// Content of the sectors of a write, 32 bytes again and again.
pub fn stamp(writer: u32, file: FileId, sector: u64, number: u32) -> [u8; STAMP] {
    let mut stamp = *b"polymux!........................";
    stamp[8..12].copy_from_slice(&writer.to_le_bytes());
    stamp[12..16].copy_from_slice(&u32::try_from(file.0).expect("there are few files").to_le_bytes());
    stamp[16..24].copy_from_slice(&sector.to_le_bytes());
    stamp[24..28].copy_from_slice(&number.to_le_bytes());
    stamp[28..32].copy_from_slice(&(number ^ 0x5a5a_5a5a).to_le_bytes());
    stamp
}

/// Bytes of a write.
pub fn stamped(writer: u32, file: FileId, sectors: Range<u64>, number: u32) -> Vec<u8> {
    sectors.flat_map(|sector| stamp(writer, file, sector, number).repeat(SECTOR / STAMP)).collect()
}

/// The number of the change that a sector shows.
pub fn number_of(sector: &[u8]) -> u32 {
    sector.get(24..28).map_or(0, |bytes| bytes.try_into().map_or(0, u32::from_le_bytes))
}

/// Describes the writer of a piece of a sector for a report.
pub fn describe(piece: &[u8]) -> String {
    let word = |range: Range<usize>| piece.get(range).map(|bytes| bytes.try_into().map_or(0, u32::from_le_bytes));
    match piece {
        piece if piece.iter().all(|byte| *byte == 0) => "zeros".to_owned(),
        piece if piece.starts_with(b"polymux!") && piece.len() == STAMP => format!(
            "writer {} file {} sector {} change {}",
            word(8..12).unwrap_or(0),
            word(12..16).unwrap_or(0),
            word(16..20).unwrap_or(0),
            word(24..28).unwrap_or(0)
        ),
        other => format!("{other:02x?}"),
    }
}
