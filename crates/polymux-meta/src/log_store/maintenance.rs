//! Background work of the store: sealing, writing tables, compaction, freeing space.
//!
//! Invariants:
//! * `maintenance` is held by one thread at a time, so memtables are written in the order of the log.
//! * A failure to write tables for lack of space is not an error of the store: everything is in the log. The memtable stays
//!   and is tried again; commits wait only when log and memory are full, and then fail for lack of free space.
//! * Any other failure poisons the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Inner, Levels, Sealed, StepProgress};
use crate::copy::Round;
use crate::error::StoreError;
use crate::memtable::Memtable;
use crate::tables::{CompactionNeed, Urgency};

/// Memtables take more space as tables: filters, indexes, and files of their own.
const TABLE_ROOM_MIN: u64 = 1024 * 1024;

impl Inner {
    /// One round of everything.
    pub(super) fn step(&self) -> Result<StepProgress, StoreError> {
        let mut worked = self.write_log_if_due()?;
        worked |= self.write_memtable_if_due()?;
        worked |= self.compact_if_due()?;
        worked |= self.ship() == Round::Worked;
        Ok(if worked { StepProgress::Worked } else { StepProgress::Idle })
    }

    /// Hands a part of the window to the medium, so that no commit has to.
    pub(super) fn write_log_if_due(&self) -> Result<bool, StoreError> {
        if self.log.unwritten() < self.log.window_length() / 4 {
            return Ok(false);
        }
        self.log.write_out()
    }

    /// Seals the active memtable where it is full, and writes the sealed one.
    pub(super) fn write_memtable_if_due(&self) -> Result<bool, StoreError> {
        let _maintenance = self.maintenance.lock();
        self.ballast.look()?;
        let due = {
            let levels = self.levels.read();
            levels.sealed.is_some() || self.is_full(&levels)
        };
        if due { self.seal_and_write() } else { Ok(false) }
    }

    fn is_full(&self, levels: &Levels) -> bool {
        let span = self.log.tail() - levels.active.start();
        levels.active.bytes() >= self.memtable_bytes_max || span >= self.log_span_max
    }

    /// Writes both memtables, whatever is in them.
    pub(super) fn write_everything(&self) -> Result<(), StoreError> {
        let _maintenance = self.maintenance.lock();
        while self.levels.read().sealed.is_some() || self.log.checkpoint() < self.log.tail() {
            if !self.seal_and_write()? {
                return Err(StoreError::NoSpace);
            }
        }
        Ok(())
    }

    /// Writes the sealed memtable, or seals the active one and writes that. Under `maintenance`. Returns whether it is in
    /// the tables now; where it is not, there was no space.
    fn seal_and_write(&self) -> Result<bool, StoreError> {
        let sealed = self.seal();
        // Tables never know more than the log: otherwise a crash could leave half a batch in them.
        self.log.sync(sealed.end)?;
        match self.write_table(&sealed.memtable) {
            Ok(()) => self.ballast.note_written(),
            Err(StoreError::NoSpace) => {
                self.ballast.note_full();
                log::error!(
                    "the file system of {} is full: metadata stays in the log until there is room",
                    self.path.display()
                );
                self.signals.memtable_written.raise();
                return Ok(false);
            }
            Err(error) => return Err(self.fail(error)),
        }
        self.log.advance_checkpoint(sealed.end)?;
        self.levels.write().sealed = None;
        self.ballast.look()?;
        self.signals.memtable_written.raise();
        self.signals.compact.raise();
        if let Some(copy) = self.second_copy() {
            copy.kick();
        }
        Ok(true)
    }

    /// Writes a memtable out of the ballast if necessary. Another program may first take the space that the ballast releases: it
    /// releases more until nothing is left of it.
    fn write_table(&self, memtable: &Memtable) -> Result<(), StoreError> {
        let bytes = memtable.bytes() + TABLE_ROOM_MIN;
        self.ballast.make_room(bytes)?;
        loop {
            match self.tables.write(memtable) {
                Err(StoreError::NoSpace) => self.tables.remove_leftovers()?,
                other => return other,
            }
            if !self.ballast.give_up(bytes)? {
                return Err(StoreError::NoSpace);
            }
        }
    }

