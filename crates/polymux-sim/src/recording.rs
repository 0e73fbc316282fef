//! Tiers and a metadata store that write down every change made to them, all into one journal.
//!
//! Invariants:
//! * The journal holds each change that succeeded, with its exact effect (a short write is recorded with its actual length),
//!   in the order in which the changes were made. Nothing that only reads is recorded.
//! * A sync is recorded when it returns: until then nothing of it is promised, and whatever it made durable before could
//!   have become durable by itself.
//! * The files of a store may be recorded instead of its transactions: each of their operations is an entry, made before
//!   the store goes on, so that both kinds of devices have one order. A durable write is two: begun, and durable.
//! * Syncs of different devices that follow one another directly stand in the order of the devices: threads carry them out
//!   side by side, and their order among themselves says nothing. So one seed gives one journal. Writes of a store to its
//!   files stand before the syncs of tiers that no transaction separates them from: they contain nothing that waited for them.
//! * A pause in a change is a place where a test may do something else, on the same thread: before the tier below is touched.
//!
//! ```text
//!  file system ──► RecordingTier ──► MemoryTier
//!              ──► RecordingStore ─► MemoryStore      each change ──► Journal ──► crash states
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polymux_meta::{Batch, CopySync, Entry, MetadataStore, Notes, Room, Sequence, StoreError};
use polymux_tier::{AllocateMode, Label, ObjectRef, ObjectStamp, Tier, TierError, Wait};
use polymux_types::Errno;
use polymux_types::sync::Mutex;

use crate::recording_file_system::{Change, Durability, Operation, RecordedDirectory};
use crate::{MemoryStore, MemoryTier};

/// A change of one tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierChange {
    /// An object was made.
    Create(ObjectRef),
    /// An object was removed.
    Remove(ObjectRef),
    /// Bytes were written.
    Write {
        /// Where to.
        object: ObjectRef,
        /// The first byte.
        offset: u64,
        /// As many as were written.
        data: Arc<[u8]>,
    },
    /// The size was set.
    Truncate {
        /// Of which object.
        object: ObjectRef,
        /// In bytes.
        size: u64,
    },
    /// Space was reserved.
    Allocate {
        /// For which object.
        object: ObjectRef,
        /// The first byte.
        offset: u64,
        /// In bytes.
        length: u64,
        /// Whether the size grew.
        mode: AllocateMode,
    },
    /// A range was made a hole.
    Punch {
        /// Of which object.
        object: ObjectRef,
        /// The first byte.
        offset: u64,
        /// In bytes.
        length: u64,
    },
    /// The description of an object was refreshed.
    Stamp(ObjectRef),
    /// The label was replaced or taken away, durably.
    Label(Option<Box<Label>>),
    /// An object was made durable.
    Sync(ObjectRef),
    /// Everything was made durable.
    SyncAll,
    /// A sync of an object failed, and the data written to it since the last one will not become durable any more.
    SyncFailed(ObjectRef),
    /// A sync of all objects failed, and the data written to them since the last one will not become durable any more.
    SyncAllFailed,
}

impl TierChange {
    fn describe(&self) -> String {
        match self {
            Self::Create(object) => format!("create {:x}", object.id.0),
            Self::Remove(object) => format!("remove {:x}", object.id.0),
            Self::Write { object, offset, data } => {
                format!("write {:x} at {offset}, {} bytes, first {:02x?}", object.id.0, data.len(), data.first())
            }
            Self::Truncate { object, size } => format!("truncate {:x} to {size}", object.id.0),
            Self::Allocate { object, offset, length, mode } => {
                format!("allocate {:x} at {offset}, {length} bytes, {mode:?}", object.id.0)
            }
            Self::Punch { object, offset, length } => format!("punch {:x} at {offset}, {length} bytes", object.id.0),
            Self::Stamp(object) => format!("stamp {:x}", object.id.0),
            Self::Label(Some(label)) => format!("label of epoch {}, {:?}", label.epoch.0, label.clean),
            Self::Label(None) => "no label".to_owned(),
            Self::Sync(object) => format!("sync {:x}", object.id.0),
            Self::SyncAll => "sync all".to_owned(),
            Self::SyncFailed(object) => format!("sync {:x} fails", object.id.0),
            Self::SyncAllFailed => "sync all fails".to_owned(),
        }
    }
}

