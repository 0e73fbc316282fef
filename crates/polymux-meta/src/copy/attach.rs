//! Beginning to ship to a copy, when its store is opened and when its tier is back.
//!
//! What is true here:
//! * A copy goes on only where it is certain that it is a copy of this store as it was at its last opening: same store,
//!   the opening before this one, no more than the store knows, and the same last bytes. Everything else is made anew.
//! * A copy that is incomplete keeps its tables where the last opening vouched for them.
//! * A copy that knows more than the store proves that the store lost what was durable. That is asked before the store is
//!   opened ([`refuse_copy_ahead`]), which is refused then, and the copy stays as it is.
//! * What cannot be reached or judged does not stop the store. The labels of the tiers get a new epoch at each mount, which
//!   the copy does not know: nothing can be started from it.

use std::path::Path;
use std::time::Instant;

use super::directory::{CopyDirectory, SLOT_FILE, read_slot};
use super::ship::now_ns;
use super::slot_format::{FILE_LENGTH, Slot, SlotState};
use super::{CopyOptions, Desk, Mode, SecondCopy, Status};
use crate::error::StoreError;
use crate::log::{BLOCK, BlockFile, Log, LogHeader, LogMedium};
use crate::log_store::Inner;
use crate::tables::Tables;
use polymux_types::sync::{AtomicU64, Condvar, Mutex};

/// Bytes before the end of the copy's log that are compared with the store's.
const COMPARED_LENGTH: u64 = 16 * BLOCK;

