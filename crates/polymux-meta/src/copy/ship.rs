//! Shipping to a copy that is current.
//!
//! Invariants, and why the copy can be opened after a crash at any moment:
//! * The log first, then the slot: the position in the slot is durable. A ring is never overwritten where the copy's own
//!   checkpoint still needs it; where the store is that far ahead, tables are shipped first.
//! * Tables, then the log as far as these tables reach, then versions and pointers, then the checkpoint, then the
//!   removal of obsolete files. Between two of these steps the copy's log repeats entries that some tables already hold, which changes
//!   nothing (as in the recovery of the store itself).
//! * Entries that the store overwrote before they were shipped are a gap: the copy is made anew.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::directory::{CopyDirectory, failed, read_some};
use super::slot_format::{Slot, SlotState};
use super::thread::Round;
use super::{Desk, Mode, SecondCopy};
use crate::error::StoreError;
use crate::log::{BLOCK, BlockBuffer, LogHeader, cut_last_block};
use crate::log_store::Inner;
use crate::tables::PartitionSnapshot;

/// Bytes shipped at once; between two chunks, callers that wait for the log are served.
pub(super) const CHUNK_LENGTH: u64 = 1024 * 1024;

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The copy has the requested state.
    Done,
    /// It had that before.
    Nothing,
    /// The store has overwritten entries that the copy lacks.
    Gap,
    /// Tables have to be shipped before there is space in the ring of the copy.
    RingFull,
    /// Memtables are being written at the moment.
    Busy,
}

/// The store at one moment.
pub(super) struct Snapshot {
    /// Header of the log, with the checkpoint of that moment.
    pub(super) header: LogHeader,
    /// The tables know nothing beyond this position.
    pub(super) reach: u64,
    pub(super) partitions: Vec<PartitionSnapshot>,
}

impl Inner {
    /// One round: whatever the copy lacks and can get.
    pub(crate) fn ship(&self) -> Round {
        let Some(copy) = self.second_copy() else { return Round::Idle };
        let mut desk = copy.desk.lock();
        if matches!(copy.mode(), Mode::Unreachable | Mode::Refused)
            && let Err(error) = self.reach_copy(copy, &mut desk)
        {
            copy.note_unreachable(&error.to_string());
            return Round::Failed;
        }
        let Desk { directory: Some(directory), trusted, .. } = &mut *desk else { return Round::Failed };
        let outcome = match copy.mode() {
            Mode::Rebuilding => self.rebuild(copy, directory, trusted),
            _ => self.ship_current(copy, directory),
        };
        copy.note_tables(directory);
        let reason = match outcome {
            Ok(Step::Nothing) => return Round::Idle,
            Ok(Step::Done) => return Round::Worked,
            Ok(Step::Busy) => return Round::Busy,
            Ok(Step::Gap | Step::RingFull) => "the log went on faster than it could be shipped".to_owned(),
            Err(error) => error.to_string(),
        };
        if copy.mode() == Mode::Current {
            self.start_over(copy, directory, reason)
        } else {
            copy.note_reason(&reason);
            Round::Failed
        }
    }

    /// A current copy cannot go on: it has to say so itself, and is made anew then. Where it cannot even say so, it stays
    /// current, because something could be started from it, and its waiters get `CopySync::Late`.
    fn start_over(&self, copy: &SecondCopy, directory: &mut CopyDirectory, reason: String) -> Round {
        let marked = self.mark_incomplete(directory);
        let mut status = copy.status.lock();
        status.reason = reason;
        status.failing = marked.is_err();
        // Another thread may have given it up meanwhile, which does not matter: both ways it cannot be started from.
        if marked.is_ok() {
            status.mode = Mode::Rebuilding;
            status.kicked = true;
            copy.rebuilds.fetch_add(1, Ordering::Relaxed);
        }
        log::warn!("the second copy in {}: {}", copy.options.path.display(), status.reason);
        copy.changed.notify_all();
        if marked.is_ok() { Round::Worked } else { Round::Failed }
    }

    pub(super) fn mark_incomplete(&self, directory: &mut CopyDirectory) -> Result<(), StoreError> {
        let header = self.log.header();
        directory.write_slot(Slot {
            state: SlotState::Incomplete,
            store: header.store,
            turn: 0,
            generation: header.generation,
            arrived: 0,
            time_ns: 0,
        })
    }

    fn ship_current(&self, copy: &SecondCopy, directory: &mut CopyDirectory) -> Result<Step, StoreError> {
        let log = self.ship_log(copy, directory)?;
        if log == Step::Gap {
            return Ok(log);
        }
        let tables = if self.tables_differ(directory) { self.ship_tables(copy, directory)? } else { Step::Nothing };
        let outcome = match (log, tables) {
            (_, Step::Gap | Step::RingFull) => Step::Gap,
            (Step::RingFull, Step::Nothing) => Step::Gap,
            (_, Step::Busy) => Step::Busy,
            (Step::RingFull, _) => self.ship_log(copy, directory)?,
            (Step::Nothing, Step::Nothing) => Step::Nothing,
            _ => Step::Done,
        };
        Ok(outcome)
    }