/// One entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A tier was changed; the number is its place in the scene.
    Tier(usize, TierChange),
    /// A transaction was committed.
    Commit(Sequence, Arc<Batch>),
    /// The store was made durable up to a transaction.
    SyncStore(Sequence),
    /// The files of the store were changed or synced. A write that is to be durable when it returns is not yet.
    Files(Arc<Operation>),
    /// A durable write of the files of the store returned: the one whose entry stands before.
    FilesDurable(Arc<Operation>),
    /// The configuration lists these tiers from now on, durably.
    Configure(Vec<usize>),
}

impl Event {
    /// In one line, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Tier(tier, change) => format!("tier {tier}: {}", change.describe()),
            Self::Commit(sequence, batch) => {
                let records = batch.iter().map(|change| {
                    let letter = change.key.get(4).map_or('?', |byte| char::from(*byte));
                    let sign = if change.value.is_some() { '+' } else { '-' };
                    format!("{sign}{letter}")
                });
                format!("store: commit {} of {}", sequence.0, records.collect::<Vec<_>>().join(" "))
            }
            Self::SyncStore(through) => format!("store: sync through {}", through.0),
            Self::Files(operation) => format!("store: {}", operation.describe()),
            Self::FilesDurable(operation) => format!("store: {} is durable", operation.path.display()),
            Self::Configure(listed) => format!("configuration: tiers {listed:?}"),
        }
    }

    /// Where a sync stands among those that follow one another directly: the files of a store, the tiers, a simulated store.
    fn synced_device(&self) -> Option<usize> {
        match self {
            Self::Files(_) | Self::FilesDurable(_) => Some(0),
            Self::Tier(
                tier,
                TierChange::Sync(_) | TierChange::SyncAll | TierChange::SyncFailed(_) | TierChange::SyncAllFailed,
            ) => Some(1 + *tier),
            Self::SyncStore(_) => Some(usize::MAX),
            _ => None,
        }
    }
}

/// The changes and syncs of all devices of a volume, in order.
#[derive(Default)]
pub struct Journal {
    state: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    events: Vec<Event>,
    /// Entries before this one keep their place, because `position` returned it.
    settled: usize,
}

impl Journal {
    /// An empty journal.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry.
    pub fn push(&self, event: Event) {
        let mut state = self.state.lock();
        let mut place = state.events.len();
        if let Some(device) = event.synced_device() {
            let is_later = |place: usize| state.events[place].synced_device().is_some_and(|other| other > device);
            while place > state.settled && is_later(place - 1) {
                place -= 1;
            }
        }
        state.events.insert(place, event);
    }

    /// Adds an entry for each operation on a recorded directory, which is where a store has its files.
    pub fn observe(self: &Arc<Self>, directory: &RecordedDirectory) {
        let journal = Arc::clone(self);
        directory.observe(move |operation| {
            let operation = Arc::new(operation.clone());
            journal.push(Event::Files(Arc::clone(&operation)));
            if matches!(operation.change, Change::Write { durability: Durability::Durable, .. }) {
                journal.push(Event::FilesDurable(operation));
            }
        });
    }

    /// Number of entries so far: a position, which is a crash point. Entries before it stay before it.
    #[must_use]
    pub fn position(&self) -> usize {
        let mut state = self.state.lock();
        state.settled = state.events.len();
        state.settled
    }

    /// Everything so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.state.lock().events.clone()
    }
}

/// Which change of a tier is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// An object is synced.
    Sync,
}

/// Called before a change is made, with the place of the tier.
pub type PauseHook = dyn Fn(usize, Pause) + Send + Sync;

/// A tier that records.
pub struct RecordingTier {
    inner: Arc<MemoryTier>,
    place: usize,
    journal: Arc<Journal>,
    pause: Option<Arc<PauseHook>>,
    /// Syncs fail while this is set.
    failing_syncs: Arc<AtomicBool>,
}

