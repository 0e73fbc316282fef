//! The metadata store: one parallel log, memtables, and tables (A4-A9; DESIGN section 5).
//!
//! Invariants:
//! * A change is in the log first, then in the active memtable, then in a sealed one, then in the tables; a read looks in
//!   the opposite order of age, newest first. While a memtable moves on it is found in both places.
//! * A commit holds `levels` shared from taking its place in the log until its change is in the memtable. Sealing takes it
//!   exclusively and so is the barrier between adjacent memtables (A5): each covers exactly one stretch of the log.
//! * There are at most two memtables, the active one and one that is being written. Where both are full, commits wait.
//! * The log's checkpoint moves only after all tables of a memtable are durable, and tables are registered only after the
//!   log is durable as far as they reach.
//! * Lock order: `maintenance` before `levels` before the locks of the log. A reader takes `levels` for the time of cloning
//!   two references.
//!
//! ```text
//!  commit ──► log (place, fill) ──► active memtable ──seal──► sealed memtable ──write──► tables ──► checkpoint of the log
//!  get, range ◄───────────────────────────┴───────────────────────┴─────────────────────────┘
//! ```

mod background;
#[cfg(all(test, not(shuttle)))]
mod lost_writes_tests;
mod maintenance;
mod open;
mod placement;
mod read;
mod report;
mod survived;
mod view;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use polymux_types::Sequence;

use self::background::{Background, Signals};
use self::survived::Survived;
use crate::ballast::Ballast;
use crate::batch::Batch;
use crate::copy::{CopyThread, SecondCopy};
use crate::error::StoreError;
use crate::log::{ALIGNMENT, Log};
use crate::memtable::Memtable;
use crate::notes::Notes;
use crate::store::{CopySync, Entry, MetadataStore, Room};
use crate::tables::Tables;
use polymux_types::sync::{Mutex, RwLock, RwLockReadGuard};

pub(crate) use self::open::BALLAST_FILE;
pub use self::open::{LogStoreOptions, OpenMode, Workers};
pub(crate) use self::placement::on_disk_format;
pub use self::placement::{LogPlacement, RegionKind};
pub use self::report::{StoreReport, WindowPlace, WindowReport};
pub use self::view::{InUse, LogEntry, LogSummary, LogView, PartitionView, StoreView, TableLevel};
pub(crate) use self::view::{LogFile, verify_tables};

/// A commit looks at the size of its memtable each time the log grows by this many bytes.
const CHECK_INTERVAL: u64 = 64 * 1024;

/// The memtables.
struct Levels {
    active: Arc<Memtable>,
    sealed: Option<Sealed>,
}

/// A memtable that takes no more changes.
#[derive(Clone)]
struct Sealed {
    memtable: Arc<Memtable>,
    /// End of the stretch of the log that it covers.
    end: u64,
}

/// State that all threads of a store share.
pub(crate) struct Inner {
    path: PathBuf,
    pub(crate) log: Log,
    levels: RwLock<Levels>,
    pub(crate) tables: Tables,
    ballast: Ballast,
    /// Held while a memtable is written and while tables are compacted to free space.
    pub(crate) maintenance: Mutex<()>,
    memtable_bytes_max: u64,
    log_span_max: u64,
    signals: Signals,
    replayed_entries: u64,
    window: WindowReport,
    stalled_commits: AtomicU64,
    copy: Option<SecondCopy>,
    survived: Survived,
}

/// A [`MetadataStore`] with a log of its own. Keys do not begin with four bytes 0xff.
pub struct LogStore {
    inner: Arc<Inner>,
    background: Option<Background>,
    copying: Option<CopyThread>,
}

impl LogStore {
    /// Stops after a [`MetadataStore::checkpoint`]. Where this is not called before the end of the process, the next
    /// opening replays the log.
    ///
    /// # Errors
    ///
    /// As [`MetadataStore::checkpoint`].
    pub fn close(mut self) -> Result<(), StoreError> {
        self.background = None;
        self.checkpoint()
    }