    fn tables_differ(&self, directory: &CopyDirectory) -> bool {
        let here = directory.header().map(|header| header.checkpoint);
        here != Some(self.log.checkpoint())
            || directory.versions() != self.tables.versions().into_iter().map(Some).collect::<Vec<_>>()
    }

    /// Ships the durable part of the log.
    fn ship_log(&self, copy: &SecondCopy, directory: &mut CopyDirectory) -> Result<Step, StoreError> {
        // The time first: entries that become durable in between are newer than the time in the slot, never older.
        let (time_ns, moment) = (now_ns(), Instant::now());
        let durable = self.log.durable();
        let arrived = directory.slot().map_or(0, |slot| slot.arrived);
        if arrived == durable {
            copy.confirm(moment);
            return Ok(Step::Nothing);
        }
        let outcome = self.ship_log_to(copy, directory, durable, time_ns)?;
        if outcome == Step::Done {
            copy.confirm(moment);
        }
        Ok(outcome)
    }

    fn ship_log_to(
        &self,
        copy: &SecondCopy,
        directory: &mut CopyDirectory,
        to: u64,
        time_ns: u64,
    ) -> Result<Step, StoreError> {
        let arrived = directory.slot().map_or(0, |slot| slot.arrived);
        let checkpoint = directory.header().map_or(0, |header| header.checkpoint);
        if to > checkpoint - checkpoint % BLOCK + self.log.ring_length() {
            return Ok(Step::RingFull);
        }
        if !copy.announce(to) {
            return Ok(Step::Busy);
        }
        if self.copy_ring(copy, directory, arrived, to)? == Step::Gap {
            return Ok(Step::Gap);
        }
        self.write_complete(directory, SlotState::Complete, to, time_ns)?;
        copy.arrive(to);
        Ok(Step::Done)
    }

    pub(super) fn write_complete(
        &self,
        directory: &mut CopyDirectory,
        state: SlotState,
        arrived: u64,
        time_ns: u64,
    ) -> Result<(), StoreError> {
        let header = self.log.header();
        let (store, generation) = (header.store, header.generation);
        directory.write_slot(Slot { state, store, turn: 0, generation, arrived, time_ns })
    }

    /// Ships `from .. to` of the log to the ring of the copy and makes it durable there.
    pub(super) fn copy_ring(
        &self,
        copy: &SecondCopy,
        directory: &CopyDirectory,
        from: u64,
        to: u64,
    ) -> Result<Step, StoreError> {
        let mut at = from - from % BLOCK;
        while at < to {
            let end = (at + CHUNK_LENGTH).min(to.next_multiple_of(BLOCK));
            let mut blocks = BlockBuffer::new(usize::try_from(end - at).expect("a chunk fits into memory"));
            if !self.log.read_back(at, blocks.as_mut_slice())? {
                return Ok(Step::Gap);
            }
            if end > to {
                cut_last_block(&mut blocks, to);
            }
            directory.write_ring(self.log.ring_length(), at, blocks.as_slice())?;
            copy.shipped_bytes.fetch_add(end - at, Ordering::Relaxed);
            at = end;
        }
        directory.flush_ring()?;
        Ok(Step::Done)
    }

    /// Takes the store at one moment; `None` while a memtable is being written.
    pub(super) fn snapshot(&self) -> Result<Option<Snapshot>, StoreError> {
        let Some(_maintenance) = self.maintenance.try_lock() else { return Ok(None) };
        let header = self.log.header();
        let checkpoint = header.checkpoint;
        // Tables of a memtable that could not be written whole reach as far as it does; those that an earlier opening left
        // half written, as far as this one replayed.
        let mut reach = self.sealed_end().unwrap_or(checkpoint).max(checkpoint);
        if checkpoint < self.log.first() {
            reach = reach.max(self.log.first());
        }
        if reach > self.log.durable() {
            return Ok(None);
        }
        Ok(Some(Snapshot { header, reach, partitions: self.tables.snapshot()? }))
    }

    fn ship_tables(&self, copy: &SecondCopy, directory: &mut CopyDirectory) -> Result<Step, StoreError> {
        let Some(snapshot) = self.snapshot()? else { return Ok(Step::Busy) };
        match self.ship_new_tables(copy, directory, &snapshot)? {
            Step::Done => {}
            other => return Ok(other),
        }
        let (arrived, time_ns) = directory.slot().map_or((0, 0), |slot| (slot.arrived, slot.time_ns));
        #[cfg(test)]
        let arrived = directory.arrived_or_planted(arrived);
        if arrived < snapshot.reach {
            match self.ship_log_to(copy, directory, snapshot.reach, time_ns)? {
                Step::Done => {}
                other => return Ok(other),
            }
        }
        self.take_over(directory, &snapshot)?;
        Ok(Step::Done)
    }