impl RecordingTier {
    /// Records the changes of a tier as those of the device `place`.
    #[must_use]
    pub fn new(inner: Arc<MemoryTier>, place: usize, journal: Arc<Journal>) -> Self {
        Self { inner, place, journal, pause: None, failing_syncs: Arc::default() }
    }

    /// Calls a hook before each change.
    #[must_use]
    pub fn with_pause(mut self, pause: Arc<PauseHook>) -> Self {
        self.pause = Some(pause);
        self
    }

    /// While this is set every sync fails, and the data it should have made durable is lost where a crash follows; until then
    /// it can be read, as from the page cache of ext4.
    #[must_use]
    pub fn failing_syncs(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.failing_syncs)
    }

    /// Whether a sync may be tried; where it fails, that is noted.
    fn try_sync(&self, failed: TierChange) -> Result<(), TierError> {
        if self.failing_syncs.load(Ordering::Acquire) {
            self.note(failed);
            return Err(TierError::Io { operation: "sync", errno: Errno::EIO });
        }
        Ok(())
    }

    fn note(&self, change: TierChange) {
        self.journal.push(Event::Tier(self.place, change));
    }

    fn pause_before(&self, pause: Pause) {
        if let Some(hook) = &self.pause {
            hook(self.place, pause);
        }
    }
}

impl Tier for RecordingTier {
    fn create(&self, object: ObjectRef) -> Result<(), TierError> {
        self.inner.create(object)?;
        self.note(TierChange::Create(object));
        Ok(())
    }

    fn remove(&self, object: ObjectRef) -> Result<(), TierError> {
        self.inner.remove(object)?;
        self.note(TierChange::Remove(object));
        Ok(())
    }

    fn read(&self, object: ObjectRef, offset: u64, buffer: &mut [u8], wait: Wait) -> Result<usize, TierError> {
        self.pause_before(Pause::Read);
        self.inner.read(object, offset, buffer, wait)
    }

    fn write(&self, object: ObjectRef, offset: u64, data: &[u8], wait: Wait) -> Result<usize, TierError> {
        self.pause_before(Pause::Write);
        let done = self.inner.write(object, offset, data, wait)?;
        self.note(TierChange::Write { object, offset, data: Arc::from(&data[..done]) });
        Ok(done)
    }

    fn truncate(&self, object: ObjectRef, size: u64) -> Result<(), TierError> {
        self.inner.truncate(object, size)?;
        self.note(TierChange::Truncate { object, size });
        Ok(())
    }

    fn allocate(&self, object: ObjectRef, offset: u64, length: u64, mode: AllocateMode) -> Result<(), TierError> {
        self.inner.allocate(object, offset, length, mode)?;
        if mode == AllocateMode::Zero {
            // Each half may be all that a crash leaves.
            self.note(TierChange::Punch { object, offset, length });
            self.note(TierChange::Allocate { object, offset, length, mode: AllocateMode::KeepSize });
        } else {
            self.note(TierChange::Allocate { object, offset, length, mode });
        }
        Ok(())
    }

    fn punch(&self, object: ObjectRef, offset: u64, length: u64) -> Result<(), TierError> {
        self.inner.punch(object, offset, length)?;
        self.note(TierChange::Punch { object, offset, length });
        Ok(())
    }

    fn stamp(&self, object: ObjectRef, stamp: &ObjectStamp) -> Result<(), TierError> {
        self.inner.stamp(object, stamp)?;
        self.note(TierChange::Stamp(object));
        Ok(())
    }

    fn sync(&self, object: ObjectRef) -> Result<(), TierError> {
        self.pause_before(Pause::Sync);
        self.try_sync(TierChange::SyncFailed(object))?;
        self.inner.sync(object)?;
        self.note(TierChange::Sync(object));
        Ok(())
    }

    fn sync_all(&self) -> Result<(), TierError> {
        self.pause_before(Pause::Sync);
        self.try_sync(TierChange::SyncAllFailed)?;
        self.inner.sync_all()?;
        self.note(TierChange::SyncAll);
        Ok(())
    }

