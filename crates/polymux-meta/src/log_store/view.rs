//! Reading a store without changing a byte of it.
//!
//! Invariants:
//! * Nothing below the directory of the store is written, made, renamed or removed: the log is opened for reading, and the
//!   trees of tables, which tidy up when they are opened, are opened over a private directory with copies of their small
//!   files and symbolic links to their tables (`private`).
//! * A [`StoreView`] of a store holds a shared lock on the log for its whole life. So it never sees a store that is being written,
//!   and no process opens it for writing meanwhile. One of a second copy keeps no lock: where its store goes on with the copy meanwhile,
//!   reading it may fail.
//! * It shows the state that the next opening for writing would find: tables and the complete prefix of the log over them. A
//!   second copy ends where its slot says: the bytes behind that are of shipments that were cut short, possibly by a process
//!   whose last changes are lost, and prove nothing.

mod private;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use polymux_tier::{LockOutcome, LockableFile};
use polymux_types::Sequence;
use polymux_types::surviving::SurvivingPlace;

use self::private::PrivateTables;
use super::open::LogStoreOptions;
use super::placement::LogPlacement;
use super::read::range_over;
use super::sequence_of;
use crate::batch::Batch;
use crate::copy::{FoundCopy, Slot, StoreEnd, find_copy};
use crate::error::StoreError;
use crate::log::{Log, LogEnd, LogHeader, LogMedium, RegionLog, Replay, Replayed, Survivors};
use crate::memtable::Memtable;
use crate::store::{Entry, MetadataStore};
pub use crate::tables::{PartitionView, TableLevel};

/// How to handle a store that another process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// Do not look at it.
    Refuse,
    /// Read the log as it is at this moment, although it changes.
    Read,
}

/// Contents of a log header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSummary {
    /// Number of the store.
    pub store: u64,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Writes of the header so far.
    pub turn: u64,
    /// Openings for writing so far.
    pub generation: u32,
    /// Everything before this position is in the tables.
    pub checkpoint: u64,
}

/// One entry of the log: one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its first byte in the log.
    pub position: u64,
    /// Bytes that it takes there, padding included.
    pub length: u64,
    /// Opening of the store that wrote it.
    pub generation: u32,
    /// Its changes; `None` where its checksum fits and they cannot be read.
    pub batch: Option<Batch>,
}

impl LogEntry {
    fn of(entry: &Replayed<'_>) -> Self {
        Self {
            position: entry.position,
            length: entry.end - entry.position,
            generation: entry.generation,
            batch: Batch::from_bytes(entry.payload.to_vec()),
        }
    }
}

/// The log of a store, open for reading.
pub struct LogView {
    medium: LogFile,
    region: Option<RegionLog>,
    header: LogHeader,
    /// The entries that outlived the last process, where they are to be shown.
    survivors: Option<Survivors>,
    /// The slot of the second copy that it belongs to, where no process ships to that.
    copy: Option<Slot>,
    locked: bool,
}

impl LogView {
    /// Opens the log of the store, or of the second copy of one, in the directory `path`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] where there is none, where it is an incomplete copy, or where it is in use and that is to be refused;
    /// [`StoreError::Io`] or [`StoreError::Corrupted`] where it cannot be read.
    pub fn open(path: &Path, placement: &LogPlacement, in_use: InUse) -> Result<Self, StoreError> {
        placement.check_existing(path)?;
        let medium = LogFile::open(&path.join(placement.log_file()))?;
        let (copy, locked) = match find_copy(path)? {
            Some(FoundCopy::AtRest(copy)) => (Some(copy), true),
            Some(FoundCopy::InUse) => (None, false),
            None => (None, medium.lock_shared()?),
        };
        if !locked && in_use == InUse::Refuse {
            return Err(StoreError::Open(format!(
                "the metadata store in {} is in use: unmount it first",
                path.display()
            )));
        }
        let header = Log::read_header(&medium)?;
        let region = placement.open()?.map(|region| RegionLog::open(region, &header)).transpose()?;
        if let Some(copy) = &copy {
            copy.check_header(&header)?;
        }
        Ok(Self { medium, region, header, survivors: None, copy, locked })
    }

    /// Shows the entries that outlived the last process as part of the log, as the next opening will take them up.
    fn with_survivors(mut self, place: &dyn SurvivingPlace, window_bytes: u64) -> Self {
        self.survivors = Survivors::read(place, &self.header, window_bytes.min(self.header.ring_length));
        self
    }

    /// Whether another process has the store open. Then entries may come while they are read, and the checkpoint may pass
    /// those that were there.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        !self.locked
    }

    /// The header.
    #[must_use]
    pub fn summary(&self) -> LogSummary {
        let LogHeader { store, ring_length, turn, generation, checkpoint, .. } = self.header;
        LogSummary { store, ring_bytes: ring_length, turn, generation, checkpoint }
    }

    /// Visits the entries from the checkpoint on, in order. Returns the position where the log ends, and why.
    ///
    /// # Errors
    ///
    /// The log cannot be read, or `visit` failed.
    pub fn visit(
        &self,
        mut visit: impl FnMut(LogEntry) -> Result<(), StoreError>,
    ) -> Result<(u64, LogEnd), StoreError> {
        let mut replay = Replay::with_region(&self.medium, self.region.as_ref(), self.header);
        let last = self.copy.map_or(u64::MAX, |copy| copy.arrived);
        while replay.position() < last
            && let Some(entry) = replay.next()?
        {
            visit(LogEntry::of(&entry))?;
        }
        if let Some(copy) = &self.copy {
            copy.check_end(replay.position(), &self.header)?;
            return Ok((replay.position(), LogEnd::OfCopy));
        }
        // While another process writes the log, replay falls behind, and later entries prove nothing.
        let damage = if self.locked { replay.damage()? } else { None };
        if let Some(damage) = damage {
            return Ok((replay.position(), LogEnd::Damaged(damage)));
        }
        let (position, end) = (replay.position(), replay.end()?);
        let Some(survivors) = &self.survivors else { return Ok((position, end)) };
        if let Some(damage) = survivors.lost_writes(position) {
            return Ok((position, LogEnd::Damaged(damage)));
        }
        let taken = survivors.take_up(position, |entry| visit(LogEntry::of(&entry)))?;
        Ok((taken.end(), end))
    }
}

