//! Making a store out of its second copy: an explicit act, while nothing is mounted.
//!
//! Invariants:
//! * The copy itself is only read. The new store is made under another name and renamed once all of it is durable, so that
//!   it is whole or not there.
//! * Nothing beyond the position that the copy's slot names gets into the store, and everything up to it has to: where the
//!   log of the copy ends earlier, the copy is damaged, and there is no store.
//! * Entries that outlived the last process in memory stay if they continue those of the copy, and are removed otherwise: the
//!   new store is then one that ends earlier, and not one whose device lost something.
//! * The store goes on where the copy is, so that the copy is its copy again without being made anew.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use polymux_types::Sequence;

use super::directory::{self, LOG_FILE, SLOT_FILE, failed, make_directory, sync_directory};
use super::knowledge::{Knowledge, by_openings};
use super::slot_format::{Slot, SlotState};
use crate::error::StoreError;
use crate::log::{
    BLOCK, BlockBuffer, BlockFile, Log, LogHeader, LogMedium, Replay, SurvivingWindow, Survivors, cut_last_block,
    pieces, write_header,
};
use crate::log_store::{LogStore, LogStoreOptions, end_of, sequence_of, verify_tables};
use crate::tables::{CURRENT_FILE, Tables};

/// Bytes of the log copied at once.
const CHUNK_LENGTH: u64 = 1024 * 1024;

/// The possible uses of a second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWorth {
    /// Nothing: it was being made.
    Incomplete,
    /// It holds everything up to its time; everything later is lost.
    Complete,
    /// It holds everything: the store was closed in order.
    Closed,
}

/// Description of a second copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyDescription {
    /// Its possible use.
    pub worth: CopyWorth,
    /// Last transaction that it holds.
    pub arrived: Sequence,
    /// It holds everything that was durable then.
    pub time: SystemTime,
    /// Number of the store that it is a copy of.
    pub store: u64,
    slot: Slot,
}

/// Where a store ends that could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreEnd {
    /// Its number.
    pub store: u64,
    /// Its last transaction.
    pub committed: Sequence,
    header: LogHeader,
}

impl StoreEnd {
    pub(crate) fn new(header: LogHeader, end: u64) -> Self {
        Self { store: header.store, committed: sequence_of(end), header }
    }

    /// Bytes of its log, at least, that the store has lost and a copy of it has; `None` where it lost nothing that this copy
    /// has, or where that cannot be determined.
    #[must_use]
    pub fn lost_to(&self, copy: &CopyDescription) -> Option<u64> {
        match by_openings(&copy.slot, &self.header, end_of(self.committed)) {
            Knowledge::Ahead(bytes) => Some(bytes),
            Knowledge::Known | Knowledge::Other | Knowledge::Unclear => None,
        }
    }
}

impl CopyDescription {
    fn of(slot: &Slot) -> Self {
        let worth = match slot.state {
            SlotState::Incomplete => CopyWorth::Incomplete,
            SlotState::Complete => CopyWorth::Complete,
            SlotState::Closed => CopyWorth::Closed,
        };
        let time = UNIX_EPOCH + Duration::from_nanos(slot.time_ns);
        Self { worth, arrived: sequence_of(slot.arrived), time, store: slot.store, slot: *slot }
    }
}

/// Describes the second copy in a directory; `None` where there is none.
///
/// # Errors
///
/// It cannot be read, or a newer program made it.
pub fn describe_copy(path: &Path) -> Result<Option<CopyDescription>, StoreError> {
    let file = path.join(SLOT_FILE);
    if !file.exists() {
        return Ok(None);
    }
    let slots = BlockFile::open(&file).map_err(|error| failed(&file, &error))?;
    Ok(directory::read_slot(&slots)?.as_ref().map(CopyDescription::of))
}