    fn write_label(&self, label: &Label) -> Result<(), TierError> {
        self.inner.write_label(label)?;
        self.note(TierChange::Label(Some(Box::new(label.clone()))));
        Ok(())
    }

    fn remove_label(&self) -> Result<(), TierError> {
        Tier::remove_label(&*self.inner)?;
        self.note(TierChange::Label(None));
        Ok(())
    }

    polymux_tier::forward_to_tier!(inner:
        capabilities, space, stat, reads_as_read, begin_write_back, wait_for_write_back, read_ahead, cached_bytes, drop_behind, lend,
        may_be_open_elsewhere, empty_for_removal, share_for_copy, open_for_program, copy_within_file_system, seek, allocated, give_back_room_ahead, read_stamp, is_unsynced, list,
        read_label, probe, measuring_ground, counters);
}

/// A metadata store that records its transactions. Those of a store whose files are recorded too are marks in the journal:
/// until its log is written nothing of them is on any device.
pub struct RecordingStore {
    inner: Arc<dyn MetadataStore>,
    journal: Arc<Journal>,
    syncs: StoreSyncs,
    /// Held over a commit and its entry, so that both have one order.
    committing: Mutex<()>,
}

/// How a sync of a store is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreSyncs {
    /// An entry of its own.
    Entry,
    /// The operations on its files.
    Files,
}

impl RecordingStore {
    /// Records the transactions of a simulated store.
    #[must_use]
    pub fn new(inner: Arc<MemoryStore>, journal: Arc<Journal>) -> Self {
        Self { inner, journal, syncs: StoreSyncs::Entry, committing: Mutex::new(()) }
    }

    /// Records the transactions of a store whose files are recorded in the same journal ([`Journal::observe`]).
    #[must_use]
    pub fn over_files(inner: Arc<dyn MetadataStore>, journal: Arc<Journal>) -> Self {
        Self { inner, journal, syncs: StoreSyncs::Files, committing: Mutex::new(()) }
    }
}

impl MetadataStore for RecordingStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.get(key)
    }

    fn range(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<Entry>, StoreError> {
        self.inner.range(from, to, limit)
    }

    fn commit(&self, batch: Batch) -> Result<Sequence, StoreError> {
        let _one_at_a_time = self.committing.lock();
        let recorded = Arc::new(batch.clone());
        let before = self.inner.committed();
        let sequence = self.inner.commit(batch)?;
        if sequence > before {
            self.journal.push(Event::Commit(sequence, recorded));
        }
        Ok(sequence)
    }

    fn sync(&self, through: Sequence) -> Result<(), StoreError> {
        let has_work = self.inner.durable() < through;
        self.inner.sync(through)?;
        if has_work && self.syncs == StoreSyncs::Entry {
            self.journal.push(Event::SyncStore(through));
        }
        Ok(())
    }

    fn notes(&self) -> Option<Arc<Notes>> {
        self.inner.notes()
    }

    fn only_the_process_died(&self) -> bool {
        self.inner.only_the_process_died()
    }

    fn survivors_are_taken_up(&self) {
        self.inner.survivors_are_taken_up();
    }

    fn durable(&self) -> Sequence {
        self.inner.durable()
    }

    fn committed(&self) -> Sequence {
        self.inner.committed()
    }

    fn bytes_used(&self) -> u64 {
        self.inner.bytes_used()
    }

    fn checkpoint(&self) -> Result<(), StoreError> {
        self.sync(self.committed())?;
        self.inner.checkpoint()
    }

    fn copied(&self) -> Sequence {
        self.inner.copied()
    }

    fn sync_copy(&self, through: Sequence) -> Result<CopySync, StoreError> {
        self.inner.sync_copy(through)
    }

    fn abandon_copy(&self, raised: Sequence) -> CopySync {
        self.inner.abandon_copy(raised)
    }

    fn stopped(&self) -> Option<StoreError> {
        self.inner.stopped()
    }

    fn room(&self) -> Room {
        self.inner.room()
    }
}