    /// Makes versions and checkpoint those of the snapshot, whose tables are all here.
    pub(super) fn take_over(&self, directory: &mut CopyDirectory, snapshot: &Snapshot) -> Result<(), StoreError> {
        let changed: Vec<usize> = (0..snapshot.partitions.len())
            .filter(|index| directory.versions()[*index] != Some(snapshot.partitions[*index].version))
            .collect();
        for index in &changed {
            directory.put_version(*index, &snapshot.partitions[*index])?;
        }
        let of = |header: &LogHeader| (header.store, header.salt, header.generation, header.checkpoint);
        if directory.header().is_none_or(|here| of(here) != of(&snapshot.header)) {
            directory.write_header(snapshot.header)?;
        }
        for index in changed {
            directory.remove_obsolete(index, &snapshot.partitions[index])?;
        }
        Ok(())
    }

    /// Ships the tables that are not there yet, durable under their names.
    pub(super) fn ship_new_tables(
        &self,
        copy: &SecondCopy,
        directory: &mut CopyDirectory,
        snapshot: &Snapshot,
    ) -> Result<Step, StoreError> {
        for (index, partition) in snapshot.partitions.iter().enumerate() {
            let mut any = false;
            for table in &partition.tables {
                let Some(mut source) = open_table(table)? else { return Ok(Step::Busy) };
                let length = source.metadata().map_err(|error| failed(&table.path, &error))?.len();
                if directory.has(index, table.id(), length) {
                    continue;
                }
                any = true;
                match self.ship_table(copy, directory, index, table, &mut source)? {
                    Step::Done => {}
                    other => return Ok(other),
                }
            }
            if any {
                directory.sync_tables(index)?;
            }
        }
        Ok(Step::Done)
    }

    fn ship_table(
        &self,
        copy: &SecondCopy,
        directory: &mut CopyDirectory,
        partition: usize,
        table: &lsm_tree::Table,
        source: &mut File,
    ) -> Result<Step, StoreError> {
        let mut incoming = directory.begin_table(partition, table.id())?;
        let mut chunk = vec![0; usize::try_from(CHUNK_LENGTH).expect("a chunk fits into memory")];
        loop {
            let count = read_some(source, &table.path, &mut chunk)?;
            if count == 0 {
                break;
            }
            incoming.append(&chunk[..count])?;
            copy.shipped_bytes.fetch_add(count as u64, Ordering::Relaxed);
            if copy.is_out_of_time() {
                return Ok(Step::Busy);
            }
            // A caller that waits for the log must not wait for a large table.
            if copy.is_awaited() && self.ship_log(copy, directory)? == Step::Gap {
                return Ok(Step::Gap);
            }
        }
        directory.finish_table(incoming)?;
        Ok(Step::Done)
    }

    /// The end of the store: ships the rest, and says that there is nothing more.
    pub(crate) fn finish_copy(&self) {
        let Some(copy) = self.second_copy() else { return };
        let mut round = Round::Worked;
        while round == Round::Worked && !copy.is_out_of_time() {
            round = self.ship();
        }
        let mut desk = copy.desk.lock();
        let Some(directory) = &mut desk.directory else { return };
        let arrived = directory.slot().map_or(0, |slot| slot.arrived);
        if round == Round::Idle
            && copy.mode() == Mode::Current
            && arrived == self.log.tail()
            && let Err(error) = self.write_complete(directory, SlotState::Closed, arrived, now_ns())
        {
            log::warn!("the second copy in {}: {error}", copy.options.path.display());
        }
    }
}

/// Opens the file of a table; `None` where it has gone because a failed write was cleaned up.
fn open_table(table: &lsm_tree::Table) -> Result<Option<File>, StoreError> {
    match File::open(&*table.path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&table.path, &error)),
    }
}

/// Nanoseconds since 1970, for people who read how old a copy is.
pub(super) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl SecondCopy {
    /// Says how far the copy may come; not where it was given up meanwhile.
    fn announce(&self, to: u64) -> bool {
        let mut status = self.status.lock();
        status.shipping_to = status.shipping_to.max(to);
        status.mode == Mode::Current
    }

    pub(super) fn arrive(&self, position: u64) {
        let mut status = self.status.lock();
        status.arrived = status.arrived.max(position);
        if status.failing {
            status.failing = false;
            status.reason.clear();
        }
        self.changed.notify_all();
    }

    pub(super) fn confirm(&self, moment: Instant) {
        let mut status = self.status.lock();
        status.confirmed = moment;
        if status.failing {
            status.failing = false;
            status.reason.clear();
        }
    }

    fn is_awaited(&self) -> bool {
        let status = self.status.lock();
        status.mode == Mode::Current && status.wanted > status.arrived
    }

    fn note_reason(&self, reason: &str) {
        let mut status = self.status.lock();
        if status.reason != reason {
            log::warn!("the second copy in {}: {reason}", self.options.path.display());
            status.reason = reason.to_owned();
        }
    }

    fn note_unreachable(&self, reason: &str) {
        self.status.lock().mode = Mode::Unreachable;
        self.note_reason(reason);
    }

    fn note_tables(&self, directory: &CopyDirectory) {
        self.status.lock().table_bytes = directory.table_bytes();
    }
}
