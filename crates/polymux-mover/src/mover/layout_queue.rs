//! Files that are to be laid out anew, and when each tier had something to do last.
//!
//! Invariants: the queue is in memory, and bounded. How a file was read counts more than that it was written, for the one file and for the
//! places in the queue.

use std::collections::BTreeMap;
use std::time::Duration;

use polymux_types::sync::Mutex;
use polymux_types::{Ino, TierId};
use polymux_volume::heat::ReadUse;

/// Most files in the queue.
const FILES_MAX: usize = 1024;

/// Most files in the queue that were written, and for which no reader has waited.
const WRITTEN_MAX: usize = 512;

/// Files looked at in a step.
const FILES_PER_STEP: usize = 16;

/// Files to be laid out anew. Its lock is a leaf, but for those of tiers that are asked for their counters and their load.
#[derive(Debug, Default)]
pub(crate) struct LayoutQueue {
    pub(crate) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// When the window of readers began.
    pub(crate) window_began: Duration,
    /// Bytes read from each tier by all readers up to then.
    pub(crate) bytes_read: BTreeMap<TierId, u64>,
    /// When each tier was seen to have something to do last, while a file is queued.
    pub(crate) busy_seen: BTreeMap<TierId, Duration>,
    files: BTreeMap<Ino, QueuedFile>,
    /// How many of them were written, and not read.
    written: usize,
    /// Where the look through them goes on.
    next: Ino,
}

/// The readers that a file is laid out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuedFile {
    /// How it is read, or is likely to be.
    pub(crate) reads: ReadUse,
    pub(crate) cause: Cause,
    /// Samples of a large file that are laid out already.
    pub(crate) samples_done: u64,
}

/// Why a file is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It was written, and no reader has waited for it.
    Written,
    /// Its readers waited.
    ReadersWaited,
}

/// Whether a file was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Yes,
    /// There are too many, or more is known of it than this.
    Refused,
}

impl QueuedFile {
    pub(crate) fn new(reads: ReadUse, cause: Cause) -> Self {
        Self { reads, cause, samples_done: 0 }
    }
}

impl State {
    /// Adds a file, or updates one that is queued.
    pub(crate) fn add(&mut self, ino: Ino, file: QueuedFile) -> Added {
        let is_welcome = match (file.cause, self.files.get(&ino)) {
            (Cause::Written, Some(known)) => known.cause == Cause::Written,
            (Cause::Written, None) => self.written < WRITTEN_MAX && self.files.len() < FILES_MAX,
            (Cause::ReadersWaited, Some(_)) => true,
            (Cause::ReadersWaited, None) => self.files.len() < FILES_MAX || self.drop_written(),
        };
        if !is_welcome {
            return Added::Refused;
        }
        self.take(ino);
        self.written += usize::from(file.cause == Cause::Written);
        self.files.insert(ino, file);
        Added::Yes
    }

    /// Puts one back that was taken, unless more is known of it by now.
    pub(crate) fn put_back(&mut self, ino: Ino, file: QueuedFile) {
        if !self.files.contains_key(&ino) {
            self.add(ino, file);
        }
    }

    fn take(&mut self, ino: Ino) -> Option<QueuedFile> {
        let file = self.files.remove(&ino)?;
        self.written -= usize::from(file.cause == Cause::Written);
        Some(file)
    }

    /// Drops a written file to free a place for one whose readers waited.
    fn drop_written(&mut self) -> bool {
        let written = self.files.iter().find(|(_, file)| file.cause == Cause::Written).map(|(ino, _)| *ino);
        written.and_then(|ino| self.take(ino)).is_some()
    }

    /// Whether no file is queued. Then the tiers are not inspected, and their recorded state is dropped.
    pub(crate) fn has_nobody(&mut self) -> bool {
        let has_nobody = self.files.is_empty();
        if has_nobody {
            self.busy_seen.clear();
        }
        has_nobody
    }

    /// Takes the next files out, from where the last look ended.
    pub(crate) fn take_turn(&mut self) -> Vec<(Ino, QueuedFile)> {
        let (before, from) = (self.files.range(..self.next), self.files.range(self.next..));
        let turn: Vec<Ino> = from.chain(before).take(FILES_PER_STEP).map(|(ino, _)| *ino).collect();
        self.next = turn.last().map_or(Ino(0), |ino| Ino(ino.0.saturating_add(1)));
        turn.into_iter().filter_map(|ino| Some((ino, self.take(ino)?))).collect()
    }

    pub(crate) fn file(&self, ino: Ino) -> Option<QueuedFile> {
        self.files.get(&ino).copied()
    }

    pub(crate) fn files(&self) -> BTreeMap<Ino, QueuedFile> {
        self.files.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(cause: Cause, stream_bytes: u64) -> QueuedFile {
        QueuedFile::new(ReadUse { stream_bytes, ..ReadUse::default() }, cause)
    }

    #[test]
    fn how_a_file_was_read_counts_more_than_that_it_was_written() {
        let mut state = State::default();
        assert_eq!(state.add(Ino(1), file(Cause::Written, 1)), Added::Yes);
        assert_eq!(state.add(Ino(1), file(Cause::Written, 2)), Added::Yes);
        assert_eq!(state.add(Ino(1), file(Cause::ReadersWaited, 3)), Added::Yes);
        assert_eq!(state.add(Ino(1), file(Cause::Written, 4)), Added::Refused);
        assert_eq!(state.add(Ino(1), file(Cause::ReadersWaited, 5)), Added::Yes);
        assert_eq!(state.file(Ino(1)), Some(file(Cause::ReadersWaited, 5)));
        assert_eq!(state.written, 0);
    }

    #[test]
    fn files_that_were_written_make_room_for_those_whose_readers_waited() {
        let mut state = State::default();
        (0..2000).for_each(|ino| {
            state.add(Ino(ino), file(Cause::Written, 1));
        });
        assert_eq!((state.files.len(), state.written), (WRITTEN_MAX, WRITTEN_MAX));
        for ino in 10_000..10_000 + FILES_MAX as u64 {
            assert_eq!(state.add(Ino(ino), file(Cause::ReadersWaited, 1)), Added::Yes);
        }
        assert_eq!((state.files.len(), state.written), (FILES_MAX, 0));
        assert_eq!(state.add(Ino(1), file(Cause::ReadersWaited, 1)), Added::Refused);
        assert_eq!(state.add(Ino(10_007), file(Cause::ReadersWaited, 2)), Added::Yes, "it is queued already");
    }

    #[test]
    fn each_has_its_turn_and_what_is_put_back_is_no_older_than_what_is_known() {
        let mut state = State::default();
        (0..100).for_each(|ino| {
            state.add(Ino(ino), file(Cause::ReadersWaited, 1));
        });
        let mut seen: Vec<Ino> = Vec::new();
        for _ in 0..100_usize.div_ceil(FILES_PER_STEP) {
            let turn = state.take_turn();
            seen.extend(turn.iter().map(|(ino, _)| *ino));
            for (ino, file) in turn {
                state.put_back(ino, file);
            }
        }
        assert!((0..100).all(|ino| seen.contains(&Ino(ino))), "{seen:?}");
        let (ino, old) = state.take_turn()[0];
        state.add(ino, file(Cause::ReadersWaited, 9));
        state.put_back(ino, old);
        assert_eq!(state.file(ino), Some(file(Cause::ReadersWaited, 9)));
    }
}