/// Reads all of the second copy in a directory, and changes nothing: whether a store that is whole can be made of it.
/// `boundaries` are those of its store.
///
/// # Errors
///
/// [`StoreError::Open`] where there is none, where it is incomplete or in use; [`StoreError::Corrupted`] where it is damaged;
/// others where it cannot be read.
pub fn verify_copy(path: &Path, boundaries: &[Vec<u8>]) -> Result<CopyDescription, StoreError> {
    let file = path.join(SLOT_FILE);
    let slots = BlockFile::open(&file).map_err(|error| failed(&file, &error))?;
    directory::lock(&slots, path)?;
    let slot = complete_slot(&slots, path)?;
    let log_path = path.join(LOG_FILE);
    let log = BlockFile::open(&log_path).map_err(|error| failed(&log_path, &error))?;
    let header = header_of(&log, &slot)?;
    let mut replay = Replay::new(&log, header);
    // Entries beyond the position in the slot are not part of the copy.
    while replay.position() < slot.arrived && replay.next()?.is_some() {}
    slot.check_end(replay.position(), &header)?;
    verify_tables(path, boundaries)?;
    Ok(CopyDescription::of(&slot))
}

pub(super) fn complete_slot(slots: &dyn LogMedium, path: &Path) -> Result<Slot, StoreError> {
    directory::read_slot(slots)?.filter(|slot| slot.state != SlotState::Incomplete).ok_or_else(|| incomplete(path))
}

pub(super) fn incomplete(path: &Path) -> StoreError {
    StoreError::Open(format!("the second copy in {} is not complete", path.display()))
}

fn header_of(log: &BlockFile, slot: &Slot) -> Result<LogHeader, StoreError> {
    let header = Log::read_header(log)?;
    slot.check_header(&header)?;
    Ok(header)
}

impl Slot {
    /// Fails where the log with this header is not the one of the copy.
    pub(crate) fn check_header(&self, header: &LogHeader) -> Result<(), StoreError> {
        if header.store != self.store || header.checkpoint > self.arrived {
            return Err(damaged("its log is not the one that it tells of"));
        }
        Ok(())
    }

    /// Fails where the log of the copy ends elsewhere than here.
    pub(crate) fn check_end(&self, end: u64, header: &LogHeader) -> Result<(), StoreError> {
        if end == self.arrived {
            return Ok(());
        }
        Err(damaged(&format!("its log ends at {end} instead of {}, begun at {}", self.arrived, header.checkpoint)))
    }
}

fn damaged(what: &str) -> StoreError {
    StoreError::Corrupted(format!("the second copy is damaged: {what}"))
}

/// Makes a store in the directory `store`, which is not there yet, out of a copy. `options` are those with which it will be
/// opened.
///
/// # Errors
///
/// [`StoreError::Open`] where the copy is incomplete or in use, [`StoreError::Corrupted`] where it is damaged, others
/// where something cannot be read or written. There is no store then.
pub fn restore_from_copy(copy: &Path, store: &Path, options: &LogStoreOptions) -> Result<CopyDescription, StoreError> {
    let file = copy.join(SLOT_FILE);
    let slots = BlockFile::open(&file).map_err(|error| failed(&file, &error))?;
    directory::lock(&slots, copy)?;
    let slot = complete_slot(&slots, copy)?;
    if store.symlink_metadata().is_ok() {
        return Err(StoreError::Open(format!("{} is there already", store.display())));
    }
    let made = store.with_extension("restoring");
    if made.exists() {
        fs::remove_dir_all(&made).map_err(|error| failed(&made, &error))?;
    }
    make_directory(&made)?;
    for index in 0.. {
        let name = format!("part{index}");
        if !copy.join(&name).is_dir() {
            break;
        }
        restore_partition(&copy.join(&name), &made.join(&name))?;
    }
    let header = restore_log(&copy.join(LOG_FILE), &made.join(LOG_FILE), &slot)?;
    sync_directory(&made)?;
    give_window_up(options, &header, slot.arrived)?;
    fs::rename(&made, store).map_err(|error| failed(store, &error))?;
    store.parent().map_or(Ok(()), sync_directory)?;
    Ok(CopyDescription::of(&slot))
}