    /// Ships the rest to the second copy, which then says that it is whole. The last thing before the end of the process:
    /// nothing is committed after it. Where the copy does not answer, it stays behind.
    pub fn finish_copy(&self) {
        match (&self.copying, &self.inner.copy) {
            (Some(_), Some(copy)) => drop(copy.stop()),
            _ => self.inner.finish_copy(),
        }
    }

    /// Gives up the memory that outlives the process: committed transactions reach the medium, and nothing is committed after it. For a process that
    /// ends in order while threads of it still hold the store, whose own end then never comes.
    pub fn discard_surviving(&self) {
        let is_durable = self.inner.log.check().is_ok() && self.inner.log.sync(self.inner.log.tail()).is_ok();
        if is_durable && self.inner.survived.discard() {
            self.inner.log.discard_surviving();
        }
    }

    /// Begins to ship to a copy whose files are open.
    #[cfg(test)]
    pub(crate) fn attach_copy(&mut self, options: crate::copy::CopyOptions, directory: crate::copy::CopyDirectory) {
        let inner = Arc::get_mut(&mut self.inner).expect("a store that is driven by hand has no threads");
        inner.copy = Some(SecondCopy::attach_to(options, directory, &inner.log, &inner.tables));
    }

    /// One round of background work, for callers that drive the store by hand ([`Workers::Manual`]).
    ///
    /// # Errors
    ///
    /// The store is poisoned then.
    pub fn step(&self) -> Result<StepProgress, StoreError> {
        self.inner.step()
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepProgress {
    /// There was nothing to do.
    Idle,
    /// Something was done; more may be left.
    Worked,
}

impl Inner {
    fn commit(&self, batch: &Batch) -> Result<Sequence, StoreError> {
        if batch.is_empty() {
            return Ok(self.committed());
        }
        let payload = batch.as_bytes();
        let length = crate::log::entry_length(payload.len() as u64);
        if length > self.log.entry_length_max() {
            return Err(StoreError::TooLarge { bytes: payload.len() });
        }
        loop {
            self.log.check()?;
            let checkpoint = self.log.checkpoint();
            let levels = self.levels.read();
            if let Some(place) = self.log.reserve(payload.len()) {
                self.log.fill(place, payload)?;
                let sequence = sequence_of(place.end);
                levels.active.apply(batch, sequence.get());
                if place.end / CHECK_INTERVAL != (place.end - length) / CHECK_INTERVAL {
                    // This transaction is in the log, whatever became of tables; the next caller gets the error.
                    if let Err(error) = self.look_at_size(levels, place.end) {
                        log::debug!("the metadata store fails behind a transaction that it took: {error}");
                    }
                }
                return Ok(sequence);
            }
            drop(levels);
            self.make_room_in_log(checkpoint)?;
        }
    }

    /// Starts the work that is due as the memtable and the window fill; waits where they are too full.
    fn look_at_size(&self, levels: RwLockReadGuard<'_, Levels>, end: u64) -> Result<(), StoreError> {
        let bytes = levels.active.bytes();
        let full = bytes >= self.memtable_bytes_max || end - levels.active.start() >= self.log_span_max;
        let waiting = full && levels.sealed.is_some();
        drop(levels);
        if self.log.unwritten() >= self.log.window_length() / 4 {
            self.signals.write_log.raise();
        }
        if full {
            self.signals.write_memtable.raise();
        }
        // Beyond the limit by half: the tables do not keep up, and memory is promised to stay within its budget.
        if waiting && bytes >= self.memtable_bytes_max + self.memtable_bytes_max / 2 {
            self.wait_for_memtable()?;
        }
        Ok(())
    }

    fn committed(&self) -> Sequence {
        sequence_of(self.log.tail())
    }

    /// The second copy, where there is one.
    pub(crate) fn second_copy(&self) -> Option<&SecondCopy> {
        self.copy.as_ref()
    }

    /// Whether the store has stopped because of an error.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.log.check().is_err()
    }

    /// End of the stretch of the log of the memtable that is being written or could not be written.
    pub(crate) fn sealed_end(&self) -> Option<u64> {
        self.levels.read().sealed.as_ref().map(|sealed| sealed.end)
    }

    /// Waits for the second copy, as far as it has to be waited for.
    fn sync_copy(&self, through: Sequence) -> CopySync {
        let Some(copy) = &self.copy else { return CopySync::Safe };
        let ship = || {
            self.ship();
        };
        let by_hand: Option<&dyn Fn()> = if self.signals.has_workers() { None } else { Some(&ship) };
        copy.sync(end_of(through), by_hand)
    }
}

/// The sequence of a transaction is the end of its entry, in units of the log's alignment: greater for a later one, and
/// never the same for two.
pub(crate) fn sequence_of(end: u64) -> Sequence {
    Sequence(end / ALIGNMENT)
}

/// The transaction whose entry ends at a position of the log.
#[must_use]
pub fn sequence_at(end: u64) -> Sequence {
    sequence_of(end)
}

/// The end of the entry of a transaction.
pub(crate) fn end_of(sequence: Sequence) -> u64 {
    sequence.get() * ALIGNMENT
}

impl MetadataStore for LogStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(key)
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.inner.range(from, to, limit)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        self.inner.commit(&batch)
    }

    fn sync(&self, through: Sequence) -> Result<(), StoreError> {
        assert!(through <= self.committed(), "only a committed transaction can be made durable");
        self.inner.log.sync(end_of(through))?;
        self.inner.copy.iter().for_each(SecondCopy::note_durable);
        if self.inner.copy.as_ref().is_some_and(SecondCopy::is_synchronous) {
            // A copy that does not catch up shows in the report; it does not stop the store.
            let _late = self.inner.sync_copy(through);
        }
        Ok(())
    }

    fn durable(&self) -> Sequence {
        sequence_of(self.inner.log.durable())
    }

    fn committed(&self) -> Sequence {
        self.inner.committed()
    }

    fn bytes_used(&self) -> u64 {
        self.inner.bytes_used()
    }

    fn checkpoint(&self) -> Result<(), StoreError> {
        self.inner.log.sync(self.inner.log.tail())?;
        match self.inner.write_everything() {
            // Everything is in the log, and the next opening replays it.
            Err(StoreError::NoSpace) => Ok(()),
            outcome => outcome,
        }
    }

    fn stopped(&self) -> Option<StoreError> {
        self.inner.log.check().err()
    }

    fn room(&self) -> Room {
        self.inner.ballast.room()
    }

    fn notes(&self) -> Option<Arc<Notes>> {
        self.inner.survived.notes()
    }

    fn only_the_process_died(&self) -> bool {
        self.inner.survived.only_the_process_died()
    }

    fn survivors_are_taken_up(&self) {
        self.inner.survived.note_taken_up();
    }

    fn copied(&self) -> Sequence {
        let arrived = self.inner.copy.as_ref().and_then(SecondCopy::arrived);
        arrived.map_or_else(|| self.inner.committed(), sequence_of)
    }

    fn sync_copy(&self, through: Sequence) -> Result<CopySync, StoreError> {
        assert!(through <= self.durable(), "what is in the copy is durable in the store before");
        Ok(self.inner.sync_copy(through))
    }

    fn abandon_copy(&self, raised: Sequence) -> CopySync {
        self.inner.copy.as_ref().map_or(CopySync::Safe, |copy| copy.abandon(end_of(raised)))
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        // Stopped before anything else is dropped, so that no thread works on a store without an owner.
        self.background = None;
        // As if the process had ended in order; synced transactions are durable already.
        self.discard_surviving();
        match self.copying.take() {
            Some(copying) => drop(copying),
            None if !self.inner.is_poisoned() => self.inner.finish_copy(),
            None => {}
        }
    }
}