    /// The sealed memtable; seals the active one where there is none.
    fn seal(&self) -> Sealed {
        let mut levels = self.levels.write();
        if let Some(sealed) = &levels.sealed {
            return sealed.clone();
        }
        // No thread is between its place in the log and the memtable: it would hold `levels`.
        let end = self.log.tail();
        let memtable = std::mem::replace(&mut levels.active, Arc::new(Memtable::new(end)));
        let sealed = Sealed { memtable, end };
        levels.sealed = Some(sealed.clone());
        sealed
    }

    /// Compacts once where it is due.
    pub(super) fn compact_if_due(&self) -> Result<bool, StoreError> {
        if !self.ballast.may_merge().map_err(|error| self.fail(error))? {
            return Ok(false);
        }
        let merging = self.ballast.begin_merging();
        let compacted = self.tables.compact(|need| self.room_for_compaction(need));
        let has_given_inodes = merging.has_given_inodes();
        drop(merging);
        match compacted {
            Ok(worked) => {
                if worked || has_given_inodes {
                    // Another program could take the inodes that were given up or freed before the next look, and a store that is closed
                    // does not look again. Not beside the writing of a table, which may have given up inodes for itself.
                    let _maintenance = self.maintenance.lock();
                    self.ballast.look().map_err(|error| self.fail(error))?;
                }
                Ok(worked)
            }
            Err(StoreError::NoSpace) => {
                // The unfinished tables would keep space and inodes, and the next attempt would find even less.
                let _maintenance = self.maintenance.lock();
                let removed = self.tables.remove_leftovers_of_merge();
                removed.and_then(|()| self.ballast.note_merge_failed()).map_err(|error| self.fail(error))?;
                Ok(false)
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Whether a compaction may write so many bytes. Free space of the file system is used as it is; the ballast only where
    /// reads get slow or space is short, because it has to be reserved again afterwards. Where inodes are missing it goes on, since
    /// merged tables are fewer files.
    fn room_for_compaction(&self, due: CompactionNeed) -> Result<bool, StoreError> {
        match due.urgency {
            Urgency::Ordinary if self.ballast.is_short_of_bytes() => Ok(false),
            Urgency::Ordinary => {
                self.ballast.make_inodes_for_merge()?;
                Ok(self.ballast.free()? >= due.bytes)
            }
            Urgency::Pressing => self.ballast.make_room(due.bytes),
        }
    }

    /// Advances the checkpoint beyond `checkpoint`, where the log was full, or waits for that. The caller has no reservation in the log.
    pub(super) fn make_room_in_log(&self, checkpoint: u64) -> Result<(), StoreError> {
        self.stalled_commits.fetch_add(1, Ordering::Relaxed);
        if self.signals.has_workers() {
            self.signals.write_memtable.raise();
            return self.log.wait_for_room(checkpoint, || self.ballast.is_stuck());
        }
        let _maintenance = self.maintenance.lock();
        if self.log.checkpoint() > checkpoint || self.seal_and_write()? { Ok(()) } else { Err(StoreError::NoSpace) }
    }

    /// Waits until the sealed memtable is written, or does it.
    pub(super) fn wait_for_memtable(&self) -> Result<(), StoreError> {
        self.stalled_commits.fetch_add(1, Ordering::Relaxed);
        if self.signals.has_workers() {
            let seen = self.signals.memtable_written.count();
            if self.levels.read().sealed.is_some() && !self.ballast.is_stuck() {
                self.signals.memtable_written.wait_beyond(seen);
            }
            return self.log.check();
        }
        self.write_memtable_if_due().map(|_| ())
    }

    /// An error that the store cannot go on after.
    fn fail(&self, error: StoreError) -> StoreError {
        self.signals.memtable_written.raise();
        self.log.poison(error)
    }

    pub(super) fn bytes_used(&self) -> u64 {
        self.log.length() + self.tables.bytes()
    }
}
