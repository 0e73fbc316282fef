//! Records of open files for the next daemon, in memory that the supervisor keeps (docs/design/0037).
//!
//! Invariants:
//! * A description is on record before its open is answered, and until its release was carried out. So the next daemon knows each one that
//!   the kernel has, and which request made it.
//! * A record is written by one system call within one page: a process that is killed leaves it whole or not at all.
//! * Of an operation whose result does not show whether it was carried out (an exchange of names), one fact is on record before it
//!   begins. These records are a ring: the oldest is overwritten, long after its operation was answered.
//! * Where no process keeps the connection there is no file, and nothing is written.
//!
//! Lock order: `slots` is a leaf.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use polymux_fs::HandleId;
use polymux_types::Ino;
use polymux_types::sync::Mutex;

/// Bytes of a record; a page holds a whole number of them.
const RECORD_LENGTH: usize = 64;
/// Bytes of a record that mean something.
const USED_LENGTH: usize = 32;
/// Operations that are on record at the same time: far more than threads that carry any out.
const INTENTS: u64 = 1024;
/// Place of the first description.
const FIRST_FILE: u64 = INTENTS;
/// Records that are read at once.
const RECORDS_AT_ONCE: usize = 1024;

/// Kinds of records, which their first number begins with; a place that was never used or is free has 0.
const OPEN_FILE: u32 = 1;
const INTENT: u32 = 2;

/// An open description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenFile {
    pub(crate) handle: HandleId,
    pub(crate) ino: Ino,
    /// Number of the request that opened it.
    pub(crate) request: u64,
    /// Flags of its open, as the kernel gave them.
    pub(crate) flags: i32,
}

/// State before an operation that looks the same as the state after it: the inode that a name stands for, or whether an attribute exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fact(pub(crate) u64);

/// All that is on record.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    /// The memory; none where the daemon's death ends the connection.
    file: Option<File>,
    slots: Mutex<Slots>,
    intents: AtomicU64,
    inherited: Mutex<Inherited>,
}

/// Places of the records of this daemon.
#[derive(Debug, Default)]
struct Slots {
    of_handles: HashMap<u64, u64>,
    free: Vec<u64>,
    /// No place from here on was used.
    end: u64,
}

/// Records of earlier daemons, by the number of the request.
#[derive(Debug, Default)]
struct Inherited {
    opened: HashMap<u64, HandleId>,
    facts: HashMap<u64, Fact>,
}

/// A record as bytes: kind, flags, and three numbers.
fn encode(kind: u32, flags: i32, numbers: [u64; 3]) -> [u8; USED_LENGTH] {
    let mut bytes = [0; USED_LENGTH];
    bytes[0..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..8].copy_from_slice(&flags.to_le_bytes());
    for (place, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Reads a record.
fn decode(bytes: &[u8; RECORD_LENGTH]) -> (u32, i32, [u64; 3]) {
    let number = |place: usize| u64::from_le_bytes(bytes[place..place + 8].try_into().expect("eight bytes"));
    let short = |place: usize| -> [u8; 4] { bytes[place..place + 4].try_into().expect("four bytes") };
    (u32::from_le_bytes(short(0)), i32::from_le_bytes(short(4)), [number(8), number(16), number(24)])
}

impl OpenFiles {
    /// Records in this file, which is empty or comes from an earlier daemon.
    pub(crate) fn within(file: File) -> Self {
        Self { file: Some(file), slots: Mutex::new(Slots { end: FIRST_FILE, ..Slots::default() }), ..Self::default() }
    }

    /// Whether a later daemon reads the records.
    pub(crate) fn are_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the records of earlier daemons; returns the open descriptions.
    ///
    /// # Errors
    /// As `read(2)`.
    pub(crate) fn take_up(&self) -> io::Result<Vec<OpenFile>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let (mut slots, mut inherited) = (self.slots.lock(), self.inherited.lock());
        let records = file.metadata()?.len().div_ceil(RECORD_LENGTH as u64);
        slots.end = records.max(FIRST_FILE);
        let mut chunk = vec![[0_u8; RECORD_LENGTH]; RECORDS_AT_ONCE];
        let mut place = 0;
        while place < records {
            // The file ends with the part of its last record that is used.
            chunk.as_flattened_mut().fill(0);
            read_up_to(file, chunk.as_flattened_mut(), place * RECORD_LENGTH as u64)?;
            for record in &chunk {
                let (kind, flags, [first, second, request]) = decode(record);
                match kind {
                    OPEN_FILE if place >= FIRST_FILE => {
                        let handle = HandleId(first);
                        slots.of_handles.insert(first, place);
                        inherited.opened.insert(request, handle);
                        found.push(OpenFile { handle, ino: Ino(second), request, flags });
                    }
                    INTENT if place < FIRST_FILE => {
                        if inherited.facts.keys().all(|known| *known < request) {
                            // None of them is overwritten before many others came.
                            self.intents.store(place + 1, Ordering::Relaxed);
                        }
                        inherited.facts.insert(request, Fact(first));
                    }
                    _ if (FIRST_FILE..records).contains(&place) => slots.free.push(place),
                    _ => {}
                }
                place += 1;
            }
        }
        Ok(found)
    }

    /// Puts an open description on record, before it is answered.
    ///
    /// # Errors
    /// As `write(2)`: then the next daemon would not know of it.
    pub(crate) fn note(&self, OpenFile { handle, ino, request, flags }: OpenFile) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let place = {
            let mut slots = self.slots.lock();
            let place = slots.free.pop().unwrap_or_else(|| {
                slots.end += 1;
                slots.end - 1
            });
            slots.of_handles.insert(handle.0, place);
            place
        };
        put(file, place, &encode(OPEN_FILE, flags, [handle.0, ino.get(), request])).inspect_err(|_| self.forget(handle))
    }

    /// Takes a description off the record, once it was released.
    pub(crate) fn forget(&self, handle: HandleId) {
        let Some(file) = &self.file else { return };
        let Some(place) = self.slots.lock().of_handles.remove(&handle.0) else { return };
        // Its place is used again only where no record is left in it.
        match put(file, place, &[0; USED_LENGTH]) {
            Ok(()) => self.slots.lock().free.push(place),
            Err(error) => log::error!("file handle {} stays on record although it is closed: {error}", handle.0),
        }
    }

    /// The description that an earlier daemon opened for a request, if it did.
    pub(crate) fn opened_by(&self, request: u64) -> Option<HandleId> {
        self.inherited.lock().opened.remove(&request)
    }

    /// Records a fact from before an operation is carried out.
    ///
    /// # Errors
    /// As `write(2)`.
    pub(crate) fn note_fact(&self, request: u64, fact: Fact) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let place = self.intents.fetch_add(1, Ordering::Relaxed) % INTENTS;
        put(file, place, &encode(INTENT, 0, [fact.0, 0, request]))
    }

    /// The recorded fact from before an operation that an earlier daemon began to carry out; `None` where it did not begin.
    pub(crate) fn fact_of(&self, request: u64) -> Option<Fact> {
        self.inherited.lock().facts.get(&request).copied()
    }
}