fn restore_partition(from: &Path, to: &Path) -> Result<(), StoreError> {
    make_directory(to)?;
    for entry in fs::read_dir(from).map_err(|error| failed(from, &error))? {
        let source = entry.map_err(|error| failed(from, &error))?.path();
        let target = to.join(source.file_name().expect("an entry of a directory has a name"));
        if source.is_dir() {
            restore_partition(&source, &target)?;
        } else {
            restore_file(&source, &target)?;
        }
    }
    sync_directory(to)
}

fn restore_file(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::copy(from, to).map_err(|error| failed(from, &error))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(|error| failed(to, &error))
}

fn restore_log(from: &Path, to: &Path, slot: &Slot) -> Result<LogHeader, StoreError> {
    let source = BlockFile::open(from).map_err(|error| failed(from, &error))?;
    let header = header_of(&source, slot)?;
    let target = BlockFile::create(to, source.length()).map_err(|error| failed(to, &error))?;
    let mut at = header.checkpoint - header.checkpoint % BLOCK;
    while at < slot.arrived {
        let end = (at + CHUNK_LENGTH).min(slot.arrived.next_multiple_of(BLOCK));
        let (offset, _, end) = pieces(header.ring_length, at, end).next().expect("there is something to copy");
        let mut blocks = BlockBuffer::new(usize::try_from(end - at).expect("a chunk fits into memory"));
        source.read(offset, blocks.as_mut_slice()).map_err(|error| failed(from, &error))?;
        if end > slot.arrived {
            cut_last_block(&mut blocks, slot.arrived);
        }
        target.write(offset, blocks.as_slice()).map_err(|error| failed(to, &error))?;
        at = end;
    }
    target.flush().map_err(|error| failed(to, &error))?;
    write_header(&target, &header)?;
    slot.check_end(end_of_log(&target, header)?, &header)?;
    Ok(header)
}

/// Removes the entries that the last process left in memory if they begin behind the end of the new store: they belong to the store
/// that is lost, and would indicate that the device of this one lost writes. If the copy reaches them, they are taken up.
fn give_window_up(options: &LogStoreOptions, header: &LogHeader, end: u64) -> Result<(), StoreError> {
    let Some(place) = &options.surviving else { return Ok(()) };
    let length = options.window_bytes.min(header.ring_length);
    let left = Survivors::read(&**place, header, length).and_then(|survivors| survivors.lost_writes(end));
    if left.is_some() {
        SurvivingWindow::open(&**place, header, length).map_err(StoreError::Open)?.discard();
    }
    Ok(())
}

fn end_of_log(medium: &dyn LogMedium, header: LogHeader) -> Result<u64, StoreError> {
    let mut replay = Replay::new(medium, header);
    while replay.next()?.is_some() {}
    replay.refuse_damage()?;
    Ok(replay.position())
}

impl LogStore {
    /// Whether the store in a directory could be opened, and reads all of it. Changes nothing that counts. Returns where it ends.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] where there is none, or another process has it open; other errors describe its fault.
    pub fn check(path: &Path, options: &LogStoreOptions) -> Result<StoreEnd, StoreError> {
        let log = path.join(LOG_FILE);
        if !log.exists() {
            return Err(StoreError::Open(format!("there is no metadata store in {}", path.display())));
        }
        let medium = BlockFile::open(&log).map_err(|error| failed(&log, &error))?;
        medium.lock().map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                StoreError::Open(format!("the metadata store in {} is in use by another process", path.display()))
            }
            _ => failed(&log, &error),
        })?;
        let header = Log::read_header(&medium)?;
        // Opening the trees would make those that are missing.
        for pointer in pointers(path, options) {
            if !pointer.exists() {
                return Err(StoreError::Corrupted(format!("{} is missing", pointer.display())));
            }
        }
        Tables::open(path, &options.tables())?.verify()?;
        Ok(StoreEnd::new(header, end_of_log(&medium, header)?))
    }
}

fn pointers(path: &Path, options: &LogStoreOptions) -> impl Iterator<Item = PathBuf> {
    (0..=options.boundaries.len()).map(move |index| path.join(format!("part{index}")).join(CURRENT_FILE))
}