/// A whole store, open for reading. As a [`MetadataStore`] it refuses commits and has nothing to make durable.
pub struct StoreView {
    log: LogView,
    memtable: [Arc<Memtable>; 1],
    end: u64,
    tables: PrivateTables,
}

impl StoreView {
    /// Opens the store, or the second copy of one, in the directory `path`. `boundaries` are those that it was made with.
    ///
    /// # Errors
    ///
    /// [`StoreError::Open`] where there is none, where it is in use or an incomplete copy; [`StoreError::Io`] or
    /// [`StoreError::Corrupted`] where it cannot be read.
    pub fn open(path: &Path, placement: &LogPlacement, boundaries: &[Vec<u8>]) -> Result<Self, StoreError> {
        Self::over(path, LogView::open(path, placement, InUse::Refuse)?, boundaries)
    }

    /// As [`Self::open`], with the entries that outlived the last process, as an opening with these options would take them up.
    ///
    /// # Errors
    ///
    /// As [`StoreView::open`].
    pub fn open_for(path: &Path, placement: &LogPlacement, options: &LogStoreOptions) -> Result<Self, StoreError> {
        let log = LogView::open(path, placement, InUse::Refuse)?;
        let log = match (&options.surviving, placement) {
            (Some(place), LogPlacement::Block) => log.with_survivors(&**place, options.window_bytes),
            _ => log,
        };
        Self::over(path, log, &options.boundaries)
    }

    fn over(path: &Path, log: LogView, boundaries: &[Vec<u8>]) -> Result<Self, StoreError> {
        let tables = PrivateTables::open(path, boundaries)?;
        let memtable = Memtable::new(log.header.checkpoint);
        let (end, reason) = log.visit(|entry| {
            let position = entry.position;
            let batch = entry.batch.ok_or_else(|| {
                StoreError::Corrupted(format!("the log entry at {position} has a valid checksum and is no batch"))
            })?;
            memtable.apply(&batch, sequence_of(position + entry.length).get());
            Ok(())
        })?;
        if let LogEnd::Damaged(damage) = reason {
            return Err(StoreError::Corrupted(damage.to_string()));
        }
        Ok(Self { log, memtable: [Arc::new(memtable)], end, tables })
    }

    /// Reads every table and compares it with its checksum.
    ///
    /// # Errors
    ///
    /// [`StoreError::Corrupted`] names one that is not as it was written.
    pub fn verify(&self) -> Result<(), StoreError> {
        self.tables.get().verify()
    }

    /// Where it ends.
    #[must_use]
    pub fn end(&self) -> StoreEnd {
        StoreEnd::new(self.log.header, self.end)
    }

    /// Bytes of its log that the tables do not have.
    #[must_use]
    pub fn log_bytes_used(&self) -> u64 {
        self.end - self.log.header.checkpoint
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> &LogView {
        &self.log
    }

    /// Its tables, partition by partition.
    #[must_use]
    pub fn partitions(&self) -> Vec<PartitionView> {
        self.tables.get().partitions_view()
    }
}

impl MetadataStore for StoreView {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.memtable[0].get(key) {
            Some(slot) => Ok(slot.value.map(Vec::from)),
            None => self.tables.get().get(key),
        }
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        range_over(&self.memtable, self.tables.get().range(from, to), (from, to), limit)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        if batch.is_empty() {
            Ok(self.committed())
        } else {
            Err(StoreError::Io("the store is open for reading".to_owned()))
        }
    }

    fn sync(&self, through: Sequence) -> Result<(), StoreError> {
        assert!(through <= self.committed(), "only a committed transaction can be made durable");
        Ok(())
    }

    fn durable(&self) -> Sequence {
        self.committed()
    }

    fn only_the_process_died(&self) -> bool {
        self.log.survivors.is_some()
    }

    fn committed(&self) -> Sequence {
        sequence_of(self.end)
    }

    fn bytes_used(&self) -> u64 {
        self.log.medium.length() + self.tables.get().bytes()
    }
}

/// Reads the tables of a store or of a copy, changes nothing, and compares each with its checksum.
pub(crate) fn verify_tables(path: &Path, boundaries: &[Vec<u8>]) -> Result<(), StoreError> {
    PrivateTables::open(path, boundaries)?.get().verify()
}

/// The file of a log, or of the slots of a second copy, open for reading.
pub(crate) struct LogFile {
    file: LockableFile,
    length: u64,
}

impl LogFile {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let opened = File::open(path).and_then(|file| {
            let length = file.metadata()?.len();
            Ok(Self { length, file: LockableFile::new(file) })
        });
        opened.map_err(|error| super::open::failed(path, &error))
    }

    /// Returns whether the lock was granted; otherwise another process has the store open for writing.
    pub(crate) fn lock_shared(&self) -> Result<bool, StoreError> {
        let outcome = self.file.lock_shared().map_err(|error| StoreError::Io(format!("locking the store: {error}")))?;
        Ok(outcome == LockOutcome::Locked)
    }
}

impl LogMedium for LogFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn write_durable(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn description(&self) -> String {
        "file, for reading".to_owned()
    }
}