fn put(file: &File, place: u64, record: &[u8; USED_LENGTH]) -> io::Result<()> {
    file.write_all_at(record, place * RECORD_LENGTH as u64)
}

/// Reads until the buffer is full or the file ends.
fn read_up_to(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match file.read_at(buffer, offset) {
            Ok(0) => break,
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(number: u64) -> OpenFile {
        OpenFile { handle: HandleId(number), ino: Ino(number + 100), request: number + 1000, flags: 0o100_002 }
    }

    fn next_daemon(file: &File) -> (OpenFiles, Vec<u64>) {
        let files = OpenFiles::within(file.try_clone().unwrap());
        let mut found = files.take_up().unwrap();
        found.sort_by_key(|file| file.handle.0);
        assert!(found.iter().all(|file| *file == opened(file.handle.0)), "{found:?}");
        (files, found.iter().map(|file| file.handle.0).collect())
    }

    #[test]
    fn the_next_daemon_knows_what_is_open_and_what_was_closed_it_does_not() {
        let file = tempfile::tempfile().unwrap();
        let first = OpenFiles::within(file.try_clone().unwrap());
        assert_eq!(first.take_up().unwrap(), []);
        (1..=3000).for_each(|number| first.note(opened(number)).unwrap());
        (1..=3000).filter(|number| number % 3 != 0).for_each(|number| first.forget(HandleId(number)));
        let (second, known) = next_daemon(&file);
        assert_eq!(known, (1..=3000).filter(|number| number % 3 == 0).collect::<Vec<_>>());
        assert_eq!(second.opened_by(1003), Some(HandleId(3)));
        assert_eq!(second.opened_by(1003), None, "once");
        assert_eq!(second.opened_by(1004), None, "it was closed");
        // Places are used again, also those of closed files, and those of open ones are not.
        let length = file.metadata().unwrap().len();
        second.forget(HandleId(3));
        (5000..7000).for_each(|number| second.note(opened(number)).unwrap());
        assert_eq!(file.metadata().unwrap().len(), length);
        let (_, known) = next_daemon(&file);
        assert_eq!(known.len(), 1000 - 1 + 2000);
    }

    #[test]
    fn facts_are_known_by_their_request_until_many_others_came() {
        let file = tempfile::tempfile().unwrap();
        let first = OpenFiles::within(file.try_clone().unwrap());
        first.note_fact(7, Fact(1)).unwrap();
        first.note(opened(1)).unwrap();
        let (second, known) = next_daemon(&file);
        assert_eq!(known, [1]);
        assert_eq!((second.fact_of(7), second.fact_of(8)), (Some(Fact(1)), None));
        (0..INTENTS).for_each(|request| second.note_fact(request + 100, Fact(request + 3)).unwrap());
        let (third, known) = next_daemon(&file);
        assert_eq!(known, [1]);
        assert_eq!((third.fact_of(7), third.fact_of(101)), (None, Some(Fact(4))));
    }

    #[test]
    fn facts_of_an_earlier_daemon_are_not_overwritten_by_the_first_ones_of_the_next() {
        let file = tempfile::tempfile().unwrap();
        let first = OpenFiles::within(file.try_clone().unwrap());
        (1..=3).for_each(|request| first.note_fact(request, Fact(request)).unwrap());
        let (second, _) = next_daemon(&file);
        (10..20).for_each(|request| second.note_fact(request, Fact(0)).unwrap());
        let (third, _) = next_daemon(&file);
        assert!((1..=3).all(|request| third.fact_of(request) == Some(Fact(request))));
    }

    #[test]
    fn nothing_is_on_record_where_the_connection_ends_with_its_daemon() {
        let files = OpenFiles::default();
        files.note(opened(1)).unwrap();
        files.note_fact(1, Fact(1)).unwrap();
        files.forget(HandleId(1));
        assert_eq!(files.take_up().unwrap(), []);
        assert_eq!(files.fact_of(1), None);
    }
}