/// What a copy is worth to a store that was just opened.
enum Verdict {
    /// It holds everything up to there.
    GoesOn { arrived: u64 },
    /// Its tables are those of the store, and the rest is made anew.
    KeepTables(&'static str),
    /// Nothing.
    Nothing(&'static str),
}

impl SecondCopy {
    /// Begins to ship.
    pub(crate) fn attach(options: CopyOptions, log: &Log, tables: &Tables) -> Self {
        let mut desk = Desk { directory: None, trusted: false };
        let begun = if CopyDirectory::is_there(&options.path) {
            CopyDirectory::open(&options.path, tables.partition_count(), log.ring_length())
                .and_then(|directory| begin(&mut desk, directory, log, tables))
        } else {
            // Making its log takes a while. That is the first thing its thread does.
            Ok((Mode::Unreachable, 0, String::new()))
        };
        Self::new(options, desk, begun)
    }

    /// As [`SecondCopy::attach`], to a directory that is open.
    #[cfg(test)]
    pub(crate) fn attach_to(options: CopyOptions, directory: CopyDirectory, log: &Log, tables: &Tables) -> Self {
        let mut desk = Desk { directory: None, trusted: false };
        let begun = begin(&mut desk, directory, log, tables);
        Self::new(options, desk, begun)
    }

    fn new(options: CopyOptions, desk: Desk, begun: Result<(Mode, u64, String), StoreError>) -> Self {
        let (mode, arrived, reason) = begun.unwrap_or_else(|error| (Mode::Unreachable, 0, error.to_string()));
        if !reason.is_empty() {
            log::warn!("the second copy in {}: {reason}", options.path.display());
        }
        let status = Status {
            mode,
            arrived,
            shipping_to: arrived,
            wanted: 0,
            failing: false,
            reason,
            confirmed: Instant::now(),
            kicked: false,
            stopping: None,
            finished: false,
            table_bytes: desk.directory.as_ref().map_or(0, CopyDirectory::table_bytes),
        };
        Self {
            options,
            desk: Mutex::new(desk),
            status: Mutex::new(status),
            changed: Condvar::new(),
            wake: Condvar::new(),
            shipped_bytes: AtomicU64::new(0),
            rebuilds: AtomicU64::new(u64::from(mode == Mode::Rebuilding)),
        }
    }
}

/// Judges a copy and makes it one of this opening. The desk has it afterwards, also where that failed.
fn begin(
    desk: &mut Desk,
    directory: CopyDirectory,
    log: &Log,
    tables: &Tables,
) -> Result<(Mode, u64, String), StoreError> {
    let directory = desk.directory.insert(directory);
    let header = log.header();
    let slot = Slot {
        state: SlotState::Incomplete,
        store: header.store,
        turn: 0,
        generation: header.generation,
        arrived: 0,
        time_ns: 0,
    };
    match judge(directory, header, log, tables)? {
        Verdict::GoesOn { arrived } => {
            let (here, shipped_ns) = directory
                .header()
                .zip(directory.slot())
                .map(|(here, slot)| (*here, slot.time_ns))
                .expect("a copy that goes on has a header and a slot");
            let time_ns = if arrived == log.first() { now_ns() } else { shipped_ns };
            // Its own checkpoint, and the generation that set it.
            directory.write_header(LogHeader { generation: header.generation, ..here })?;
            directory.write_slot(Slot { state: SlotState::Complete, arrived, time_ns, ..slot })?;
            desk.trusted = true;
            Ok((Mode::Current, arrived, String::new()))
        }
        Verdict::KeepTables(reason) => {
            directory.write_slot(slot)?;
            desk.trusted = true;
            Ok((Mode::Rebuilding, 0, reason.to_owned()))
        }
        Verdict::Nothing(reason) => {
            // Generation 0 vouches for nothing, should this opening end before what is there was removed.
            directory.write_slot(Slot { generation: 0, ..slot })?;
            desk.trusted = false;
            Ok((Mode::Rebuilding, 0, reason.to_owned()))
        }
    }
}

fn judge(directory: &CopyDirectory, header: LogHeader, log: &Log, tables: &Tables) -> Result<Verdict, StoreError> {
    let Some(slot) = directory.slot() else { return Ok(Verdict::Nothing("")) };
    if slot.store != header.store {
        return Ok(Verdict::Nothing("it was the copy of another store and is made anew"));
    }
    if slot.generation.checked_add(1) != Some(header.generation) {
        return Ok(Verdict::Nothing("it was not there at the last mount and is made anew"));
    }
    // A table that is not in the store could get its number again, unless later ones have greater ones already.
    let foreign =
        tables.identities().into_iter().enumerate().any(|(index, (live, highest))| {
            directory.tables(index).any(|table| table > highest && !live.contains(&table))
        });
    let ahead =
        directory.versions().iter().zip(tables.versions()).any(|(here, there)| here.is_some_and(|it| it > there));
    if foreign || ahead {
        return Ok(Verdict::Nothing("it has tables that the store does not have, and is made anew"));
    }
    if slot.state == SlotState::Incomplete {
        return Ok(Verdict::KeepTables("it was not complete yet"));
    }
    let fits = |here: &&LogHeader| {
        (here.store, here.salt, here.ring_length) == (header.store, header.salt, header.ring_length)
            && here.generation == slot.generation
            && here.checkpoint <= slot.arrived
    };
    let Some(here) = directory.header().filter(fits) else {
        return Ok(Verdict::KeepTables("its log is not that of the store, and it is made anew"));
    };
    if slot.arrived > log.first() {
        // Seen only where it came while the store was being opened. It stays as it is.
        return Err(StoreError::Corrupted("it knows more than the store".to_owned()));
    }
    if !ends_alike(directory, here.checkpoint, slot.arrived, log)? {
        return Ok(Verdict::Nothing("the store went on without it, and it is made anew"));
    }
    Ok(Verdict::GoesOn { arrived: slot.arrived })
}

/// Fails where a copy of this store holds transactions beyond `end`, the end of its log. They were durable in the store before
/// they were shipped, so the store has lost them. Nothing is changed. What cannot be read proves nothing here.
pub(crate) fn refuse_copy_ahead(path: &Path, store: u64, end: u64) -> Result<(), StoreError> {
    let file = path.join(SLOT_FILE);
    let slot = match BlockFile::open(&file) {
        Ok(slots) if slots.length() >= FILE_LENGTH => read_slot(&slots).ok().flatten(),
        _ => None,
    };
    match slot {
        Some(slot) if slot.store == store && slot.state != SlotState::Incomplete && slot.arrived > end => {
            Err(StoreError::Corrupted(format!(
                "the log ends at {end}, and its second copy in {} goes on to {}: durable transactions are lost",
                path.display(),
                slot.arrived
            )))
        }
        _ => Ok(()),
    }
}

/// Whether the last bytes of the copy's log are those of the store.
fn ends_alike(directory: &CopyDirectory, checkpoint: u64, arrived: u64, log: &Log) -> Result<bool, StoreError> {
    let from = arrived.saturating_sub(COMPARED_LENGTH).max(checkpoint);
    let start = from - from % BLOCK;
    let length = |bytes: u64| usize::try_from(bytes).expect("what is compared fits into memory");
    let mut here = vec![0; length(arrived.next_multiple_of(BLOCK) - start)];
    let mut there = here.clone();
    directory.read_ring(log.ring_length(), start, &mut here)?;
    let range = length(from - start)..length(arrived - start);
    Ok(log.read_back(start, &mut there)? && here[range.clone()] == there[range])
}

impl Inner {
    /// Tries to come by a copy again that was given up. It says that it is incomplete then.
    pub(super) fn reach_copy(&self, copy: &SecondCopy, desk: &mut Desk) -> Result<(), StoreError> {
        // Closed first: descriptors of a tier that went away lead nowhere, and hold the lock.
        desk.directory = None;
        let directory = CopyDirectory::open(&copy.options.path, self.tables.partition_count(), self.log.ring_length())?;
        let directory = desk.directory.insert(directory);
        let header = self.log.header();
        desk.trusted =
            directory.slot().is_some_and(|slot| slot.store == header.store && slot.generation == header.generation);
        if desk.trusted {
            self.mark_incomplete(directory)?;
        } else {
            directory.write_slot(Slot {
                state: SlotState::Incomplete,
                store: header.store,
                turn: 0,
                generation: 0,
                arrived: 0,
                time_ns: 0,
            })?;
        }
        let mut status = copy.status.lock();
        status.mode = Mode::Rebuilding;
        copy.rebuilds.fetch_add(1, polymux_types::sync::Ordering::Relaxed);
        Ok(())
    }
}
